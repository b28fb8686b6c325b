// SPDX-License-Identifier: Apache-2.0
#include "rpc.hpp"

#include <sys/random.h>

#include <utility>
#include <vector>

#include "address.hpp"

namespace backplane::tensorpipe {
namespace {

// This worker's endpoint, without its URLs.
Endpoint make_endpoint(const sdk::Context& context) {
  Endpoint made;
  made.host = host_identity();
  made.devices = {context.name, 0, parse_device_maps(context.options.text("device_maps"))};
  made.devices.count = count_cuda_devices(&made.devices.absence_reason);
  if (getrandom(made.token.data(), made.token.size(), 0) != static_cast<ssize_t>(made.token.size())) {
    throw sdk::Failure(BP_RESOURCE, "getrandom failed");
  }
  return made;
}

}  // namespace

Agent::Agent(const sdk::Context& context)
    : memory_(sdk::received_memory(context.options)),
      transports_(make_transports(context)),
      endpoint_(make_endpoint(context)),
      acceptor_(context, transports_, endpoint_, executor_, is_stopped_) {
  try {
    start(context);
  } catch (...) {
    abort(sdk::Failure(BP_CANCELLED, "the agent could not start"));
    throw;
  }
}

Agent::~Agent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

void Agent::start(const sdk::Context& context) {
  acceptor_.listen();
  const sdk::Host host(context.host);
  std::vector<WorkerDevices> workers;
  std::vector<Token> tokens;
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    const Endpoint endpoint = parse_endpoint(host.store_get(endpoint_key(rank), context.timeout_ns), rank);
    if (rank != context.rank) {
      require_same_version(endpoint_, endpoint, rank);
      select_url(endpoint_, endpoint, rank);
    }
    tokens.push_back(endpoint.token);
    workers.push_back(rank == context.rank ? endpoint_.devices : endpoint.devices);
  }
  check_device_maps(workers);
  staging_.emplace(workers, context.rank, memory_, is_stopped_);
  receiver_.emplace(context, endpoint_.token, memory_, *staging_, is_stopped_);
  sender_.emplace(context, std::move(tokens), endpoint_, transports_, *staging_, executor_, is_stopped_);
  acceptor_.start([this](const Pipe& pipe) { receiver_->add(pipe); },
                  [this](const Express& express) { receiver_->add(express); });
  executor_.start();
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t) { sender_->send(to, std::move(message)); }

void Agent::abort(const sdk::Failure&) noexcept {
  if (is_stopped_.exchange(true)) return;
  executor_.stop();
  if (staging_) staging_->stop();
  transports_.context->close();
  transports_.context->join();  // all callbacks have run
  memory_->close();
  if (sender_) sender_->clear();
  if (receiver_) receiver_->clear();
  acceptor_.clear();
}

}  // namespace backplane::tensorpipe
