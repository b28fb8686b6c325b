/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages whose bytes their receiver reads in the sender's heap or process: Outbox::revoke and Inbox::has_revoked
 * (transport.cpp), Messages::cancel_send (messages.cpp), on_announce, fetch, on_ready, on_withdraw (messages_*.cpp).
 *
 * A sender announces messages one after the other, waits for each or gives it up as it likes, and then writes something
 * else into its buffer. The buffer is one cell, which holds the message's number, and is read in two halves, since
 * copying takes its time; or it cannot be read, as memory of a process may not be, or not any more. What the two put
 * into the channel arrives in order, and there is room. Memory is as if all saw one order: both sides have a full fence
 * between the buffer and the count.
 *
 * What must hold: what is received is a message, whole, and each is received at most once and in order; a send that is
 * done was received; nobody waits for ever. Mutants:
 *   -DNO_REVOKE    whoever gives up a send does not count it
 *   -DLATE_REVOKE  it counts it after it has written into the buffer
 *   -DNO_CHECK     the receiver believes what it has read
 *   -DEARLY_CHECK  it looks at the count before it reads
 *   -DNO_SEND      it asks for nothing, if the count has changed
 */
#ifndef kTimes
#define kTimes 3
#endif
#define kOther 100 /* what the program writes into the buffer when it has it back */

mtype = {announce, data, withdraw, send_it, drop_it};
chan to_receiver = [8] of {mtype, byte, byte}; /* kind, id; of an announcement the count, of data the message */
chan to_sender = [8] of {mtype, byte};

byte buffer = kOther;
byte revoked;
byte received; /* the last message */

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
      :: answered != id /* it was withdrawn meanwhile */
      :: answered == id && kind == drop_it ->
        assert(received == id);
        is_over = true
      :: answered == id && kind == send_it ->
        to_receiver!data, id, buffer;
        is_over = true
      fi
    :: !is_over && others < kTimes -> /* another message of this channel was given up */
      others++;
      revoked++
    :: !is_over && id < kTimes -> /* gives up */
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
  assert(what == number);   /* that message, and nothing else */
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
    :: kind == withdraw /* of one that was received, too */
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
      :: true -> kind = send_it /* it could not be read, or not to its end */
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
