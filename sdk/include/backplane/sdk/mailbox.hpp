// SPDX-License-Identifier: Apache-2.0
//
// Where the messages to one rank meet its receives, by the rules of abi/op.h: a receive takes the oldest message that
// matches its source and tag, a message goes to the oldest receive that matches, all 64 bits of a tag count, BP_ANY_TAG
// matches those of users, and a message that is too long ends its receive with BP_INVALID.
//
// Messages come in three ways:
//   put       from a sender in this process. A small one is copied and its send is done at once (eager); a large one,
//             or one that finds the mailbox full, waits in the sender's buffer for its receive (rendezvous), so that a
//             flood of unexpected messages takes bounded memory.
//   deliver   from a wire, whole, in memory that the mailbox now owns.
//   announce  from a wire, as a promise: its data is fetched when a receive has taken it.
//
// A message that `probe` took out is held for one take or drop. It stays what it is: an eager one keeps its bytes, any
// other stays with its sender, who may still cancel it or be lost. Its receive fails then, for it cannot wait for
// another message. close ends all that is held.
//
// All functions may be called from any thread and none blocks. Callbacks run under the mailbox's lock: they must not
// call the mailbox, nor wait for somebody who does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "completion.hpp"
#include "probe.hpp"

namespace backplane::sdk {

// A receive on its way to a message.
struct Receive {
  int32_t source = BP_ANY_SOURCE;
  uint64_t tag = 0;
  void* data = nullptr;
  uint64_t capacity = 0;                 // bytes
  bp_result* result = nullptr;           // may be null
  std::shared_ptr<Completion> received;  // settled when the message is in `data`; made by take if it is null
  uint64_t order = 0;                    // set by take: older receives have smaller numbers
  bool is_probed = false;                // set by take: its message came from probe, and no other will do
};

class Mailbox {
 public:
  static constexpr uint64_t kEagerLimit = UINT64_C(8) * 1024;       // bytes of one message
  static constexpr uint64_t kCapacity = UINT64_C(4) * 1024 * 1024;  // bytes of all eager messages that wait here
  using Bytes = std::vector<std::byte>;
  // Told once that the receive is to be filled with the announced message; or, with nullptr, that nobody wants it (its
  // receive was too small for it). `result` is already written. False: the message does not exist any more, and the
  // receive goes on as if it never had.
  using Fetch = std::function<bool(Receive* receive)>;

  // A message from `source` in a buffer of this process. Returns what the sender has to wait for before it may reuse
  // the buffer; null if the message is delivered or copied already.
  std::shared_ptr<Completion> put(int32_t source, uint64_t tag, const void* data, uint64_t size);

  // A whole message from a wire; never refused. `on_taken` (may be empty) is told when a receive has it, so that
  // whoever counts the bytes that wait here can let more come.
  void deliver(int32_t source, uint64_t tag, Bytes bytes, std::function<void()> on_taken = {});

  // A message of `size` bytes that can be fetched. `id` is for withdraw. Never refused.
  void announce(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place({source, tag, nullptr, size, {}, nullptr, {}, std::move(fetch), id, false, {}}, false);
  }
  // The same for a message that a receive had taken and gave back: it is the oldest again.
  void announce_again(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place({source, tag, nullptr, size, {}, nullptr, {}, std::move(fetch), id, false, {}}, true);
  }
  // Takes an announced message back. False if it is not here (any more).
  bool withdraw(int32_t source, uint64_t id);

  // Posts a receive. Its completion, which this returns, settles when a message has been copied into receive.data.
  std::shared_ptr<Completion> take(Receive receive);
  // Posts a receive again whose message was withdrawn; it keeps its place among the others. One whose message was
  // probed fails.
  void restore(Receive receive) {
    if (receive.is_probed) return receive.received->fail(taken_back_);
    post(std::move(receive));
  }

  // Takes out the oldest message that such a receive would get, and says in `result` what it is. NULL: there is none.
  // Throws what the receive would fail with.
  bp_message* probe(int32_t source, uint64_t tag, bp_result& result);
  // Like take, but of this message; the receive's source and tag do not count.
  std::shared_ptr<Completion> take(bp_message* message, Receive receive);
  // Drops it; its sender is done.
  void drop(bp_message* message) noexcept;

  // Fails the send or receive of this completion with BP_CANCELLED if it is still waiting here. False: it is not. Needs
  // no memory.
  bool cancel(const Completion* which) noexcept;

  // Fails everything that waits here and everything that comes: receives with `why`, what others put with
  // `for_senders`. Only the first call counts.
  void close(const Failure& why, const Failure& for_senders);

  // Fails the messages of one rank that wait here for their receive, and the receives that name it, now and later. What
  // it had delivered, or put eagerly, can still be received, and so can announced messages for which `keep` (may be
  // empty) answers true to their id. `others`: how many ranks there are beside this mailbox's own.
  void drop_peer(int32_t rank, const Failure& why, size_t others, const std::function<bool(uint64_t id)>& keep = {});

 private:
  // One that no receive has taken yet. Either `sent` or `fetch` is set, or the bytes are in `copy`.
  struct Message {
    int32_t source = -1;
    uint64_t tag = 0;
    const void* data = nullptr;  // put by rendezvous: the sender's buffer; else copy.data()
    uint64_t size = 0;           // bytes
    Bytes copy;
    std::shared_ptr<Completion> sent;  // rendezvous: settled when the receive has it
    std::function<void()> on_taken;
    Fetch fetch;
    uint64_t id = 0;
    bool counted = false;         // in eager_bytes_
    std::optional<Failure> lost;  // of one that is held: why it cannot be received any more
  };

  static bool matches(const Receive& receive, const Message& message) {
    return matches_tag(receive.tag, message.tag) &&
           (receive.source == BP_ANY_SOURCE || receive.source == message.source);
  }
  static bool hand_over(Message& message, Receive& receive);
  std::list<Receive>::iterator receive_for(const Message& message) {
    return std::find_if(receives_.begin(), receives_.end(),
                        [&message](const Receive& r) { return matches(r, message); });
  }
  bool meet(Message& message);
  void place(Message message, bool oldest);
  void post(Receive receive);
  void forget(std::list<Message>::iterator message);
  std::list<Message>::iterator find_held(const bp_message* message);
  static void lose(Message& message, const Failure& why);
  const Failure* reason_to_fail(int32_t source) const;

  const Failure cancelled_{BP_CANCELLED, "cancelled by this rank"};
  const Failure taken_back_ = taken_back();
  std::mutex mutex_;
  std::list<Message> messages_;  // oldest first
  std::list<Message> held_;      // by probe
  std::list<Receive> receives_;  // by `order`
  uint64_t eager_bytes_ = 0;
  uint64_t next_order_ = 0;
  std::map<int32_t, Failure> gone_;  // ranks that have left
  std::optional<Failure> nobody_left_;
  std::optional<Failure> closed_;  // set by close: for receives
  std::optional<Failure> closed_for_senders_;
};

// "backplane.probe/1" for the messages of one mailbox, which must outlive it.
class MailboxProbe final : public ProbeTable {
 public:
  explicit MailboxProbe(Mailbox& mailbox) : mailbox_(mailbox) {}
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override {
    return mailbox_.probe(peer, tag, result);
  }
  void drop(bp_message* message) noexcept override { mailbox_.drop(message); }

 private:
  Mailbox& mailbox_;
};

}  // namespace backplane::sdk

#include "mailbox_impl.hpp"
