// SPDX-License-Identifier: Apache-2.0
#include "rpc/worker.hpp"

#include <utility>

#include "log.hpp"
#include "rpc/inbound_call.hpp"

namespace backplane::core::rpc {

Worker::Worker(const WorkerConfig& config, const Joining& joining)
    : backend_(joining.backend()),
      context_(config.group->config().rank, joining.names(), joining.max_message_bytes(), joining.threads(),
               config.rpc_timeout_ns),
      connection_(&context_, this),
      caller_(&context_, &connection_, config.group->job().detector && config.group->job().detector->watches()),
      references_(&context_, &caller_),
      server_(&context_, &connection_, &references_),
      report_(&context_, &caller_, &references_, &server_, config.group->config().global_ranks),
      lifecycle_(&context_, &connection_, &caller_, &references_, &server_, &report_, config.group) {}

std::shared_ptr<Worker> Worker::join(const WorkerConfig& config) {
  std::shared_ptr<Worker> worker;
  try {
    const Joining joining(config);
    worker.reset(new Worker(config, joining));
    worker->context_.worker = worker;
    joining.complete([&joining, &worker, &config] {
      worker->report_.attach_to(*config.group);  // first: a worker whose transport has started may call
      worker->connection_.open(joining.start_transport(worker.get()));
    });
    worker->lifecycle_.start();
    return worker;
  } catch (const std::exception& error) {
    if (worker) {
      worker->lifecycle_.leave(fmt::format("this worker could not join: {}", error.what()));
    } else {
      config.group->destroy();
    }
    throw;
  }
}

Worker::~Worker() { lifecycle_.leave("this worker has left"); }

uint64_t Worker::call(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns, Done done) {
  InboundCall::require_may_wait();
  context_.peers.require_rank(to);
  Header header;
  header.function = function;
  return references_.request(to, std::move(header), std::move(arguments), timeout_ns, std::move(done));
}

std::shared_ptr<Worker> Worker::current() {
  return InboundCall::current == nullptr || InboundCall::is_inherited() ? nullptr : InboundCall::current->worker;
}

bool Worker::cancelled() { return InboundCall::current != nullptr && InboundCall::current->cancelled.load(); }

void Worker::receive(int32_t from, const bp_rpc_message& message, const Error* problem) {
  std::shared_ptr<Payload> payload;
  try {
    payload = std::make_shared<Payload>(message);
  } catch (const std::exception& e) {
    if (message.release != nullptr) message.release(message.owner);
    static base::LogLimit limit;
    log(limit, BP_LOG_ERROR, "rpc: a message of rank {} was dropped: {}", from, e.what());
    return;
  }
  try {
    context_.peers.require_rank(from);
    context_.metrics.peers[static_cast<size_t>(from)].bytes_received.fetch_add(payload->message_bytes(),
                                                                               std::memory_order_relaxed);
    std::string_view bytes = payload->message();
    Header header = decode(&bytes);
    payload->set_data(bytes);
    for (const Fork& each : header.refs) context_.peers.require_rank(each.owner);
    references_.receive(header, payload.get());
    route(from, std::move(header), std::move(payload), problem);
  } catch (const std::exception& e) {
    static base::LogLimit limit;
    log(limit, BP_LOG_WARN, "rpc: a message of rank {} was dropped: {}", from, e.what());
  }
}

void Worker::route(int32_t from, Header header, std::shared_ptr<Payload> payload, const Error* problem) {
  if (problem != nullptr && header.kind == Kind::kReply) {
    header.kind = Kind::kError;
    header.status = problem->status();
    header.function = fmt::format("the result could not be received: {}", problem->what());
  }
  switch (header.kind) {
    case Kind::kReply:
    case Kind::kError:
      return caller_.on_reply(from, header, std::move(payload));
    case Kind::kCancel:
      return server_.on_cancel(from, header);
    case Kind::kLeave:
      return lifecycle_.on_peer_gone(from, Error(BP_CANCELLED, "the worker has shut down", from));
    case Kind::kRepliesLost:
      return caller_.on_replies_lost(from, header.call);
    default:
      return server_.serve(from, std::move(header), std::move(payload), problem);
  }
}

void Worker::failed(int32_t to, uint64_t id, const Error& error) {
  if (id == Connection::kUnreported) return;
  context_.peers.require_rank(to);
  if (Server::is_reply(id)) {
    server_.on_reply_failed(to, id, error);
  } else {
    caller_.on_send_failed(to, id, error);
  }
}

void Worker::lost(int32_t peer, const Error& error) {
  for (int32_t rank = 0; rank < context_.peers.size(); ++rank) {
    if (rank == context_.peers.own_rank() || (peer >= 0 && peer != rank)) continue;
    caller_.on_connection_lost(rank, error);
    server_.on_connection_lost(rank);
  }
}

}  // namespace backplane::core::rpc
