/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleeping and waking: Waiter::until and its Sleeper (progress.hpp), publish and ring (futex.hpp), Peers::fence
 * (peers.cpp). Two other ranks publish kRounds numbers each, into words of their own; two threads of this rank (a
 * caller and the progress thread) wait for both ranks in each round, on the rank's one doorbell.
 *
 * Spin is sequentially consistent and processors are not: each publisher has a FIFO store buffer that drains at any
 * time (x86-TSO). An atomic addition, a sequentially consistent store and a fence empty it first.
 *
 *   -DLIGHT        publish with membarrier: the sleeper executes both fences
 *   -DABORT        the last number is never published; Waiter::abort is called instead
 *
 * No wait has a timeout, so a lost wake-up is an invalid end state. Mutants, each of which loses one:
 *   -DNO_FENCE     no fences
 *   -DNO_RECHECK   a waiter sleeps without checking again after it has counted itself
 *   -DLATE_RINGS   the number of rings is read after that check instead of before
 *   -DLATE_COUNT   the waiter counts itself after that check
 *   -DQUIET_ABORT  abort does not ring
 */
#define kPublishers 2
#define kWaiters 2
#define kRounds 2

byte published[kPublishers]; /* the polled words: Line::step, Head::sequence */
byte rings, sleepers;        /* Doorbell */
bool asleep[kWaiters];       /* in futex_wait */
bool aborted;

chan buffer[kPublishers] = [2] of { byte };  /* store buffers */

active [kPublishers] proctype drain() { /* process i drains the buffer of publisher i */
  byte value;
end:
  do
  :: d_step { buffer[_pid] ? value -> published[_pid] = value }
  od
}

inline ring() {
  if
  :: sleepers == 0
  :: else ->
    atomic { empty(buffer[me]) -> rings++ };
    d_step { asleep[0] = false; asleep[1] = false } /* futex_wake_all */
  fi
}

active [kPublishers] proctype publisher() {
  byte me = _pid - kPublishers;
  byte number = 1;
  do
  :: number > kRounds -> break
#ifdef ABORT
  :: number == kRounds && me == 1 -> break
#endif
  :: else ->
    buffer[me] ! number;
#if !defined(LIGHT) && !defined(NO_FENCE)
    empty(buffer[me]);
#endif
    ring();
    number++
  od
}

#define ready() (published[0] >= number && published[1] >= number)

active [kWaiters] proctype waiter() {
  byte me = _pid - 2 * kPublishers;
  byte number = 1;
  byte seen_rings, p;
  bool is_ready;
  do
  :: number > kRounds -> break
  :: else ->
    if
    :: ready()
    :: else -> /* the words only grow, so one check of both models a check of each */
#ifdef LATE_COUNT
      seen_rings = rings;
      if
      :: ready() || aborted -> goto next
      :: else
      fi;
      sleepers++;
#else
      sleepers++; /* Sleeper: the addition is a fence of the waiter */
#if defined(LIGHT) && !defined(NO_FENCE)
      p = 0; /* membarrier: interrupts the processors one after the other */
      do
      :: p < kPublishers -> empty(buffer[p]); p++
      :: else -> break
      od;
#endif
#ifndef LATE_RINGS
      seen_rings = rings;
#endif
#ifndef NO_RECHECK
      if
      :: ready() || aborted -> sleepers--; goto next
      :: else
      fi;
#endif
#ifdef LATE_RINGS
      seen_rings = rings;
#endif
#endif
      atomic { /* futex_wait: compares and queues atomically */
        if
        :: rings == seen_rings -> asleep[me] = true
        :: else
        fi
      };
      !asleep[me];
      sleepers--
    fi;
  next:
    if
    :: ready() -> number++
    :: !ready() && aborted -> break
    :: else /* only one of two words has changed */
    fi
  od;
  assert(aborted || ready() || number > kRounds)
}

#ifdef ABORT
active proctype aborter() { /* another thread of this rank */
  aborted = true;
#ifndef QUIET_ABORT
  rings++;
  d_step { asleep[0] = false; asleep[1] = false }
#endif
}
#endif
