// SPDX-License-Identifier: Apache-2.0
//
// Express connections of the agent, and deferred goodbyes.
#include <exception>
#include <iterator>
#include <utility>

#include "address.hpp"
#include "errors.hpp"
#include "rpc.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr char kGreeting = '!';

// Whether all messages before `position` have been received.
bool has_reached(const ExpressPosition& received_express, const ExpressPosition& express_position) {
  if (express_position.messages == 0 || received_express.express > express_position.express) return true;
  if (received_express.express < express_position.express) return false;
  return received_express.messages >= express_position.messages;
}

}  // namespace

void Agent::listen_express() {
  if (!transports_.express) return;
  endpoint_.express = unique_name();
  express_listener_ = transports_.express->listen(endpoint_.express);
}

void Agent::connect_express(int32_t to, const Endpoint& endpoint) {
  if (!transports_.express || endpoint.express.empty() || endpoint.host != endpoint_.host || !can_open_express())
    return;
  {
    const std::lock_guard lock(mutex_);
    if (peers_[static_cast<size_t>(to)].express_disabled) return;
  }
  const Express express = transports_.express->connect(endpoint.express);
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.pipe) peer.express = express;  // otherwise the pipe has already broken
  }
  watch_express(to, express);
}

// Reads the greeting and the end of the connection. Nothing else is sent back.
void Agent::watch_express(int32_t to, const Express& express) {
  express->read([this, to, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void*, size_t) {
    const Express same = weak.lock();
    if (!same || is_stopped_) return;
    if (!error && open_express(to, same)) return watch_express(to, same);
    if (!forget_express(to, same)) return;
    core_.lost(to, error ? failure_of(error, to)
                         : sdk::Failure(BP_INTERNAL, "it sent unexpected data on the express connection", to));
  });
}

// Returns false if it is already open or was dropped.
bool Agent::open_express(int32_t to, const Express& express) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.express != express || peer.is_express_open) return false;
  return peer.is_express_open = true;
}

void Agent::write_express(int32_t to, const Express& express, const OutgoingPtr& message,
                          const ExpressPosition& express_position) {
  const uint64_t id = message->message.id();
  try {
    const auto bytes = std::make_shared<const std::string>(
        to_tensorpipe(message->message, peers_[static_cast<size_t>(to)].token, rank_, nullptr, express_position)
            .metadata);
    // A failure is also reported to the reader, which drops the connection.
    express->write(bytes->data(), bytes->size(), [this, to, id, bytes](const ::tensorpipe::Error& error) {
      if (error && !is_stopped_) core_.failed(to, id, failure_of(error, to));
    });
  } catch (const std::exception& e) {  // out of memory; the receiver would wait for this message
    const sdk::Failure failure(BP_RESOURCE, std::string("it could not be sent: ") + e.what(), to);
    if (forget_express(to, express)) core_.lost(to, failure);
    core_.failed(to, id, failure);
  }
}

// Drops an express connection, and its pipe if the express connection was open. An express connection that breaks
// without its pipe is not opened again. Returns false if nothing was lost, or if it was already dropped.
bool Agent::forget_express(int32_t to, const Express& express) {
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.express != express) return false;
    peer.express_disabled = true;
    if (peer.is_express_open) pipe = peer.pipe;
    if (!pipe) peer.express = nullptr;  // the caller holds a reference
  }
  if (pipe) return forget(to, pipe);
  express->close();
  return false;
}

void Agent::accept_express(const std::shared_ptr<::tensorpipe::transport::Listener>& listener) {
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Express& express) {
    const auto same = weak.lock();
    if (!same || is_stopped_) return;
    if (error) {  // workers that connect later send everything on their pipes
      host_.log(BP_LOG_INFO, "no more express connections are accepted: " + error.what());
      return same->close();
    }
    {
      const std::lock_guard lock(mutex_);
      if (!is_stopped_) incoming_express_.insert(express);
    }
    accept_express(same);
    express->write(&kGreeting, sizeof(kGreeting), [](const ::tensorpipe::Error&) {});
    read_express(express, std::make_shared<IncomingPipe>());
  });
}

