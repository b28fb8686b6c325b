/* SPDX-License-Identifier: Apache-2.0
 *
 * One channel of messages: Outbox and Inbox (transport.cpp), Protocol::pull (protocol.cpp), and a sender that
 * sleeps until there is room. Small: kHeads heads, kRing units of bytes; messages of 0 to 2 units, in one piece that
 * does not wrap, of any length in any order. waiting.pml shows that a sleeper that counts itself in time is woken.
 *
 * The sender's stores become visible in their order (x86-TSO). Only the receiver's stores pass through a buffer here,
 * since its check whether the sender is blocked may overtake them.
 *
 *   -DLIGHT        release publishes without a fence; the sleeper's membarrier empties the buffer
 *
 * Properties: each message is read once, complete and in order, and is not overwritten before it is read. Mutants:
 *   -DEARLY_TURN   the turn is written before the bytes
 *   -DEARLY_ROOM   one head more than there is counts as free
 *   -DEARLY_BYTES  one unit more counts as free
 *   -DEARLY_POP    a message is released before it is read
 *   -DNO_RECHECK   the sender sleeps without checking for room again after it has set `blocked`
 *   -DNO_FENCE     no fences
 */
#define kHeads 2
#define kRing 3
#define kMessages 5
#ifdef EARLY_ROOM
#define kFreeHeads (kHeads + 1)
#else
#define kFreeHeads kHeads
#endif
#ifdef EARLY_BYTES
#define kFreeBytes (kRing + 1)
#else
#define kFreeBytes kRing
#endif

byte turn[kHeads], length[kHeads]; /* Head */
byte bytes[kRing];                 /* Channel::data; each unit holds the number of its message */
byte read_heads, read_bytes;       /* Channel, as others see them */
bool blocked;                      /* Channel */
byte rings;                        /* the sender's Doorbell */

mtype = { kHeadsRead, kBytesRead };
chan buffer = [4] of { mtype, byte }; /* the receiver's store buffer */

active proctype drain() {
  byte value;
end:
  do
  :: d_step { buffer ? kHeadsRead, value -> read_heads = value }
  :: d_step { buffer ? kBytesRead, value -> read_bytes = value }
  od
}

#define offset(position) ((position) % kRing)
/* RingSpan::after */
#define begin_of(position, size) (offset(position) + size > kRing -> position + kRing - offset(position) : position)

#define has_room() (next - read_heads < kFreeHeads && begin_of(position, size) + size - read_bytes <= kFreeBytes)

active proctype sender() {
  byte next, position, size, i, seen_rings;
  do
  :: next == kMessages -> break
  :: else ->
    select (size : 0 .. 2);
    do /* put_piece; has_head and has_bytes read one word each; both words only grow */
    :: has_room() -> break
    :: else ->
      if
      :: !blocked -> blocked = true /* ask_for_room; checks again */
#ifdef NO_RECHECK
        ; seen_rings = rings; rings != seen_rings
#endif
      :: else ->
        /* Waiter::until: counts itself and fences before it checks again */
#if defined(LIGHT) && !defined(NO_FENCE)
        empty(buffer);
#endif
        seen_rings = rings;
        if
        :: has_room() -> break
        :: !has_room() && !blocked /* sets `blocked` again */
        :: else -> rings != seen_rings
        fi
      fi
    od;
    position = begin_of(position, size);
    i = 0;
#ifdef EARLY_TURN
    turn[next % kHeads] = next + 1;
#endif
    do
    :: i < size -> bytes[offset(position + i)] = next + 1; i++
    :: else -> break
    od;
    position = position + size;
    length[next % kHeads] = size;
#ifndef EARLY_TURN
    turn[next % kHeads] = next + 1;
#endif
    next++
  od
}

inline release() {
  buffer ! kBytesRead, position;
  buffer ! kHeadsRead, next;
#if !defined(LIGHT) && !defined(NO_FENCE)
  empty(buffer);
#endif
  released = next;
  if
  :: blocked -> atomic { empty(buffer) -> blocked = false }; rings++
  :: else
  fi
}

active proctype receiver() {
  byte next, position, size, i, released;
  do
  :: next == kMessages -> break
  :: else ->
    if
    :: turn[next % kHeads] == next + 1 -> skip
    :: else ->
      if
      :: released != next -> release() /* no message is left: releases those it has read before it sleeps */
      :: else
      fi;
      turn[next % kHeads] == next + 1
    fi;
    size = length[next % kHeads];
    position = begin_of(position, size);
#ifdef EARLY_POP
    position = position + size; next++; release(); next--; position = position - size;
#endif
    i = 0;
    do
    :: i < size -> assert(bytes[offset(position + i)] == next + 1); i++
    :: else -> break
    od;
    assert(length[next % kHeads] == size && turn[next % kHeads] == next + 1);
    position = position + size;
    next++;
    if
    :: release() /* a batch is full */
    :: skip
    fi
  od
}
