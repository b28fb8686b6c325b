/* SPDX-License-Identifier: Apache-2.0
 *
 * Zero-copy buffers in collectives: ZeroCopy (zero_copy.cpp), ReducingCollectives::all_reduce_zero_copy and
 * reduce_in_shares (collectives_reduce.cpp). Ranks alternate between reduce to rank 0 and all_reduce. In each
 * collective each rank chooses whether it exposes its buffers, and whether its output consists of whole pages. If not,
 * other ranks do not write all of it, and its owner fetches the rest. After the collective a rank writes into its
 * buffers and continues.
 *
 * Steps are numbers here; steps.pml models their slots. A rank owns a share of the result, one cell. Its input in
 * collective t is t.
 *
 *   -DALL              only all_reduce
 *
 * Properties: an input belongs to the current collective while it is read; when the collective has ended for a rank,
 * its output is complete and no rank writes to it any more; no rank waits forever. Mutants:
 *   -DNO_BARRIER       all expose: a rank ends when it has written its share
 *   -DNO_LAST_BARRIER  all expose: a rank ends when it has fetched the rest of its own output
 *   -DNO_LAST_STEP     some expose: an owner does not wait until the others have read its input
 *   -DNO_LEARN         ranks assume that the others expose if they do themselves
 *   -DEARLY_LAST_STEP  some expose: a rank publishes its end before it has read
 */
#ifndef kRanks
#define kRanks 2
#endif
#ifndef kTimes
#define kTimes 3
#endif
#define kMine 100 /* what a rank writes into its buffers after the collective */

typedef Rank {
  byte published; /* steps */
  bool exposes[2], is_whole[2]; /* in the lines of the first steps of this collective and the next */
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

inline publish_step() {
  step++;
  rank[_pid].published = step
}
inline await_step() { for_all_others(rank[other].published >= step) }

/* ZeroCopy::learn_all. A line is not reused while it may be read: steps.pml. */
inline learn_all() {
  all_expose = rank[_pid].exposes[time % 2];
  some_expose = rank[_pid].exposes[time % 2];
  all_whole = rank[_pid].is_whole[time % 2];
  for_all_others(
    rank[other].published >= step;
    exposes[other] = rank[other].exposes[time % 2];
    is_whole[other] = rank[other].is_whole[time % 2];
    all_expose = all_expose && exposes[other];
    some_expose = some_expose || exposes[other];
    all_whole = all_whole && is_whole[other]
  );
#ifdef NO_LEARN
  all_expose = rank[_pid].exposes[time % 2];
  for_all_others(exposes[other] = rank[_pid].exposes[time % 2])
#endif
}

/* Reads exposed inputs; steps.pml models those in slots. */
inline reduce_share() {
  for_all_others(
    if
    :: exposes[other] ->
      assert(rank[other].input == time && rank[other].exposes[time % 2]); /* begins to read */
      assert(rank[other].input == time)                       /* ends */
    :: else
    fi
  );
  rank[_pid].output[_pid] = time
}

inline all_reduce_zero_copy() {
  reduce_share();
  for_all_others(
    if
    :: is_whole[other] -> rank[other].output[_pid] = time
    :: else
    fi
  );
  publish_step();
#ifndef NO_BARRIER
  await_step();
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
    publish_step();
#ifndef NO_LAST_BARRIER
    await_step()
#endif
  fi
}

/* Results are in the slots of a published step. */
inline reduce_in_shares() {
#ifdef EARLY_LAST_STEP
  publish_step();
  reduce_share();
#else
  reduce_share();
  publish_step();
#endif
  if
  :: is_for_all || _pid == 0 ->
    for_all_others(
      rank[other].published >= step;
      rank[_pid].output[other] = time
    )
  :: else
  fi;
  if
  :: !is_for_all && some_expose -> /* ZeroCopy::finish */
    publish_step();
#ifndef NO_LAST_STEP
    if
    :: rank[_pid].exposes[time % 2] -> await_step()
    :: else
    fi
#endif
  :: else
  fi
}

active [kRanks] proctype member() {
  byte step, other, time;
  bool exposes[kRanks], is_whole[kRanks];
  bool all_expose, some_expose, all_whole, is_for_all;
  do
  :: time == kTimes -> break
  :: else ->
    time++;
#ifdef ALL
    is_for_all = true;
#else
    is_for_all = time % 2 == 0;
#endif
    atomic { /* the program's choice and input */
      rank[_pid].input = time;
      if
      :: rank[_pid].exposes[time % 2] = true
      :: rank[_pid].exposes[time % 2] = false
      fi;
      if
      :: rank[_pid].is_whole[time % 2] = true
      :: rank[_pid].is_whole[time % 2] = false
      fi
    };
    publish_step();
    learn_all();
    if
    :: is_for_all && all_expose -> all_reduce_zero_copy()
    :: else -> reduce_in_shares()
    fi;
    atomic { /* the end */
      for_all_others(assert(rank[_pid].output[other] == time || !(is_for_all || _pid == 0)));
      assert(rank[_pid].output[_pid] == time);
      for_all_others(rank[_pid].output[other] = kMine);
      rank[_pid].output[_pid] = kMine;
      rank[_pid].input = kMine;
      for_all_others(exposes[other] = false; is_whole[other] = false);
      all_expose = false;
      some_expose = false;
      all_whole = false
    };
    for_all_others(assert(rank[_pid].output[other] == kMine))
  od
}
