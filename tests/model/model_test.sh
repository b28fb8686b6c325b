#!/usr/bin/env bash
# model_test.sh MODEL holds|fails [DEFINITION...]: explores every interleaving of a model with Spin. holds: fails if an
# assertion fails or a process waits forever. fails, for mutants: fails if neither happens.
set -euo pipefail
if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
  echo "skipped: spin (Debian: spin) or gcc is not installed"
  exit 77
fi
model=$(realpath "$1")
wanted=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
spin -a "${@/#/-D}" "$model" >spin.log || { cat spin.log; exit 1; }
gcc -O1 -w -DSAFETY -DMEMLIM=1024 -DVECTORSZ=2048 -o pan pan.c
timeout 240 ./pan -m100000 -w22 >pan.log 2>&1 || { cat pan.log; exit 1; }
if grep -qE 'max search depth too small|out of memory|Search not completed' pan.log && [ "$wanted" = holds ]; then
  cat pan.log
  exit 1
fi
errors=$(sed -nE 's/.*errors: ([0-9]+).*/\1/p' pan.log)
found=$(grep -m1 '^pan:1:' pan.log || true)
sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1 states/p' pan.log
if [ "$wanted" = holds ] && [ "${errors:-1}" = 0 ]; then exit 0; fi
if [ "$wanted" = fails ] && [ "${errors:-0}" -gt 0 ]; then
  echo "found: $found"
  exit 0
fi
echo "expected a model that $wanted${*:+ with $*}; Spin reports ${errors:-no} errors"
cat pan.log
[ ! -f ./*.trail ] || spin -t -p -g "${@/#/-D}" "$model" | tail -60
exit 1
