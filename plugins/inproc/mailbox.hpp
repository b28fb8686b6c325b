// SPDX-License-Identifier: Apache-2.0
//
// Where messages and receives of one rank meet. A small message is copied and its send is done at once (eager); a large
// one, or one that finds the mailbox full, waits in the sender's buffer for its receive (rendezvous), so that a flood
// of unexpected messages takes bounded memory.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backplane/sdk/sdk.hpp"

namespace backplane::inproc {

inline constexpr uint64_t kEagerLimit = UINT64_C(8) * 1024;  // bytes of one message
inline constexpr uint64_t kMailboxLimit =
    UINT64_C(4) * 1024 * 1024;  // bytes of all eager messages waiting in one mailbox

// A message that no receive has taken yet.
struct Message {
  int32_t source = -1;
  uint64_t tag = 0;
  const void* data = nullptr;  // the sender's buffer, or copy.data()
  uint64_t size = 0;           // bytes
  std::vector<std::byte> copy;
  std::shared_ptr<sdk::Completion> sent;  // rendezvous: settled when the receive has it; else null
};

// A receive that no message has met yet.
struct Receive {
  int32_t source = BP_ANY_SOURCE;
  uint64_t tag = 0;
  void* data = nullptr;
  uint64_t capacity = 0;  // bytes
  bp_result* result = nullptr;
  std::shared_ptr<sdk::Completion> received;
};

class Mailbox {
 public:
  // Returns what the sender has to wait for, null if the message is delivered or copied already.
  std::shared_ptr<sdk::Completion> put(int32_t source, uint64_t tag, const void* data, uint64_t size);
  // The completion settles when a message has been copied into receive.data. Null if that has happened.
  std::shared_ptr<sdk::Completion> take(Receive receive);
  // Fails the send or receive of this completion with BP_CANCELLED if it is still waiting here.
  void cancel(const sdk::Completion* which);
  // Fails everything that waits here and everything that comes: receives with `why`, what others send with
  // `for_senders`.
  void close(const sdk::Failure& why, const sdk::Failure& for_senders);
  // Fails the messages of one rank that wait here for their receive, and the receives that name it, now and later. What
  // it had sent eagerly can still be received. `others`: how many ranks there are beside this mailbox's own.
  void drop_peer(int32_t rank, const sdk::Failure& why, size_t others);

 private:
  static void deliver(const Message& message, const Receive& receive);

  std::mutex mutex_;
  std::list<Message> messages_;  // oldest first
  std::list<Receive> receives_;
  uint64_t eager_bytes_ = 0;
  std::map<int32_t, sdk::Failure> gone_;  // ranks that have left
  std::optional<sdk::Failure> nobody_left_;
  std::optional<sdk::Failure> closed_;  // set by close: for receives
  std::optional<sdk::Failure> closed_for_senders_;
};

}  // namespace backplane::inproc
