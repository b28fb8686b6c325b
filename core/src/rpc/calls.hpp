// SPDX-License-Identifier: Apache-2.0
//
// What this worker has asked others for and not been answered yet. Each request ends exactly once: whoever takes it out
// of here ends it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"
#include "rpc/parcel.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

// How a request ended: with an answer, or (NULL) an error. Does not block.
using Done = std::function<void(std::shared_ptr<Parcel> answer, const Error* error)>;

struct Call {
  int32_t to = -1;
  Kind kind = Kind::kCall;
  std::string function;
  int64_t timeout_ns = BP_NO_TIMEOUT;  // for the text
  Deadline::Clock::time_point begun;
  Done done;
  Id value = {};                      // that it asks or speaks of, if it does
  std::vector<Passed> forks = {};     // that its message carries
  std::optional<Error> failure = {};  // what it fails with when its time is up; none: that it is
  uint64_t request_bytes = 0;
};

class Calls {
 public:
  static constexpr int32_t kAnybody = -1;

  // `expired` is called, on a thread of this object, for each call whose time is up.
  explicit Calls(std::function<void(uint64_t number)> expired) : expired_(std::move(expired)) {}
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // The number of a call. Throws the reason once it is closed.
  uint64_t add(Call call, Deadline deadline);
  // What the message that is about to be sent carries. False if the call has ended.
  bool set_forks(uint64_t number, const std::vector<Passed>& forks);
  // The call, if it is still there and one to this worker.
  std::optional<Call> take(uint64_t number, int32_t to = kAnybody);
  // The same call fails with `why` at `deadline`, unless it has ended by then.
  void doom(uint64_t number, int32_t to, const Error& why, Deadline deadline);
  // The same for all calls to a worker, of those that there are, with numbers up to `last`. Looks at none of them yet.
  void doom_all_to(int32_t to, const Error& why, Deadline deadline, uint64_t last = UINT64_MAX);
  // Refuses more, and returns the numbers of those that are left for somebody to end.
  std::vector<uint64_t> close(const Error& why);
  // After close: waits for `expired` in progress, which is not called again. Not from within it.
  void stop();

  struct Counts {
    uint64_t active = 0;
    uint64_t begun = 0;  // ever
  };
  Counts counts() const;

  struct Pending {
    uint64_t number = 0;
    int32_t to = -1;
    Kind kind = Kind::kCall;
    std::string function;
    Deadline::Clock::time_point begun;
  };
  std::vector<Pending> pending() const;

 private:
  struct Entry {
    Call call;
    Deadline deadline;
    bool expired = false;  // `expired_` has been called, or is about to be
  };
  // What all calls to a worker fail with when the time is up.
  struct Doom {
    int32_t to = -1;
    uint64_t last = 0;  // they have numbers up to this one
    Error why;
    Deadline at;
    uint64_t looked_at = 0;  // the last of them, once the time is up
  };

  using Due = std::pair<Deadline::Clock::time_point, uint64_t>;  // a call's deadline, its number

  void doom(uint64_t number, Entry* entry, const Error& why, Deadline deadline);
  void watch_for(Deadline deadline, uint64_t number);
  static void apply(const Doom& doom, uint64_t number, Entry* entry);
  static void expire(uint64_t number, Entry* entry, std::vector<uint64_t>* late);
  bool look_at_dooms(Deadline::Clock::time_point now, std::vector<uint64_t>* late);
  bool look_at_heap(Deadline::Clock::time_point now, std::vector<uint64_t>* late);
  bool look(std::vector<uint64_t>* late);
  void watch();

  const std::function<void(uint64_t)> expired_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Entry> calls_;  // by number, so that they can be gone through bit by bit
  std::list<Doom> dooms_;            // in the order in which they were told
  std::vector<Due> due_;             // a heap, the first on top; also of calls that have ended, or have other deadlines
  Deadline alarm_ = Deadline::never();  // until when the thread sleeps
  uint64_t last_ = 0;
  std::optional<Error> closed_;
  bool stop_ = false;
  std::thread watch_;  // started with the first call
};

}  // namespace backplane::core::rpc
