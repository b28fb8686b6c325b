#!/usr/bin/env bash
# torchrun_test.sh HELLO PROGRAM: under torchrun on one node and on two, by both of its rendezvous, the ranks of HELLO
# meet without further variables. Ranks of PROGRAM (tests/liveness/rank.cpp), one of which is killed, meet again after
# the restart. Exits with 77 where torchrun is not installed.
set -euo pipefail

# A rank of PROGRAM: rank 1 kills itself in the first attempt, and the others then lose it in an all_reduce.
if [ "$1" = -rank ]; then
  coproc COMMANDS { exec "$2"; }
  pid=$COMMANDS_PID
  say() { echo "$1" >&"${COMMANDS[1]}" && IFS= read -r -t 120 reply <&"${COMMANDS[0]}"; }
  say init
  [ "$reply" = ok ] || { echo "rank $RANK: init replied $reply"; exit 1; }
  if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = 10 ]; then
    kill -9 "$pid" $$
  fi
  say all_reduce
  [ "$reply" = "sum $WORLD_SIZE" ] || { echo "rank $RANK: all_reduce replied $reply"; exit 1; }
  echo "rank $RANK of $WORLD_SIZE, attempt $TORCHELASTIC_RESTART_COUNT: the sum is right"
  say quit
  wait "$pid"
  exit
fi

hello=$1
program=$2
torchrun=${BACKPLANE_TORCHRUN:-torchrun}
command -v "$torchrun" >/dev/null || { echo "skipped: there is no torchrun (tools/torchrun-check brings it)"; exit 77; }

# Of the job that runs this test.
others='^(SLURM|BACKPLANE|TORCHELASTIC|PET|PMI|PMIX|OMPI)_'
for name in $(compgen -e | grep -E "$others" | grep -v BACKPLANE_PLUGIN_PATH); do unset "$name"; done
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export TMPDIR=$place OMP_NUM_THREADS=1

source "$(dirname "${BASH_SOURCE[0]}")/../install/ranks.sh"

fail() {
  cat "$place"/out-*
  echo "failed: $1"
  exit 1
}

# agents NODES RENDEZVOUS ARGUMENT...: runs the agents of a job with 2 ranks per node. Output: $place/out-NODE.
agents() {
  local nodes=$1 rendezvous=$2 node port pids=() failed=0
  shift 2
  port=$(free_port)
  rm -f "$place"/out-*
  # Debian's torchrun 1.13 fails with Python 3.11 unless --redirects and --tee are given.
  local common=(--nproc_per_node=2 --redirects=1 --tee=1 --max_restarts=1 --no_python)
  for ((node = 0; node < nodes; ++node)); do
    local own=()
    case $rendezvous in
      default) ;;
      standalone) own=(--standalone) ;;
      static) own=(--nnodes="$nodes" --node_rank="$node" --master_addr=127.0.0.1 --master_port="$port") ;;
      c10d) own=(--nnodes="$nodes" --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:"$port" --rdzv_id=test) ;;
    esac
    timeout -k 10 200 "$torchrun" "${own[@]}" "${common[@]}" "$@" >"$place/out-$node" 2>&1 &
    pids+=($!)
  done
  for node in "${pids[@]}"; do wait "$node" || failed=1; done
  return $failed
}

# check NODES RENDEZVOUS
check() {
  local nodes=$1 ranks=$((2 * $1)) what="$2, nodes: $1"
  agents "$@" "$hello" || fail "$what"
  [ "$(cat "$place"/out-* | grep -c " of $ranks over ")" = $ranks ] || fail "$what: not $ranks ranks"
  grep -q "add up to $((ranks * (ranks - 1) / 2))" "$place"/out-* || fail "$what: no sum"
  echo "passed: $what"
  agents "$@" "$0" -rank "$program" || fail "$what, restart"
  [ "$(cat "$place"/out-* | grep -c " of $ranks, attempt 1: the sum is right")" = $ranks ] ||
    fail "$what, restart: not $ranks ranks in the second attempt"
  echo "passed: $what, restart"
}

check 1 default
check 1 standalone
check 2 static
check 2 c10d
