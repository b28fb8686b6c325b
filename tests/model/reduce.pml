/* SPDX-License-Identifier: Apache-2.0
 *
 * A large all_reduce: Collectives::reduce_in_shares (collectives_reduce.cpp) over the steps of steps.pml. It is the collective that asks
 * most of them: each piece is shown before the results of the one before it, and those are written into the place of a
 * step shown earlier, beside what others still read there. Nobody lends anything; a place has one cell of input and
 * one of results. At last there is a step in which ranks only meet (Collectives::barrier).
 *
 * What must hold: what a rank reads in a place is what was put there for this piece, when it begins to read and when
 * it ends; nobody waits for ever. Mutants:
 *   -DRESULTS_UNSHOWN  results are read when the step of the input has been seen
 *   -DINPUT_UNSHOWN    the input of others is read before their step has been seen
 *   -DEARLY_RESULTS    results are shown before they are written
 *   -DFEW_PLACES       two places instead of eight
 */
#ifndef kRanks
#define kRanks 2
#endif
#ifdef FEW_PLACES
#define kSteps 2
#define kLag 1
#else
#define kSteps 8
#define kLag 4
#endif
#define kPieces 5

typedef Place { byte input; byte result };
typedef Rank { byte shown; Place places[kSteps] }; /* shown: the newest of its lines, which grows with each of them */
Rank rank[kRanks];

#define place(who, step) rank[who].places[(step) % kSteps]
#define wait_for(who, step) rank[who].shown >= (step)

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

/* The lambda `show` of reduce_large. A place that is being written holds 0. */
inline show_piece(step, piece) {
  begin_step(step);
  place(_pid, step).input = 0;
  place(_pid, step).input = piece;
  rank[_pid].shown = step
}

inline read_results(step, results, piece) {
  other = 0;
  do
  :: other < kRanks ->
    if
    :: other != _pid ->
#ifdef RESULTS_UNSHOWN
      wait_for(other, step);
#else
      wait_for(other, results);
#endif
      assert(place(other, step).result == piece); /* beginning to read it */
      assert(place(other, step).result == piece)  /* and coming to an end */
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
  show_piece(step, 1);
  do
  :: piece > kPieces -> break
  :: else ->
    next = 0;
    if
    :: piece < kPieces -> show_piece(next, piece + 1)
    :: else
    fi;
    begin_step(results);
    other = 0;
#ifdef EARLY_RESULTS
    rank[_pid].shown = results;
#endif
    place(_pid, step).result = 0;
    do /* combine_all: reads the inputs of the others, writes its own results */
    :: other < kRanks ->
      if
      :: other != _pid ->
#ifndef INPUT_UNSHOWN
        wait_for(other, step);
#endif
        assert(place(other, step).input == piece);
        assert(place(other, step).input == piece)
      :: else
      fi;
      other++
    :: else -> break
    od;
    other = 0;
    place(_pid, step).result = piece;
    rank[_pid].shown = results;
    read_results(step, results, piece);
    step = next;
    piece++
  od;
  begin_step(step); /* Collectives::barrier */
  rank[_pid].shown = step;
  do
  :: other < kRanks -> wait_for(other, step); other++
  :: else -> break
  od;
  assert(last == 2 * kPieces + 1)
}
