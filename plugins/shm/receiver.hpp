// SPDX-License-Identifier: Apache-2.0
//
// The announced messages of one peer, from the receive that takes one until it is complete. It is read in place, or the
// peer is asked to send it. A message read in place counts as received only when its reply is in the channel, because
// this rank may leave the group, or never poll it again.
//
// A message stays here after its receive was cancelled: the rest is stashed for the next matching receive, or
// discarded. Every caller holds the lock of Messages.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "completions.hpp"
#include "in_place.hpp"
#include "transport.hpp"

namespace backplane::shm {

class Receiver {
 public:
  // `in_place` and `completions` must outlive this object.
  Receiver(int32_t peer, const Inbox& in, InPlace& in_place, Completions& completions)
      : peer_(peer), in_(in), in_place_(in_place), completions_(completions) {}
  Receiver(Receiver&&) = default;  // not copyable

  Inbox& inbox() { return in_; }

  // The message of an announcement; nullopt if that is malformed.
  std::optional<Message> announced(const Arrival& arrival);
  // Lets a receive take an announced message, or fails it if the message is too long. Leaves a reply or a part to
  // fetch.
  void accept(const Message& announced, Operation& receive);
  // No receive will take this announced message.
  void decline(uint64_t id) { replies_.push_back({id, false}); }
  // Takes a piece. Returns false if it is malformed.
  bool on_data(const Arrival& arrival);
  // Reads the next part of a message in place. Returns true if there is a reply afterwards.
  bool fetch() { return !to_fetch_.empty() && fetch_part(); }
  // Puts the replies that are due into the channel. Returns false if some find no room. Throws BP_RESOURCE.
  bool put_replies(Outbox& out);
  bool owes_replies() const { return !replies_.empty(); }

  // The receive is cancelled. Returns its message, whose bytes so far are stashed. Throws std::bad_alloc, without
  // effect.
  Message stash(const Operation& receive);
  // Lets a receive take over a stashed message.
  void resume(uint64_t id, Operation& receive);
  // Drops the bytes of a message, now and later. It has no receive any more.
  void discard(uint64_t id);
  // The peer has withdrawn a message. Returns the receive that had taken it, or null.
  Operation* withdraw(uint64_t id);

  // Whether all bytes of a message are here, and the peer knows.
  bool has_joined(uint64_t id) const { return incoming_.at(id).has_joined(); }
  // The peer is lost: fails the receives, forgets the messages that cannot be completed.
  void fail_all(const sdk::Failure& why);

 private:
  struct Incoming {
    uint64_t tag;
    uint64_t size;
    uint64_t offset;      // bytes received
    Operation* receive;   // null: the bytes go to the stash
    RemoteBuffer remote;  // where to read it, unless it is sent
    std::unique_ptr<std::byte[]> stash;
    bool is_discarded = false;      // too large for its receive, or no memory to stash it
    bool is_reply_pending = false;  // all bytes are here, but the reply is not yet in the channel
    bool has_joined() const { return offset == size && !is_reply_pending; }
    void fall_back() {  // the message is to be sent after all
      remote = {};
      offset = 0;
    }
    std::byte* room() const {  // where the next bytes go; null: discarded
      if (receive != nullptr) return receive->data + offset;
      return is_discarded ? nullptr : stash.get() + offset;
    }
  };
  struct Reply {
    uint64_t id;
    bool is_needed;  // the peer is to send the message
  };

  Message make_message(Message::State state, uint64_t tag, uint64_t size, uint64_t id) const;
  void assign(Operation& receive, uint64_t id) const;
  bool fetch_part();
  void complete(uint64_t id);

  const int32_t peer_;
  Inbox in_;
  InPlace& in_place_;
  Completions& completions_;
  std::deque<Reply> replies_;              // waiting for room
  std::map<uint64_t, Incoming> incoming_;  // by id
  std::deque<uint64_t> to_fetch_;          // of `incoming_`: to be read in place
  uint64_t last_id_ = 0;                   // of the announcements; ids must increase
};

}  // namespace backplane::shm
