#!/bin/sh
# device_call_test.sh PROGRAM FOLDER: runs backplane-device-call over the test double of the CUDA driver in FOLDER,
# with one device and with two. It must detect wrong elements, and state why it cannot run without devices.
set -eu
export LD_LIBRARY_PATH="$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

expect() { # STATUS PATTERN
  code=0
  output=$("$program") || code=$?
  echo "$output"
  [ $code -eq "$1" ] && echo "$output" | grep -Eq "$2"
}
program=$1

export BACKPLANE_DOUBLE_CUDA_DEVICES=1
expect 0 '^calls between device 0 and device 0: all elements right; round trip of 4 KiB in [0-9]+ us, of 16 MiB in [0-9]+ us$'
export BACKPLANE_DOUBLE_CUDA_DEVICES=2
expect 0 '^calls between device 0 and device 1: all elements right'
BACKPLANE_DOUBLE_CUDA_WRONG=1
export BACKPLANE_DOUBLE_CUDA_WRONG
expect 1 'FAILED: an array of 1 floats came back with other elements'
export BACKPLANE_DOUBLE_CUDA_DEVICES=0
expect 2 'not tried: the CUDA driver offers no device \(error 100\)'
