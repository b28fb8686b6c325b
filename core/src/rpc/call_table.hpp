// SPDX-License-Identifier: Apache-2.0
//
// The requests of this worker that have not ended. A request ends exactly once, by the thread that takes it out of the
// table. A thread of the table reports those whose deadline has passed.
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
#include "rpc/payload.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

// How a request ended: with a reply, or (NULL) an error. Must not block.
using Done = std::function<void(std::shared_ptr<Payload> reply, const Error* error)>;

// Releases the forks in a request's message. `was_sent`: the message may have arrived.
using ReleaseForks = std::function<void(bool was_sent)>;

struct Call {
  int32_t to = -1;
  Kind kind = Kind::kCall;
  std::string function;
  int64_t timeout_ns = BP_NO_TIMEOUT;  // for error texts
  Deadline::Clock::time_point begun;
  Done done;
  Id value = {};                      // of a fetch
  ReleaseForks release_forks = {};    // called if the request ends without a reply
  std::optional<Error> failure = {};  // what it fails with at its deadline; none: BP_TIMEOUT
  uint64_t request_bytes = 0;
};

class CallTable {
 public:
  static constexpr int32_t kAnyPeer = -1;

  // `expired` is called once, on the table's thread, for each call whose deadline has passed.
  explicit CallTable(std::function<void(uint64_t number)> expired) : expired_(std::move(expired)) {}
  ~CallTable();
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  // Returns the call's number. Throws the reason after close.
  uint64_t add(Call call, Deadline deadline);
  bool contains(uint64_t number) const;
  // Sets what releases the forks of the message that is about to be sent. False if the call has ended.
  bool set_release_forks(uint64_t number, ReleaseForks release);
  // Removes and returns it. Empty if there is none or the call has ended.
  ReleaseForks take_release_forks(uint64_t number);
  // Removes the call. None if it has ended, or is one to another peer.
  std::optional<Call> take(uint64_t number, int32_t to = kAnyPeer);
  // The call fails with `why` at `deadline`, unless it ends before.
  void fail_at(uint64_t number, int32_t to, const Error& why, Deadline deadline);
  // The same for all present calls to a peer with numbers up to `last`. Takes constant time; the thread visits the
  // calls at the deadline.
  void fail_all_at(int32_t to, const Error& why, Deadline deadline, uint64_t last = UINT64_MAX);
  // Refuses further calls. Returns the numbers of the present ones, which the caller must end.
  std::vector<uint64_t> close(const Error& why);
  // Ends the thread: waits for a running `expired`. Call after close, not within `expired`.
  void stop();

  struct Counts {
    uint64_t active = 0;
    uint64_t begun = 0;  // in total
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
    bool expired = false;  // reported, or about to be
  };
  // A call of fail_all_at.
  struct PeerFailure {
    int32_t to = -1;
    uint64_t last = 0;
    Error why;
    Deadline at;
    uint64_t visited = 0;  // the last call visited since the deadline
  };

  using Due = std::pair<Deadline::Clock::time_point, uint64_t>;  // a call's deadline, its number

  void schedule(Deadline deadline, uint64_t number);
  static void apply(const PeerFailure& failure, uint64_t number, Entry* entry);
  static void expire(uint64_t number, Entry* entry, std::vector<uint64_t>* late);
  bool visit_failures(Deadline::Clock::time_point now, std::vector<uint64_t>* late);
  bool visit_heap(Deadline::Clock::time_point now, std::vector<uint64_t>* late);
  bool visit(std::vector<uint64_t>* late);
  void run();

  const std::function<void(uint64_t)> expired_;
  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::map<uint64_t, Entry> calls_;     // by number, so that they can be visited in batches
  std::list<PeerFailure> failures_;     // in the order in which they were recorded
  std::vector<Due> due_;                // min-heap; contains stale entries of calls that ended or got another deadline
  Deadline alarm_ = Deadline::never();  // when the thread wakes up
  uint64_t last_ = 0;
  std::optional<Error> closed_;
  bool stop_ = false;
  std::thread thread_;  // started by the first call
};

}  // namespace backplane::core::rpc
