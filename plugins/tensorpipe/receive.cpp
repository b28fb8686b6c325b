// SPDX-License-Identifier: Apache-2.0
//
// Receiving on pipes opened by other workers.
#include <exception>
#include <utility>

#include "errors.hpp"
#include "rpc.hpp"

namespace backplane::tensorpipe {

// Drops a pipe. Replies that were on it are lost.
void Agent::drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why) {
  std::vector<DeferredGoodbye> waiting;
  {
    const std::lock_guard lock(mutex_);
    incoming_.erase(pipe);
    waiting = take_deferred(from, [&pipe](const DeferredGoodbye& deferred) { return deferred.pipe == pipe; });
  }
  pipe->close();
  hand_over(std::move(waiting));
  report_loss(from, express, why);
}

// Reports the loss of a pipe and its express connection once.
void Agent::report_loss(int32_t from, uint64_t express, const sdk::Failure& why) {
  if (from < 0 || is_stopped_) return;
  if (express > 0) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (express <= peer.lost) return;
    peer.lost = express;
  }
  core_.lost(from, why);
}

void Agent::read(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming) {
  // Weak, because a pipe keeps its callbacks.
  pipe->readDescriptor([this, incoming, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error,
                                                                    ::tensorpipe::Descriptor descriptor) {
    const Pipe same = weak.lock();
    if (!same) return;
    const int32_t from = incoming->from;
    const uint64_t express = incoming->express;
    if (error) return drop(same, from, express, failure_of(error, from));
    std::unique_ptr<IncomingMessage> received;
    try {
      received = std::make_unique<IncomingMessage>(
          std::move(descriptor), endpoint_.token, static_cast<int32_t>(peers_.size()), core_.max_message_bytes(),
          memory_.get(), [this](int32_t rank) -> const DeviceSet& { return staging_->allowed_devices(rank); });
    } catch (const sdk::Failure& e) {
      host_.log(dropped_, BP_LOG_WARN, e.what());
      return drop(same, e.peer_rank() >= 0 ? e.peer_rank() : from, express, e);
    } catch (const std::exception& e) {
      host_.log(dropped_, BP_LOG_WARN, e.what());
      return drop(same, from, express, sdk::Failure(BP_RESOURCE, e.what(), from));
    }
    incoming->from = received->from();
    incoming->express = received->express_position().express;
    take(same, incoming, std::move(received));
    read(same, incoming);
  });
}

// An inline message is delivered before TensorPipe is told to continue, so that its waiter runs meanwhile. Not while
// other messages are arriving: a goodbye must not overtake earlier messages.
void Agent::take(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
                 std::unique_ptr<IncomingMessage> received) {
  if (received->is_inline() && incoming->arriving == 0) {
    deliver(pipe, std::move(received));
    pipe->read({}, [](const ::tensorpipe::Error&) {});
    return;
  }
  ++incoming->arriving;
  const ::tensorpipe::Allocation allocation = received->allocation();
  // Copies of a callback share its state.
  auto rest = std::make_shared<std::unique_ptr<IncomingMessage>>(std::move(received));
  pipe->read(allocation,
             [this, incoming, rest = std::move(rest), weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& failed) {
               const Pipe same = weak.lock();
               if (failed) {
                 --incoming->arriving;
               } else if (incoming->copying > 0 || (*rest)->has_devices()) {
                 place(same, incoming, std::move(*rest));
               } else {
                 deliver(same, std::move(*rest));
                 --incoming->arriving;
               }
             });
}

// Copies a message to its devices. Later messages of the pipe go through the same thread to keep their order.
void Agent::place(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
                  std::unique_ptr<IncomingMessage> received) {
  ++incoming->copying;
  const auto rest = std::make_shared<std::unique_ptr<IncomingMessage>>(std::move(received));
  staging_->place(**rest, [this, incoming, rest, weak = std::weak_ptr(pipe)](const sdk::Failure* failure) {
    const int32_t from = (*rest)->from();
    const std::string_view payload = (*rest)->payload();
    if (failure == nullptr) {
      deliver(weak.lock(), std::move(*rest));
    } else if (!is_stopped_) {
      core_.refused(from, payload, std::move(*rest), *failure);
    }
    --incoming->copying;
    --incoming->arriving;
  });
}

// `pipe` is null if it has ended.
void Agent::deliver(const Pipe& pipe, std::unique_ptr<IncomingMessage> received) {
  if (is_stopped_ || (received->wants_receipt() && defer_goodbye(pipe, &received))) return;
  hand_over(pipe, std::move(received));
}

void Agent::hand_over(const Pipe& pipe, std::unique_ptr<IncomingMessage> received) {
  if (is_stopped_) return;
  const IncomingMessage& it = *received;
  const bool wants_receipt = it.wants_receipt();
  core_.received(it.from(), it.payload(), it.buffers(), std::move(received));
  if (wants_receipt && pipe) pipe->write({}, [](const ::tensorpipe::Error&) {});
}

}  // namespace backplane::tensorpipe
