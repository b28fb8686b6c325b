/* SPDX-License-Identifier: Apache-2.0
 *
 * A large all_reduce: ReducingCollectives::reduce_in_shares (collectives_reduce.cpp) over the steps of steps.pml.
 * It is the most demanding user of steps: each piece is published before the results of the previous one, which are
 * written into the slot of an earlier step while other ranks still read there. No rank exposes buffers. A slot has one
 * cell of input and one of results. At the end there is a barrier (Steps::barrier).
 *
 * Properties: what a rank reads in a slot belongs to this piece, from the beginning of the read to its end; no rank
 * waits forever. Mutants:
 *   -DRESULTS_UNPUBLISHED  results are read once the step of the input is published
 *   -DINPUT_UNPUBLISHED    the input of others is read before their step is published
 *   -DEARLY_RESULTS        results are published before they are written
 *   -DFEW_SLOTS            two slots instead of eight
 */
#ifndef kRanks
#define kRanks 2
#endif
#ifdef FEW_SLOTS
#define kSteps 2
#define kLag 1
#else
#define kSteps 8
#define kLag 4
#endif
#define kPieces 5

typedef Slot { byte input; byte result };
typedef Rank { byte published; Slot slots[kSteps] }; /* published: the newest step */
Rank rank[kRanks];

#define slot(who, step) rank[who].slots[(step) % kSteps]
#define wait_for(who, step) rank[who].published >= (step)

inline begin_step(step) {
  last++;
  step = last;
  other = 0;
  do
  :: other < kRanks ->
    if
    :: step + kLag > kSteps -> wait_for(other, step + kLag - kSteps)
    :: else
    fi;
    other++
  :: else -> break
  od;
  other = 0
}

/* The lambda `publish` of reduce_in_shares. A slot that is being written holds 0. */
inline publish_piece(step, piece) {
  begin_step(step);
  slot(_pid, step).input = 0;
  slot(_pid, step).input = piece;
  rank[_pid].published = step
}

inline read_results(step, results, piece) {
  other = 0;
  do
  :: other < kRanks ->
    if
    :: other != _pid ->
#ifdef RESULTS_UNPUBLISHED
      wait_for(other, step);
#else
      wait_for(other, results);
#endif
      assert(slot(other, step).result == piece); /* begins to read */
      assert(slot(other, step).result == piece)  /* ends */
    :: else
    fi;
    other++
  :: else -> break
  od;
  other = 0
}

active [kRanks] proctype member() {
  byte last, other, piece = 1;
  byte step, next, results;
  publish_piece(step, 1);
  do
  :: piece > kPieces -> break
  :: else ->
    next = 0;
    if
    :: piece < kPieces -> publish_piece(next, piece + 1)
    :: else
    fi;
    begin_step(results);
    other = 0;
#ifdef EARLY_RESULTS
    rank[_pid].published = results;
#endif
    slot(_pid, step).result = 0;
    do /* reads the inputs of the others, writes the results of its share */
    :: other < kRanks ->
      if
      :: other != _pid ->
#ifndef INPUT_UNPUBLISHED
        wait_for(other, step);
#endif
        assert(slot(other, step).input == piece);
        assert(slot(other, step).input == piece)
      :: else
      fi;
      other++
    :: else -> break
    od;
    other = 0;
    slot(_pid, step).result = piece;
    rank[_pid].published = results;
    read_results(step, results, piece);
    step = next;
    piece++
  od;
  begin_step(step); /* Steps::barrier */
  rank[_pid].published = step;
  do
  :: other < kRanks -> wait_for(other, step); other++
  :: else -> break
  od;
  assert(last == 2 * kPieces + 1)
}
