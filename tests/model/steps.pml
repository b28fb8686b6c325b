/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of collectives: Steps::begin, own_data, publish and wait_for (steps.hpp), with the lines and slots of layout.hpp. Each
 * rank shows kMost steps, and reads what the others show as late as it likes within the rule of steps.hpp: step k before
 * it shows step k + kLag. Rank 0 reads nothing, like the root of a broadcast: only Steps::begin holds it back. Waiting
 * and waking are in waiting.pml; here a rank simply cannot go on. Here it also looks in each step: Steps::begin looks
 * seldom, at a number kept from the last time that all others have shown, so that it waits at least as long.
 *
 * What must hold: what a rank reads in a place is of the step that it wants, when it begins to read and when it ends;
 * nobody waits for ever. Mutants:
 *   -DEARLY_REUSE  a place is used again one step too early
 *   -DLATE_READ    ranks read one step later than they may
 *   -DEARLY_SHOW   a step is shown before its place is written
 *   -DLATE_REUSE   a place is used again so late that ranks wait for each other
 */
#ifndef kRanks
#define kRanks 2
#endif
#define kSteps 8
#define kLag 4
#ifndef kMost
#define kMost 13
#endif

#if defined(EARLY_REUSE)
#define kNeeded (kLag - 1)
#elif defined(LATE_REUSE)
#define kNeeded (kSteps)
#else
#define kNeeded kLag
#endif
#ifdef LATE_READ
#define kLate (kLag + 1)
#else
#define kLate kLag
#endif

typedef Rank { byte shown; byte places[kSteps] }; /* shown: the newest of its lines, which grows with each of them */
Rank rank[kRanks];

inline write(step) {
  rank[_pid].places[step % kSteps] = 0; /* half written */
  rank[_pid].places[step % kSteps] = step
}

active [kRanks] proctype member() {
  byte last, read, other;
  do
  :: last < kMost && (_pid == 0 || read + kLate >= last + 1) ->
    last++;
    other = 0;
    do /* begin */
    :: other == kRanks -> break
    :: other < kRanks ->
      if
      :: other != _pid && last + kNeeded > kSteps -> rank[other].shown >= last + kNeeded - kSteps
      :: else
      fi;
      other++
    od;
    other = 0;
#ifdef EARLY_SHOW
    rank[_pid].shown = last;
    write(last)
#else
    write(last);
    rank[_pid].shown = last
#endif
  :: _pid != 0 && read < last ->
    other = 0;
    do
    :: other == kRanks -> break
    :: other < kRanks ->
      if
      :: other != _pid ->
        rank[other].shown > read; /* see */
        assert(rank[other].places[(read + 1) % kSteps] == read + 1); /* begins to copy it */
        assert(rank[other].places[(read + 1) % kSteps] == read + 1)  /* and ends */
      :: else
      fi;
      other++
    od;
    other = 0;
    read++
  :: last == kMost && (_pid == 0 || read == kMost) -> break
  od
}
