/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank falls asleep and is woken: Waiter::until and its Sleeper (progress.hpp), publish and ring (futex.hpp),
 * Peers::fence (peers.cpp). Two other ranks publish kRounds numbers each, into words of their own; two threads of this
 * rank (a caller and the helper) wait for both ranks in each round, on the one bell of the rank.
 *
 * Spin runs all in one order, processors do not: each publisher has a store buffer, first in, first out, which drains
 * whenever it likes (x86-TSO). An atomic addition, a sequentially consistent store and a fence empty it first.
 *
 *   -DLIGHT        publish(..., lightly): the sleeper pays for both fences, by membarrier
 *   -DABORT        the last number never comes, but Waiter::abort does
 *
 * Nothing here has a timeout, so that a wake-up that is lost is an invalid end state. Mutants, each of which loses one:
 *   -DNO_FENCE     nobody fences
 *   -DNO_LOOK      asleep without looking again after counting oneself
 *   -DLATE_RINGS   the number of rings is read after that look instead of before
 *   -DLATE_COUNT   the sleeper counts itself after that look
 *   -DQUIET_ABORT  abort does not ring
 */
#define kPublishers 2
#define kWaiters 2
#define kRounds 2

byte shown[kPublishers];    /* Line::step, Head::sequence: the words that are polled */
byte rings, sleepers;       /* Bell */
bool asleep[kWaiters];      /* in futex_wait */
bool aborted;

chan buffer[kPublishers] = [2] of { byte };  /* stores that no other processor sees yet */

active [kPublishers] proctype drain() { /* the process's own number is that of the publisher */
  byte value;
end:
  do
  :: d_step { buffer[_pid] ? value -> shown[_pid] = value }
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

#define ready() (shown[0] >= number && shown[1] >= number)

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
    :: else -> /* each word is looked at for itself: what is shown only grows, so one look at both is enough */
#ifdef LATE_COUNT
      seen_rings = rings;
      if
      :: ready() || aborted -> goto next
      :: else
      fi;
      sleepers++;
#else
      sleepers++; /* Sleeper: the addition is a fence on this side */
#if defined(LIGHT) && !defined(NO_FENCE)
      p = 0; /* membarrier: the processors are interrupted one after the other */
      do
      :: p < kPublishers -> empty(buffer[p]); p++
      :: else -> break
      od;
#endif
#ifndef LATE_RINGS
      seen_rings = rings;
#endif
#ifndef NO_LOOK
      if
      :: ready() || aborted -> sleepers--; goto next
      :: else
      fi;
#endif
#ifdef LATE_RINGS
      seen_rings = rings;
#endif
#endif
      atomic { /* futex_wait: the kernel compares and queues in one */
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
    :: else /* woken for nothing, or for one of two */
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
