/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that the receiver reads in place, in the sender's heap or process: Outbox::revoke and Inbox::has_revoked
 * (transport.cpp), Sender::withdraw and on_ready (sender.cpp), Receiver::accept, fetch, put_replies and withdraw
 * (receiver.cpp).
 *
 * A sender announces messages one after the other, waits for each or cancels it, and then writes another value into its
 * buffer. The buffer is one cell, which holds the message's number. Reading it takes two steps, or fails, as reading
 * another process may. The channel keeps the order and is never full. Memory is sequentially consistent here: both
 * sides have a full fence between the buffer and the count.
 *
 * Properties: each received message is complete, and received at most once and in order; a send that is done was
 * received; no rank waits forever. Mutants:
 *   -DNO_REVOKE    the sender does not count a cancelled send
 *   -DLATE_REVOKE  it counts after it has written into the buffer
 *   -DNO_CHECK     the receiver does not check the count
 *   -DEARLY_CHECK  it checks the count before it reads
 *   -DNO_SEND      it requests nothing if the count has changed
 */
#ifndef kTimes
#define kTimes 3
#endif
#define kOther 100 /* what the program writes into the buffer after the send */

mtype = {announce, data, withdraw, send_it, drop_it};
chan to_receiver = [8] of {mtype, byte, byte}; /* kind, id; announce: the count; data: the message */
chan to_sender = [8] of {mtype, byte};

byte buffer = kOther;
byte revoked;
byte received; /* number of the last message */

active proctype sender() {
  byte id, answered, others;
  mtype kind;
  bool is_over;
  do
  :: id == kTimes -> break
  :: else ->
    id++;
    buffer = id;
    to_receiver!announce, id, revoked;
    is_over = false;
    do
    :: !is_over && nempty(to_sender) ->
      to_sender?kind, answered;
      if
      :: answered != id /* cancelled meanwhile */
      :: answered == id && kind == drop_it ->
        assert(received == id);
        is_over = true
      :: answered == id && kind == send_it ->
        to_receiver!data, id, buffer;
        is_over = true
      fi
    :: !is_over && others < kTimes -> /* another message of this channel was cancelled */
      others++;
      revoked++
    :: !is_over && id < kTimes -> /* cancels it */
#ifdef LATE_REVOKE
      buffer = kOther;
#endif
#ifndef NO_REVOKE
      revoked++;
#endif
      buffer = kOther;
      to_receiver!withdraw, id, 0;
      is_over = true
    :: is_over -> break
    od;
    buffer = kOther
  od
}

inline deliver(what, number) {
  assert(what == number);   /* the buffer held this message */
  assert(number > received);
  received = number
}

active proctype receiver() {
  byte id, count, first, second, seen, message;
  mtype kind;
  do
  :: received == kTimes -> break
  :: else ->
    to_receiver?kind, id, count;
    if
    :: kind == data -> deliver(count, id)
    :: kind == withdraw /* also of a received message */
    :: kind == announce ->
#ifdef EARLY_CHECK
      seen = revoked;
#endif
      first = buffer;
      second = buffer;
#ifndef EARLY_CHECK
      seen = revoked;
#endif
#ifdef NO_CHECK
      seen = count;
#endif
      if
      :: seen == count -> kind = drop_it
      :: seen != count -> kind = send_it
      :: true -> kind = send_it /* reading failed */
      fi;
      if
      :: kind == drop_it ->
        assert(first == second);
        deliver(first, id);
        to_sender!drop_it, id
      :: kind == send_it ->
#ifndef NO_SEND
        to_sender!send_it, id
#endif
      fi
    fi
  od
}
