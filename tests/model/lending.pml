/* SPDX-License-Identifier: Apache-2.0
 *
 * Zero-copy buffers: ZeroCopy (zero_copy.cpp), Collectives::all_reduce_zero_copy and reduce_in_shares
 * (collectives_reduce.cpp), finish_zero_copy (collectives.cpp). Ranks reduce to rank 0 and all-reduce, in turn. In each collective each
 * rank lends its buffers or not, as it likes, and so it is whether its output begins and ends with a page: if not,
 * others do not write all of it, and its owner fetches the rest. When the collective is over for a rank it writes into
 * its buffers, and goes on.
 *
 * Steps only count here; steps.pml has their places. A rank owns a share of the result, one cell, and what it reduces in
 * collective t is t.
 *
 *   -DALL           all-reduce each time
 *
 * What must hold: an input is that of this collective while it is read; when the collective is over for a rank its
 * output is whole, and nobody writes there any more; nobody waits for ever. Mutants:
 *   -DNO_MEET       all lend: a rank is done when it has written its share
 *   -DNO_LAST_MEET  all lend: a rank is done when it has fetched the rest of its own output
 *   -DNO_RETURN     some lend: a lender does not wait until the others have read its input
 *   -DNO_HEAR       ranks take others to lend if they do so themselves
 *   -DLATE_RETURN   some lend: a rank shows that it is done before it has read
 */
#ifndef kRanks
#define kRanks 2
#endif
#ifndef kTimes
#define kTimes 3
#endif
#define kMine 100 /* what a rank writes into buffers that are its own again */

typedef Rank {
  byte shown; /* steps */
  bool lends[2], is_whole[2]; /* in the lines of first steps, of this collective and the next */
  byte input;
  byte output[kRanks];    /* by share */
};
Rank rank[kRanks];

#define for_all_others(do_it) \
  other = 0; \
  do \
  :: other == kRanks -> break \
  :: other == _pid -> other++ \
  :: other < kRanks && other != _pid -> do_it; other++ \
  od; \
  other = 0

inline show_step() {
  step++;
  rank[_pid].shown = step
}
inline see_step() { for_all_others(rank[other].shown >= step) }

/* ZeroCopy::learn_all. What stands in a line stays there while it may be read: steps.pml. */
inline hear() {
  all_lend = rank[_pid].lends[time % 2];
  some_lend = rank[_pid].lends[time % 2];
  all_whole = rank[_pid].is_whole[time % 2];
  for_all_others(
    rank[other].shown >= step;
    lends[other] = rank[other].lends[time % 2];
    is_whole[other] = rank[other].is_whole[time % 2];
    all_lend = all_lend && lends[other];
    some_lend = some_lend || lends[other];
    all_whole = all_whole && is_whole[other]
  );
#ifdef NO_HEAR
  all_lend = rank[_pid].lends[time % 2];
  for_all_others(lends[other] = rank[_pid].lends[time % 2])
#endif
}

/* Reads the inputs of others where they are lent; what they put into slots is steps.pml's affair. */
inline reduce_share() {
  for_all_others(
    if
    :: lends[other] ->
      assert(rank[other].input == time && rank[other].lends[time % 2]); /* it begins to read, */
      assert(rank[other].input == time)                       /* and comes to an end */
    :: else
    fi
  );
  rank[_pid].output[_pid] = time
}

inline all_reduce_directly() {
  reduce_share();
  for_all_others(
    if
    :: is_whole[other] -> rank[other].output[_pid] = time
    :: else
    fi
  );
  show_step();
#ifndef NO_MEET
  see_step();
#endif
  if
  :: all_whole
  :: else ->
    for_all_others(
      if
      :: !rank[_pid].is_whole[time % 2] -> rank[_pid].output[other] = rank[other].output[other]
      :: else
      fi
    );
    show_step();
#ifndef NO_LAST_MEET
    see_step()
#endif
  fi
}

/* Results go through the slots: who sees the others' step has them. */
inline reduce_large() {
#ifdef LATE_RETURN
  show_step();
  reduce_share();
#else
  reduce_share();
  show_step();
#endif
  if
  :: is_for_all || _pid == 0 ->
    for_all_others(
      rank[other].shown >= step;
      rank[_pid].output[other] = time
    )
  :: else
  fi;
  if
  :: !is_for_all && some_lend -> /* return_loans */
    show_step();
#ifndef NO_RETURN
    if
    :: rank[_pid].lends[time % 2] -> see_step()
    :: else
    fi
#endif
  :: else
  fi
}

active [kRanks] proctype member() {
  byte step, other, time;
  bool lends[kRanks], is_whole[kRanks];
  bool all_lend, some_lend, all_whole, is_for_all;
  do
  :: time == kTimes -> break
  :: else ->
    time++;
#ifdef ALL
    is_for_all = true;
#else
    is_for_all = time % 2 == 0;
#endif
    atomic { /* the program's choice, and its input */
      rank[_pid].input = time;
      if
      :: rank[_pid].lends[time % 2] = true
      :: rank[_pid].lends[time % 2] = false
      fi;
      if
      :: rank[_pid].is_whole[time % 2] = true
      :: rank[_pid].is_whole[time % 2] = false
      fi
    };
    show_step();
    hear();
    if
    :: is_for_all && all_lend -> all_reduce_directly()
    :: else -> reduce_large()
    fi;
    atomic { /* it is over */
      for_all_others(assert(rank[_pid].output[other] == time || !(is_for_all || _pid == 0)));
      assert(rank[_pid].output[_pid] == time);
      for_all_others(rank[_pid].output[other] = kMine);
      rank[_pid].output[_pid] = kMine;
      rank[_pid].input = kMine;
      for_all_others(lends[other] = false; is_whole[other] = false);
      all_lend = false;
      some_lend = false;
      all_whole = false
    };
    for_all_others(assert(rank[_pid].output[other] == kMine))
  od
}
