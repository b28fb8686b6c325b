/* SPDX-License-Identifier: Apache-2.0
 *
 * One channel of messages: Outbox and Inbox (transport.cpp), Messages::pull (messages_progress.cpp), and the sleep of a sender that
 * finds no room. Small: kHeads heads, kRing units of bytes; messages of 0 to 2 units, in one piece that does not wrap,
 * of any length in any order. A sleeper that counts itself in time is woken: waiting.pml shows that.
 *
 * The sender's stores come to light in their order (x86-TSO), so only those of the receiver pass through a buffer here:
 * its question whether the sender is blocked may overtake them.
 *
 *   -DLIGHT        release publishes lightly; the sleeper's membarrier empties the buffer
 *
 * What must hold: each message is read once, whole, in order, and nothing is written over before it was read. Mutants:
 *   -DEARLY_TURN   the turn is written before the bytes
 *   -DEARLY_ROOM   one head more is taken to be free than there is
 *   -DEARLY_BYTES  one unit more
 *   -DEARLY_POP    what was looked at is released before it has been read
 *   -DNO_LOOK      the sender sleeps without looking for room again after asking
 *   -DNO_FENCE     nobody fences
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
byte read_heads, read_bytes;       /* Channel, as they are seen */
bool blocked;                      /* Channel */
byte rings;                        /* the sender's Bell */

mtype = { kHeadsRead, kBytesRead };
chan buffer = [4] of { mtype, byte }; /* the receiver's stores that the sender does not see yet */

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
    do /* put_piece; has_head and has_bytes look at one word each, both of which only grow */
    :: has_room() -> break
    :: else ->
      if
      :: !blocked -> blocked = true /* ask_for_room; look once more */
#ifdef NO_LOOK
        ; seen_rings = rings; rings != seen_rings
#endif
      :: else ->
        /* Waiter::until: it counts itself, and fences, before it looks again */
#if defined(LIGHT) && !defined(NO_FENCE)
        empty(buffer);
#endif
        seen_rings = rings;
        if
        :: has_room() -> break
        :: !has_room() && !blocked /* asked again: once more round */
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
      :: released != next -> release() /* nothing more: tell what was taken before going to sleep */
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
