// SPDX-License-Identifier: Apache-2.0
//
// What comes along a pipe that somebody else has made.
#include <exception>
#include <utility>

#include "agent.hpp"
#include "fault.hpp"

namespace backplane::tensorpipe {

// With a pipe from a worker that is known go the answers that were on it.
void Agent::drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why) {
  std::vector<Early> waiting;
  {
    const std::lock_guard lock(mutex_);
    incoming_.erase(pipe);
    waiting = take_early(from, [&pipe](const Early& early) { return early.pipe == pipe; });
  }
  pipe->close();
  hand_over(std::move(waiting));
  lose(from, express, why);
}

// Says so once of a pipe and the express connection beside it.
void Agent::lose(int32_t from, uint64_t express, const sdk::Failure& why) {
  if (from < 0 || over_) return;
  if (express > 0) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (express <= peer.lost) return;
    peer.lost = express;
  }
  core_.lost(from, why);
}

void Agent::read(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming) {
  // Weak, because a pipe keeps its callbacks.
  pipe->readDescriptor([this, incoming, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error,
                                                                    ::tensorpipe::Descriptor descriptor) {
    const Pipe same = weak.lock();
    if (!same) return;
    const int32_t from = incoming->from;
    const uint64_t express = incoming->express;
    if (error) return drop(same, from, express, failure_of(error, from));
    std::unique_ptr<Arrival> arrival;
    try {
      arrival = std::make_unique<Arrival>(std::move(descriptor), card_.token, static_cast<int32_t>(peers_.size()),
                                          core_.max_message_bytes(), memory_.get(),
                                          [this](int32_t rank) -> const DeviceSet& { return staging_->open_to(rank); });
    } catch (const sdk::Failure& e) {
      host_.log(BP_LOG_WARN, e.what());
      return drop(same, e.peer_rank() >= 0 ? e.peer_rank() : from, express, e);
    } catch (const std::exception& e) {
      host_.log(BP_LOG_WARN, e.what());
      return drop(same, from, express, sdk::Failure(BP_RESOURCE, e.what(), from));
    }
    incoming->from = arrival->from();
    incoming->express = arrival->before().express;
    take(same, incoming, std::move(arrival));
    read(same, incoming);
  });
}

// One that is whole is delivered first, so that whoever waits for it runs while TensorPipe is told to go on. Not if
// others are still arriving: a goodbye must not overtake what was said before it, which would be lost.
void Agent::take(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming, std::unique_ptr<Arrival> arrival) {
  if (arrival->is_whole() && incoming->arriving == 0) {
    deliver(pipe, std::move(arrival));
    pipe->read({}, [](const ::tensorpipe::Error&) {});
    return;
  }
  ++incoming->arriving;
  const ::tensorpipe::Allocation allocation = arrival->allocation();
  // Copies of a callback share what it has.
  auto rest = std::make_shared<std::unique_ptr<Arrival>>(std::move(arrival));
  pipe->read(allocation,
             [this, incoming, rest = std::move(rest), weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& failed) {
               const Pipe same = weak.lock();
               if (failed) {
                 --incoming->arriving;
               } else if (incoming->placing > 0 || (*rest)->has_devices()) {
                 place(same, incoming, std::move(*rest));
               } else {
                 deliver(same, std::move(*rest));
                 --incoming->arriving;
               }
             });
}

// Copies it to its devices. What comes after it along that pipe goes the same way, to stay behind it.
void Agent::place(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming, std::unique_ptr<Arrival> arrival) {
  ++incoming->placing;
  const auto rest = std::make_shared<std::unique_ptr<Arrival>>(std::move(arrival));
  staging_->place(**rest, [this, incoming, rest, weak = std::weak_ptr(pipe)](const sdk::Failure* failure) {
    const int32_t from = (*rest)->from();
    const std::string_view payload = (*rest)->payload();
    if (failure == nullptr) {
      deliver(weak.lock(), std::move(*rest));
    } else if (!over_) {
      core_.refused(from, payload, std::move(*rest), *failure);
    }
    --incoming->placing;
    --incoming->arriving;
  });
}

// `pipe`: NULL if it is gone.
void Agent::deliver(const Pipe& pipe, std::unique_ptr<Arrival> arrival) {
  if (over_ || (arrival->wants_receipt() && is_early(pipe, &arrival))) return;
  hand_over(pipe, std::move(arrival));
}

void Agent::hand_over(const Pipe& pipe, std::unique_ptr<Arrival> arrival) {
  if (over_) return;
  const Arrival& it = *arrival;
  const bool wants_receipt = it.wants_receipt();
  core_.received(it.from(), it.payload(), it.buffers(), std::move(arrival));
  if (wants_receipt && pipe) pipe->write({}, [](const ::tensorpipe::Error&) {});
}

}  // namespace backplane::tensorpipe
