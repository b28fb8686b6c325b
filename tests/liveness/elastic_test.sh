#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# elastic_test.sh <backplane> <elastic> <backend>...: trains with a rank that dies and is replaced, over each backend,
# and expects the losses and accuracies of an undisturbed run. BACKPLANE_ELASTIC_TRIALS (1) is the number of runs.
set -eu
command=$1
export ELASTIC="$2"
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trials=${BACKPLANE_ELASTIC_TRIALS:-1}

fail() {
  echo "$*" >&2
  cat "$folder"/* >&2
  exit 1
}

# Rank $VICTIM dies; the shell that started it starts another process in its place.
member='die=; [ "$RANK" != "$VICTIM" ] || die="--die-at-epoch $EPOCH"; "$ELASTIC" $die || exec "$ELASTIC" --join'
# The lines may begin with the rank.
curve() { grep -o 'epoch .* right' "$1"; }

for backend; do
  "$command" run -n 4 --backend "$backend" "$ELASTIC" >"$folder/undisturbed" 2>&1 || fail "$backend: undisturbed run"
  [ "$(curve "$folder/undisturbed" | wc -l)" = 10 ] || fail "$backend: an undisturbed run prints ten epochs"
  trial=0
  while [ "$trial" -lt "$trials" ]; do
    export VICTIM=$((1 + trial % 3)) EPOCH=$((2 + trial % 8))
    "$command" run -n 4 --keep-going --backend "$backend" sh -c "$member" >"$folder/replaced" 2>&1 ||
      fail "$backend, trial $trial: run with a replaced rank"
    [ "$(curve "$folder/replaced")" = "$(curve "$folder/undisturbed")" ] ||
      fail "$backend, trial $trial: the losses differ from those of an undisturbed run"
    grep -q "rank $VICTIM .* is lost" "$folder/replaced" || fail "$backend, trial $trial: nobody was lost"
    grep -q 'trained on 4 ranks at the end' "$folder/replaced" || fail "$backend, trial $trial: nobody came"
    trial=$((trial + 1))
  done
  echo "$backend: $trials of $trials runs with a replaced rank have the losses of an undisturbed run"
done
