// SPDX-License-Identifier: Apache-2.0
//
// Matches the messages to one rank with its receives, by the rules of abi/op.h. A receive takes the oldest message of
// its source and tag. A message is matched to the oldest such receive. All 64 bits of a tag count. BP_ANY_TAG matches
// user tags. A message that is longer than its receive fails the receive with BP_INVALID.
//
// Messages arrive in three ways:
//   put       from a sender in this process. A small message is copied and its send is done at once (eager). A large
//             message, or any message to a full mailbox, stays in the sender's buffer until it is received
//             (rendezvous). This bounds the memory of unexpected messages.
//   deliver   from a wire, whole.
//   announce  from a wire, without its data, which is fetched when a receive has taken the message.
//
// A probed message is held for one take or drop. An eager one keeps its bytes. Any other stays with its sender, which
// may cancel it or be lost; its receive then fails. close ends all held messages.
//
// All functions are thread-safe and none blocks. Callbacks run under the mailbox's lock: they must not call the mailbox
// or wait for a thread that does.
#pragma once

#include <algorithm>
#include <atomic>
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "completion.hpp"
#include "probe.hpp"
#include "tagged_lists.hpp"

namespace backplane::sdk {

// A posted receive.
struct Receive {
  int32_t source = BP_ANY_SOURCE;
  uint64_t tag = 0;
  void* data = nullptr;
  uint64_t capacity = 0;                 // bytes
  bp_result* result = nullptr;           // may be null
  std::shared_ptr<Completion> received;  // settled when the message is in `data`; made by take if it is null
  int64_t order = 0;                     // set by take: older receives have smaller numbers
  bool is_probed = false;                // set by take: it matches only its probed message
};

class Mailbox {
 public:
  static constexpr uint64_t kEagerLimit = UINT64_C(8) * 1024;       // bytes of one message
  static constexpr uint64_t kCapacity = UINT64_C(4) * 1024 * 1024;  // bytes of all waiting eager messages
  using Bytes = std::vector<std::byte>;
  // Called once: fetches the announced message into the receive, or discards it (nullptr: its receive is too small).
  // `result` is already written. Returns false if the message was withdrawn: the receive then waits for another one.
  using Fetch = std::function<bool(Receive* receive)>;
  // Returns an owner that keeps a delivered message's data where it is.
  using Keep = std::function<std::shared_ptr<const void>()>;

  // The limits apply to messages from `put`.
  explicit Mailbox(uint64_t eager_limit = kEagerLimit, uint64_t capacity = kCapacity)
      : eager_limit_(eager_limit), capacity_(capacity) {}

  // A message from `source` in a buffer of this process. Returns the completion to await before the buffer is reused;
  // null if the message is already delivered or copied.
  std::shared_ptr<Completion> put(int32_t source, uint64_t tag, const void* data, uint64_t size);

  // A whole message from a wire; never refused. If no receive matches yet, it is copied or kept by `keep` (may be
  // empty). `on_taken` (may be empty) is called when a receive has taken it, for flow control.
  void deliver(int32_t source, uint64_t tag, std::span<const std::byte> data, std::function<void()> on_taken = {},
               const Keep& keep = {});

  // A message of `size` bytes that can be fetched. `id` is for withdraw. Never refused.
  void announce(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place_announced(source, tag, size, id, std::move(fetch), ++next_order_);
  }
  // The same for a message whose receive was cancelled: it becomes the oldest.
  void announce_again(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place_announced(source, tag, size, id, std::move(fetch), -++next_order_);
  }
  // Removes an announced message. Returns false if there is none.
  bool withdraw(int32_t source, uint64_t id);

  // Posts a receive. The returned completion settles when a message has been copied into receive.data.
  std::shared_ptr<Completion> take(Receive receive);
  // Posts a receive again, with its old order, because its message was withdrawn. A receive of a probed message fails.
  void restore(Receive receive) {
    if (receive.is_probed) return receive.received->fail(taken_back_);
    post(std::move(receive));
  }

  // Takes out the oldest message that such a receive would match, and describes it in `result`. NULL: there is none.
  // Throws the Failure of such a receive.
  bp_message* probe(int32_t source, uint64_t tag, bp_result& result);
  // Like take, for a probed message; the receive's source and tag are ignored.
  std::shared_ptr<Completion> take(bp_message* message, Receive receive);
  // Discards a probed message. Its send is done.
  void drop(bp_message* message) noexcept;

  // Fails the waiting send or receive of this completion with BP_CANCELLED. Returns false if there is none. Does not
  // allocate.
  bool cancel(const Completion* which) noexcept;

  // Fails all waiting and later operations: receives with `why`, sends with `for_senders`. Only the first call has an
  // effect.
  void close(const Failure& why, const Failure& for_senders);

  // Fails the waiting messages of one rank, and the receives that name it, now and later. Messages that it had
  // delivered, or put eagerly, can still be received, as can announced ones for whose id `keep` (may be empty) returns
  // true. `others`: number of ranks besides this mailbox's own.
  void drop_peer(int32_t rank, const Failure& why, size_t others, const std::function<bool(uint64_t id)>& keep = {});

 private:
  // Not yet taken by a receive. Either `sent` or `fetch` is set, or the bytes are in `copy` or `owner`.
  struct Message {
    int32_t source = -1;
    uint64_t tag = 0;
    const void* data = nullptr;
    uint64_t size = 0;  // bytes
    int64_t order = 0;  // older ones have smaller numbers
    Bytes copy;
    std::shared_ptr<const void> owner;
    std::shared_ptr<Completion> sent;  // rendezvous: settled when it is received
    std::function<void()> on_taken;
    Fetch fetch;
    uint64_t id = 0;
    bool counted = false;         // in eager_bytes_
    std::optional<Failure> lost;  // held messages: why it cannot be received
  };
  using Messages = TaggedLists<Message>;
  using Receives = TaggedLists<Receive>;

  static bool deliver_to(Message& message, Receive& receive);
  std::optional<Receives::Position> receive_for(const Message& message);
  std::optional<Messages::Position> message_for(int32_t source, uint64_t tag);
  bool match(Message& message);
  void place_announced(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch, int64_t order);
  void post(Receive receive);
  std::list<Message>::iterator find_held(const bp_message* message);
  static void mark_lost(Message& message, const Failure& why);
  const Failure* reason_to_fail(int32_t source) const;

  const uint64_t eager_limit_;
  const uint64_t capacity_;
  const Failure cancelled_{BP_CANCELLED, "cancelled by this rank"};
  const Failure taken_back_ = taken_back();
  std::atomic<int64_t> next_order_ = 0;
  std::mutex mutex_;
  Messages messages_;
  std::list<Message> held_;  // by probe
  Receives receives_;
  uint64_t eager_bytes_ = 0;
  std::map<int32_t, Failure> lost_peers_;
  std::optional<Failure> all_lost_;
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
