// SPDX-License-Identifier: Apache-2.0
//
// Carries a Messenger's frames as messages of the wrapped group, on its own thread. Frames use one tag and need only
// the order of messages of one source and tag, so any backend that sends and receives host memory can carry them. A
// backend without tags carries nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/messenger.hpp"
#include "backplane/sdk/poller.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "losses.hpp"
#include "receive.hpp"

namespace backplane::matching {

class FrameTransport {
 public:
  // `backend` is the backend of `inner`.
  FrameTransport(const sdk::Inner& inner, const bp_backend& backend, int32_t rank, int32_t world_size,
                 sdk::Messenger& messenger);
  // Cancels the messages in flight. Blocks until the wrapped group uses no buffer any more.
  ~FrameTransport();
  FrameTransport(const FrameTransport&) = delete;
  FrameTransport& operator=(const FrameTransport&) = delete;

  // Starts the thread, which ends with the object. Calls `broken` once, on the thread, if a frame is lost.
  void start(std::function<void(const sdk::Failure&)> broken);
  // The messenger has a frame for this rank. Any thread.
  void ready(int32_t peer);
  // Makes the thread report the loss of this rank to the messenger. Any thread. Cheap if called for the rank before.
  void watch(int32_t peer);

 private:
  using Clock = std::chrono::steady_clock;
  // A frame in flight.
  struct Sending {
    sdk::Messenger::Bytes frame;
    std::unique_ptr<sdk::Work> work;
  };

  bool progress(sdk::Poller::Sleep& sleep);
  bool receive_all();
  // Returns true if a message or the end has arrived.
  bool poll(PersistentReceive& receive);
  std::set<int32_t> peers_to_send_to();
  // Returns true if it made progress.
  bool send_to(int32_t peer);
  void send_frames(int32_t peer);
  // Reports losses after the last messages of the lost ranks have been received.
  void report_losses();

  const sdk::Inner inner_;
  const int32_t rank_;
  const uint64_t tag_;    // of frames
  const bool takes_any_;  // one receive from any source instead of one per rank
  sdk::Messenger& messenger_;
  LossDetector losses_;  // of peers that are watched
  // Used by the thread alone, up to spin_policy_.
  std::list<PersistentReceive> receives_;  // of frames
  std::map<int32_t, Sending> sending_;
  Clock::time_point last_busy_;
  sdk::SpinPolicy spin_policy_;
  std::mutex mutex_;  // guards the fields below
  std::set<int32_t> ready_;
  std::optional<sdk::Poller> poller_;  // last: it uses the other fields
};

}  // namespace backplane::matching
