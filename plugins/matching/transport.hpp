// SPDX-License-Identifier: Apache-2.0
//
// Carries a Messenger's frames as messages of the wrapped group, on its own thread. Frames use one tag and need only
// the order of messages of one source and tag, so any backend that sends and receives host memory can carry them. A
// backend without tags carries nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/messenger.hpp"
#include "backplane/sdk/poller.hpp"
#include "backplane/sdk/spin_policy.hpp"

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
  // A receive in the wrapped group, posted again after each message.
  struct Receive {
    Receive(int32_t from, uint64_t with, size_t size) : source(from), tag(with), buffer(size) {}
    int32_t source;
    uint64_t tag;
    std::vector<std::byte> buffer;
    bp_result result = {sizeof(bp_result), -1, 0, 0};
    std::unique_ptr<sdk::Work> work;
    bool posted = false;
    bool has_failed = false;  // at the last attempt
    bool ended = false;       // no further message comes
  };
  // A frame in flight.
  struct Sending {
    sdk::Messenger::Bytes frame;
    std::unique_ptr<sdk::Work> work;
  };

  bool progress(sdk::Poller::Sleep& sleep);
  bool receive_all();
  // Returns true if a message or the end has arrived.
  bool poll_receive(Receive& receive);
  std::set<int32_t> peers_to_send_to();
  // Returns true if it made progress.
  bool send_to(int32_t peer);
  void send_frames(int32_t peer);
  void check_sentinels(Clock::time_point time);
  void note_loss(int32_t peer, const sdk::Failure& why);
  void report_losses();
  void end(sdk::Work* work);

  const sdk::Inner inner_;
  const int32_t rank_;
  const int32_t world_size_;
  const uint64_t tag_;    // of frames
  const bool takes_any_;  // one receive from any source instead of one per rank
  sdk::Messenger& messenger_;
  bool is_aborted_ = false;  // end has aborted the wrapped group
  // Used by the thread alone, up to spin_policy_.
  std::list<Receive> receives_;   // of frames
  std::list<Receive> sentinels_;  // of messages that are never sent: they end when the rank is lost
  std::map<int32_t, Sending> sending_;
  std::map<int32_t, sdk::Failure> lost_;  // to be reported after their last messages were received
  std::set<int32_t> reported_;
  Clock::time_point next_check_;  // of the sentinels
  Clock::time_point last_busy_;
  sdk::SpinPolicy spin_policy_;
  std::mutex mutex_;  // guards the fields below
  std::set<int32_t> ready_;
  std::set<int32_t> watched_;
  std::vector<int32_t> to_watch_;
  std::optional<sdk::Poller> poller_;  // last: it uses the other fields
};

}  // namespace backplane::matching
