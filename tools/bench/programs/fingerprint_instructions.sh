#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fingerprint_instructions.sh FINGERPRINT_BENCH: the cost of comparing collectives, in instructions, because elapsed time
# does not resolve 1% of an operation that waits for another process. For an all_reduce of 64 KiB over gloo between two
# processes, in each mode of BACKPLANE_FINGERPRINT:
#   in all    executed inside bp_group_run, on the thread that calls it
#   core      of these, all except the backend's
#   compare   executed by one comparison, which a thread of the core makes once a second
# Fails if nothing was counted, or if `sampled` adds 1% to the calling thread. Exits with 77 without valgrind.
set -euo pipefail
bench=$1
if ! command -v valgrind >/dev/null; then
  echo "fingerprint_instructions: valgrind not found (Debian: valgrind)"
  exit 77
fi
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT

# Sums calls and their inclusive costs over callgrind's files ("Callgrind Format" in its manual): a line `calls=`
# belongs to the caller `fn=` and the callee `cfn=`, and the line behind it ends with the cost. A name follows its
# number only where it is new.
sum='
function name_of(text,   number) {
  number = substr(text, 1, index(text, ")"))
  if (length(text) > length(number)) names[number] = substr(text, length(number) + 2)
  return names[number]
}
FNR == 1 { delete names }
/^fn=/ { caller = name_of(substr($0, 4)) }
/^cfn=/ { callee = name_of(substr($0, 5)) }
/^calls=/ {
  number = substr($1, 7)
  getline
  if (callee == "bp_group_run") { runs += number; in_all += $NF }
  if (caller ~ /core::Operations::/ && callee ~ /sdk::detail::submit/) backend += $NF
  if (callee ~ /core::FingerprintCheck::compare_sampled/) { comparisons += number; compare += $NF }
}
END {
  if (runs == 0 || backend == 0 || comparisons == 0) exit 1
  printf "%d %d %d\n", in_all / runs, (in_all - backend) / runs, compare / comparisons
}'

printf "%-8s %8s %8s %8s\n" mode "in all" core compare
for mode in off sampled always; do
  valgrind --tool=callgrind --callgrind-out-file="$counts/$mode.%p" \
    "$bench" --benchmark_filter="all_reduce_64k/fingerprint_$mode/" --benchmark_min_time=0.2 >"$counts/log" 2>&1 ||
    { cat "$counts/log"; exit 1; }
  read -r all core compare < <(awk "$sum" "$counts/$mode".*) ||
    { echo "fingerprint_instructions: nothing was counted with fingerprints $mode"; exit 1; }
  printf "%-8s %8d %8d %8d\n" "$mode" "$all" "$core" "$compare"
  if [ "$mode" = off ]; then
    off=$core
    limit=$((all / 100))
  elif [ "$mode" = sampled ] && [ $((core - off)) -ge "$limit" ]; then
    echo "fingerprint_instructions: sampled adds $((core - off)) instructions to a call, which is 1% or more"
    exit 1
  fi
done
