// SPDX-License-Identifier: Apache-2.0
//
// Carries a Messenger's frames as messages of the wrapped group, on a thread of its own. They need one tag and arrive
// in the order of (source, tag), so that any backend with sends and receives of host memory will do: also one without
// tags, which then carries nothing else.
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

class Carrier {
 public:
  // `backend`: that of `inner`.
  Carrier(const sdk::Inner& inner, const bp_backend& backend, int32_t rank, int32_t world_size,
          sdk::Messenger& messenger);
  // Gives up what is still on its way. Blocks until the wrapped group has let go of all buffers.
  ~Carrier();
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // Starts the thread, which ends with the object. `broken` is called once, on the thread, if it cannot go on.
  void start(std::function<void(const sdk::Failure&)> broken);
  // The messenger has a frame for this rank. Any thread.
  void ready(int32_t peer);
  // From now on the messenger is told when this rank is lost. Any thread; cheap when it is known already.
  void watch(int32_t peer);

 private:
  using Clock = std::chrono::steady_clock;
  // A receive that is posted to the wrapped group, again after each message.
  struct Inbox {
    Inbox(int32_t from, uint64_t with, size_t size) : source(from), tag(with), buffer(size) {}
    int32_t source;
    uint64_t tag;
    std::vector<std::byte> buffer;
    bp_result result = {sizeof(bp_result), -1, 0, 0};
    std::unique_ptr<sdk::Work> work;
    bool posted = false;
    bool has_failed = false;  // when it was looked at last
    bool over = false;        // nothing comes any more
  };
  // A frame that is being sent.
  struct Sending {
    sdk::Messenger::Bytes frame;
    std::unique_ptr<sdk::Work> work;
  };

  bool progress(sdk::Poller::Sleep& sleep);
  bool receive_all();
  // True when a message has come, or the end.
  bool receive(Inbox& inbox);
  std::set<int32_t> take_notes();
  // True if something happened.
  bool carry(int32_t peer);
  void send_frames(int32_t peer);
  void look_at_lifelines(Clock::time_point time);
  void lose(int32_t peer, const sdk::Failure& why);
  void tell_losses();
  void end(sdk::Work* work);

  const sdk::Inner inner_;
  const int32_t rank_;
  const int32_t world_size_;
  const uint64_t tag_;    // of frames
  const bool takes_any_;  // one receive from any source instead of one per rank
  sdk::Messenger& messenger_;
  bool is_aborted_ = false;     // end has aborted the wrapped group
  std::list<Inbox> inboxes_;    // of frames; the thread's, as the next seven
  std::list<Inbox> lifelines_;  // of messages that are never sent: they end when the rank is lost
  std::map<int32_t, Sending> sending_;
  std::map<int32_t, sdk::Failure> lost_;  // and not yet told: what they had sent is received first
  std::set<int32_t> told_;
  Clock::time_point next_look_;  // at the lifelines
  Clock::time_point last_busy_;
  sdk::SpinPolicy spin_policy_;
  std::mutex mutex_;  // guards what follows
  std::set<int32_t> ready_;
  std::set<int32_t> watched_;
  std::vector<int32_t> to_watch_;
  std::optional<sdk::Poller> poller_;  // last: it uses what is above
};

}  // namespace backplane::matching
