// SPDX-License-Identifier: Apache-2.0
//
// The messages in progress, in both directions: those in several parts, and those that wait for a receipt. Their order
// decides when a goodbye may end. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "backplane/sdk/failure.hpp"

namespace backplane::process_group {

// The sender of a message and its number there; later messages have larger ones.
using MessageKey = std::pair<int32_t, uint64_t>;
// The key of a message from this worker to that peer.
inline MessageKey key_of_sent(int32_t to, uint64_t number) { return {-1 - to, number}; }
inline int32_t destination_of(const MessageKey& sent) { return -1 - sent.first; }

class MessagesInProgress {
 public:
  void begin(const MessageKey& key);
  // A message of this worker in several parts, which its receiver can refuse before all are sent.
  void begin_refusable(const MessageKey& key);
  void end(const MessageKey& key);

  // Waits at most this long until no earlier message is in progress, nor the message itself. Returns true if so, or if
  // nothing can end it any more.
  bool is_first(const MessageKey& key, int64_t slice_ns);
  // Whether the receiver has refused the message, or its sender has withdrawn it.
  bool is_abandoned(const MessageKey& key) const;
  // The receiver refuses a message of this worker. Returns false if it is not refusable, or not any more.
  bool refuse(uint64_t number, const sdk::Failure& why);
  // No refusal of the message is accepted any more. Returns the one that has arrived.
  std::optional<sdk::Failure> take_refusal(uint64_t number);
  // Returns true the first time for a message of this worker: its receiver may refuse it after it was withdrawn.
  bool note_failed(uint64_t number);

  // No receipt or refusal arrives any more.
  void end_receipts();
  // Nothing ends any more.
  void abort();

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::set<MessageKey> in_progress_;
  std::map<uint64_t, std::optional<sdk::Failure>> refusable_;  // by number, with their refusals
  std::set<uint64_t> failed_;                                  // the last ones
  bool receipts_ended_ = false;
  bool is_aborted_ = false;
};

}  // namespace backplane::process_group