void Agent::read_express(const Express& express, const std::shared_ptr<IncomingPipe>& incoming) {
  express->read(
      [this, incoming, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void* data, size_t size) {
        const Express same = weak.lock();
        if (!same) return;
        const int32_t from = incoming->from;
        if (error) return drop_express(same, *incoming, failure_of(error, from));
        try {
          ::tensorpipe::Descriptor descriptor;
          descriptor.metadata.assign(static_cast<const char*>(data), size);
          auto received = std::make_unique<IncomingMessage>(
              std::move(descriptor), endpoint_.token, static_cast<int32_t>(peers_.size()), core_.max_message_bytes(),
              memory_.get(), [this](int32_t rank) -> const DeviceSet& { return staging_->allowed_devices(rank); });
          const ExpressPosition express_position = received->express_position();
          incoming->from = received->from();
          incoming->express = express_position.express;
          if (received->wants_receipt() || express_position.express == 0) {
            throw sdk::Failure(
                BP_INVALID,
                "a message of rank " + std::to_string(received->from()) + " was refused: it must be sent on a pipe",
                received->from());
          }
          deliver(nullptr, std::move(received));
          count_express(incoming->from, express_position.express);
        } catch (const sdk::Failure& e) {
          host_.log(dropped_, BP_LOG_WARN, e.what());
          if (e.peer_rank() >= 0) incoming->from = e.peer_rank();
          return drop_express(same, *incoming, e);
        } catch (const std::exception& e) {
          host_.log(dropped_, BP_LOG_WARN, e.what());
          return drop_express(same, *incoming, sdk::Failure(BP_RESOURCE, e.what(), from));
        }
        read_express(same, incoming);
      });
}

// Goodbyes that wait for this connection are delivered.
void Agent::drop_express(const Express& express, const IncomingPipe& incoming, const sdk::Failure& why) {
  {
    const std::lock_guard lock(mutex_);
    incoming_express_.erase(express);
  }
  express->close();
  if (incoming.from >= 0) count_express(incoming.from, incoming.express, true);
  report_loss(incoming.from, incoming.express, why);
}

// Counts a message received on an express connection. `all`: no more messages follow.
void Agent::count_express(int32_t from, uint64_t express, bool all) {
  std::vector<DeferredGoodbye> due;
  {
    const std::lock_guard lock(mutex_);
    ExpressPosition& received_express = peers_[static_cast<size_t>(from)].received_express;
    if (express > received_express.express) received_express = {express, 0};
    if (express == received_express.express && received_express.messages < UINT64_MAX) ++received_express.messages;
    if (express == received_express.express && all) received_express.messages = UINT64_MAX;
    due = take_deferred(from, [&received_express](const DeferredGoodbye& deferred) {
      return has_reached(received_express, deferred.received->express_position());
    });
  }
  hand_over(std::move(due));
}

// Requires the lock.
std::vector<Agent::DeferredGoodbye> Agent::take_deferred(int32_t from,
                                                         const std::function<bool(const DeferredGoodbye&)>& due) {
  std::vector<DeferredGoodbye> taken;
  if (from < 0) return taken;
  std::vector<DeferredGoodbye>& deferred = peers_[static_cast<size_t>(from)].deferred;
  for (auto each = deferred.begin(); each != deferred.end();) {
    if (!due(*each)) {
      ++each;
      continue;
    }
    taken.push_back(std::move(*each));
    each = deferred.erase(each);
  }
  return taken;
}

void Agent::hand_over(std::vector<DeferredGoodbye> deferred) {
  for (DeferredGoodbye& each : deferred) hand_over(each.pipe, std::move(each.received));
}

// Defers a goodbye. Returns false if it may be delivered now: it does not wait, its pipe has ended, or too many are
// deferred.
bool Agent::defer_goodbye(const Pipe& pipe, std::unique_ptr<IncomingMessage>* received) {
  constexpr size_t kMost = 64;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>((*received)->from())];
  if (has_reached(peer.received_express, (*received)->express_position()) || !incoming_.contains(pipe) ||
      peer.deferred.size() == kMost)
    return false;
  peer.deferred.push_back({pipe, std::move(*received)});
  return true;
}

}  // namespace backplane::tensorpipe
