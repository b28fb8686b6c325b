/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of collectives: Steps::begin, own_data, publish and wait_for (steps.hpp), with the lines and slots of
 * layout.hpp. Each rank publishes kMost steps, and reads those of the others as late as the rule of steps.hpp allows:
 * step k before it publishes step k + kLag. Rank 0 reads nothing, like the root of a broadcast: only Steps::begin
 * delays it. waiting.pml models waiting and waking; here a rank simply cannot continue. Steps::begin reads the other
 * ranks' steps seldom, and compares with the minimum that it has kept, so it waits at least as long as here.
 *
 * Properties: what a rank reads in a slot belongs to the step that it wants, from the beginning of the read to its end;
 * no rank waits forever. Mutants:
 *   -DEARLY_REUSE    a slot is reused one step too early
 *   -DLATE_READ      ranks read one step later than they may
 *   -DEARLY_PUBLISH  a step is published before its slot is written
 *   -DLATE_REUSE     a slot is reused so late that ranks wait for each other
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

typedef Rank { byte published; byte slots[kSteps] }; /* published: the newest step */
Rank rank[kRanks];

inline write(step) {
  rank[_pid].slots[step % kSteps] = 0; /* half written */
  rank[_pid].slots[step % kSteps] = step
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
      :: other != _pid && last + kNeeded > kSteps -> rank[other].published >= last + kNeeded - kSteps
      :: else
      fi;
      other++
    od;
    other = 0;
#ifdef EARLY_PUBLISH
    rank[_pid].published = last;
    write(last)
#else
    write(last);
    rank[_pid].published = last
#endif
  :: _pid != 0 && read < last ->
    other = 0;
    do
    :: other == kRanks -> break
    :: other < kRanks ->
      if
      :: other != _pid ->
        rank[other].published > read; /* wait_for */
        assert(rank[other].slots[(read + 1) % kSteps] == read + 1); /* begins to read */
        assert(rank[other].slots[(read + 1) % kSteps] == read + 1)  /* ends */
      :: else
      fi;
      other++
    od;
    other = 0;
    read++
  :: last == kMost && (_pid == 0 || read == kMost) -> break
  od
}
