// SPDX-License-Identifier: Apache-2.0
//
// Receives of any source over several agents (composite.hpp). One of them, the outermost, gets such a receive as its
// own: it is *posted*. The others are *probed*: a matched probe takes a message without a buffer. If a probe finds a
// message while the receive is posted, the posted receive is cancelled. If that one got a message nevertheless, its
// message counts, and the probed one is *kept* for the next receive that matches it. No message is lost, and those of
// one sender stay in order:
// - Receives are served in the order of their submission. While one waits, later receives from the probed agents that
//   could take the same messages wait behind it (must_queue).
// - A kept message is older than those that the agents still have, so receives look for kept ones first.
//
// One thread, started with the first receive that waits, serves them also while the program makes no calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "deadline.hpp"
#include "group/composite_part.hpp"

namespace backplane::core {

class AnySource {
 public:
  class Receive;

  // Both must outlive this object.
  AnySource(std::vector<CompositePart*> probed, CompositePart* posted) : probed_(std::move(probed)), posted_(posted) {}
  // No receive may be left.
  ~AnySource();
  AnySource(const AnySource&) = delete;
  AnySource& operator=(const AnySource&) = delete;

  // Whether a receive from `part` must be submitted here because it could take messages of others. Any thread.
  bool must_queue(const CompositePart& part, const bp_op& op);
  // Submits a receive from any source, or from a peer in `only`. Returns NULL and its status if it ended at once.
  std::shared_ptr<Receive> submit(const bp_op& op, CompositePart* only, int32_t* status, bp_error* err);
  // As work_wait; 0 does not wait.
  int32_t wait(Receive& receive, Deadline deadline, bp_error* err);
  void cancel(Receive& receive);
  // After the agents were aborted: ends all receives that wait for nothing of theirs. Takes no lock.
  void abort(const bp_error& why);
  // Calls `ended(to)` once the receive has ended.
  void on_end(Receive& receive, void (*ended)(void*), void* to);
  // As bp_probe_api. The message's part is set.
  int32_t probe(int32_t peer, uint64_t tag, CompositePart** part, bp_message** message, bp_result* result,
                bp_error* err);

 private:
  struct Kept {
    CompositePart* part;
    bp_message* message;
    bp_result result;  // in the numbers of the group
  };

  void progress();  // with mutex_ held, as the following
  bool advance(Receive& receive, const std::vector<Receive*>& before);
  bool take(Receive& receive, const std::vector<Receive*>& before);
  void begin(Receive& receive);
  void receive_probed(Receive& receive);
  void end(Receive& receive, int32_t status);
  void end_from(Receive& receive, const CompositePart& part, int32_t status, const bp_error& err);
  bool closed(const Receive& receive) const;
  bool end_aborted(Receive& receive);
  int32_t report(const Receive& receive, bp_error* err) const;
  void ensure_thread();
  void serve();

  const std::vector<CompositePart*> probed_;
  CompositePart* const posted_;
  std::atomic<bool> active_ = false;  // a receive waits, or a message is kept
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Receive>> receives_;  // by submission
  std::list<Kept> kept_;                          // the oldest first
  bool stopping_ = false;
  bp_error cause_ = {};  // of the abort
  std::atomic_flag abort_begun_;
  std::atomic<bool> aborted_ = false;  // cause_ is set
  std::thread thread_;
};

// A receive that waits. Guarded by the mutex of its AnySource.
class AnySource::Receive {
 public:
  Receive(const bp_op& given, CompositePart* from) : op(given), only(from) {}

  bp_op op;             // in the numbers of the group
  CompositePart* only;  // NULL: from any source
  bool ended = false;
  bool cancelled = false;
  // The posted receive.
  bp_work* posted = nullptr;
  bool posted_closed = false;  // it failed because no peer is left there
  // The message of a probe, then its receive.
  CompositePart* part = nullptr;
  bp_message* message = nullptr;
  bp_work* work = nullptr;
  std::vector<const CompositePart*> closed;          // probed parts in which no peer is left
  bp_result probed = {sizeof(bp_result), -1, 0, 0};  // of the message, in the numbers of the group
  bool is_probe = false;                             // the program probes: the message is not received
  bp_result result = {sizeof(bp_result), -1, 0, 0};  // of the receive
  bp_error error = {};
  void (*notice)(void*) = nullptr;
  void* notice_to = nullptr;
};

}  // namespace backplane::core
