#!/bin/sh
# gpu_check_test.sh SCRIPT BUILD DOUBLE [DRIVER]: runs tools/gpu-check over the test double of NCCL, and that of the
# driver in folder DRIVER, with the build tree in the place of its archive: with one device, with two, and without a
# driver. No DRIVER: calls with arrays on devices were not built.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$2/bin" "$2/lib" "$work"
cp "$1" "$work/gpu-check"
export XDG_DATA_HOME="$work"

for devices in 1 2; do
  LD_LIBRARY_PATH="${4:-}" BACKPLANE_DOUBLE_CUDA_DEVICES=$devices BACKPLANE_DOUBLE_DEVICES=$devices \
    "$work/gpu-check" --library "$3" --devices $devices --filter p2p.tag-match \
    --sizes 4 --output "$work/results.md" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  grep -q "2 ranks on $devices device" "$work/results.md"
  [ "$(grep -c "1 passed, 0 failed" "$work/results.md")" -eq 2 ] # staged, and in device memory
  grep -Eq "NCCL \| 2\.[0-9]+\.[0-9]+ \(" "$work/results.md"
  grep -Eq "launching all_reduce of 4 B: [0-9.]+ us by NCCL .*, [0-9.]+ us over backplane" "$work/results.md"
  if [ -n "${4:-}" ]; then
    grep -q "| calls with arrays on devices | calls between device 0 and device $((devices - 1)): all elements right; " \
      "$work/results.md" || { cat "$work/log"; exit 1; }
  else
    grep -q "| calls with arrays on devices | not tried: " "$work/results.md"
  fi
  grep -q "| memory | 100 groups made and ended: 0 bytes of device memory more in use |" "$work/results.md"
  grep -q "^2 .*all_reduce .*4 B" "$work/results.md"
  case $devices in 1) peers="not tried: one device" ;; *) peers="no two devices lack it" ;; esac
  grep -q "| peer access | $peers |" "$work/results.md"
done

# Wrong elements make the whole check fail.
if [ -n "${4:-}" ]; then
  code=0
  LD_LIBRARY_PATH="$4" BACKPLANE_DOUBLE_CUDA_WRONG=1 "$work/gpu-check" --library "$3" --devices 1 --filter p2p.tag-match \
    --sizes 4 --output "$work/results.md" >"$work/log" 2>&1 || code=$?
  [ $code -eq 1 ]
  grep -q "| calls with arrays on devices | FAILED: an array of 1 floats came back with other elements |" "$work/results.md"
fi

if "$work/gpu-check" --library "$3" --devices all --output "$work/none.md" >"$work/log" 2>&1; then
  echo "gpu-check accepted a word as number of devices"
  exit 1
fi
grep -q "must be a number" "$work/log"

if "$work/gpu-check" --library "$3" --devices 1 --output "$work/nowhere/none.md" >"$work/log" 2>&1; then
  echo "gpu-check continued although it cannot write its results"
  exit 1
fi
grep -q "^gpu-check: .*/nowhere/none.md cannot be written; name another file" "$work/log" || { cat "$work/log"; exit 1; }

code=0
"$work/gpu-check" --library "$3" --devices 1 --filter p2p.tag-mach --output "$work/none.md" >"$work/log" 2>&1 || code=$?
[ $code -eq 2 ]
tail -n 1 "$work/log" | grep -q "^gpu-check: nothing was checked: --filter p2p.tag-mach: no such case; did you mean" ||
  { cat "$work/log"; exit 1; }
[ ! -e "$work/none.md" ]

if BACKPLANE_DOUBLE_DRIVER=0 "$work/gpu-check" --library "$3" --devices 1 --output "$work/none.md" >"$work/log" 2>&1; then
  echo "gpu-check found a GPU without a driver"
  exit 1
fi
grep -q "no CUDA driver" "$work/log"

# The command `backplane list --probe` reports the same reasons.
expect_probe() { # LIBRARY DRIVER DEVICES REASON
  BACKPLANE_NCCL_LIBRARY=$1 BACKPLANE_DOUBLE_DRIVER=$2 BACKPLANE_DOUBLE_DEVICES=$3 "$backplane" list --probe >"$work/log"
  grep -A 1 "^nccl  *no " "$work/log" | grep -q "^    not viable: $4" || { cat "$work/log"; exit 1; }
}
backplane="$2/bin/backplane"
expect_probe /nowhere/libnccl.so.2 13000 1 "NCCL cannot be loaded; .*: /nowhere/libnccl.so.2: cannot open"
expect_probe libm.so.6 13000 1 ".*libm.so.6 has no function ncclGetVersion"
expect_probe "$3" 0 1 "NCCL 2[0-9.]* is installed, but no CUDA driver"
expect_probe "$3" 11040 1 ".*driver for CUDA 11.4"
expect_probe "$3" 13000 0 "NCCL 2[0-9.]* is installed, but this machine has no CUDA device"

# Missing peer access is reported, but NCCL is still viable.
export BACKPLANE_NCCL_LIBRARY="$3" BACKPLANE_DOUBLE_DEVICES=2 BACKPLANE_DOUBLE_PEERS=0
"$backplane" list --probe >"$work/log" 2>&1
grep -q "  viable: nccl: 1 of 1 pairs of devices have no peer access" "$work/log" || { cat "$work/log"; exit 1; }
"$backplane" explain --devices >"$work/log" 2>&1
grep -q "nccl for device memory (1 of 1 pairs of devices have no peer access" "$work/log" || { cat "$work/log"; exit 1; }
