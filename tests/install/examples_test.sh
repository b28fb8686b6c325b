#!/usr/bin/env bash
# examples_test.sh BIN_DIR BACKEND...: runs the examples over each backend and compares their results.
set -euo pipefail
bin=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/install/ranks.sh
. "$here/ranks.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# over BACKEND N PROGRAM ARGUMENT...: runs the program on N ranks and prints its output; fails the test if it fails.
over() {
  local backend=$1
  shift
  BACKPLANE_BACKEND=$backend run_ranks "$@" 2>&1 || fail "$* over $backend"
}

cat >"$work/expected" <<'TEXT'
rank 0  after irecv, wait      holds 2
rank 0  after isend, wait      holds 1
rank 0  after recv             holds 2
rank 0  after send             holds 1
rank 0  start                  holds 1
rank 1  after adding 1, send   holds 2
rank 1  after irecv, wait      holds 1
rank 1  after isend, wait      holds 2
rank 1  after recv from rank 0 holds 1
rank 1  start                  holds 0
TEXT

over self 1 "$bin/digits" --require-accuracy 95 >"$work/self"
cat "$work/self"
grep -q ^epoch "$work/self" || fail "digits does not print its epochs"
for backend in "$@"; do
  for program in hello hello_c; do
    count=$(over "$backend" 3 "$bin/$program" | grep -c "of 3 over $backend: the ranks add up to 3")
    [ "$count" = 3 ] || fail "$program over $backend"
  done
  over "$backend" 2 "$bin/ping_pong" | grep '^rank' | LC_ALL=C sort | diff "$work/expected" - ||
    fail "ping_pong over $backend"
  over "$backend" 4 "$bin/digits" --require-accuracy 95 >"$work/$backend"
  grep -F "4 ranks over $backend" "$work/$backend" || fail "digits does not name the backend $backend"
  diff <(grep ^epoch "$work/self") <(grep ^epoch "$work/$backend") ||
    fail "the results of 4 ranks over $backend differ from those of one rank"
  over "$backend" 4 "$bin/master_worker" | grep -F "together their last element is 3000" ||
    fail "master_worker over $backend"
  BACKPLANE_RPC_BACKEND=process_group over "$backend" 3 "$bin/parameter_server" --require-accuracy 90 >"$work/pushed"
  grep -E "2 workers pushed .* by process_group" "$work/pushed" || fail "parameter_server over $backend"
done

# As in the README, without a named agent.
agent=process_group
[ ! -e "$bin/../lib/backplane/plugins/backplane_tensorpipe.so" ] || agent=tensorpipe
run_ranks 4 "$bin/parameter_server" --require-accuracy 90 >"$work/pushed" 2>&1 || fail "parameter_server: $(cat "$work/pushed")"
grep -E "3 workers pushed .* by $agent" "$work/pushed" || fail "parameter_server does not use $agent"

if BACKPLANE_BACKEND=self run_ranks 1 "$bin/digits" --data /nowhere/digits.csv 2>"$work/missing"; then
  fail "digits accepts a missing file"
fi
grep -q "cannot read the digits from /nowhere/digits.csv" "$work/missing" || fail "$(cat "$work/missing")"
[ "$(wc -l <"$work/missing")" = 1 ] || fail "more than one line for a missing file: $(cat "$work/missing")"
echo "the examples give the same results over self $*"
