#!/bin/sh
# device_call_test.sh PROGRAM FOLDER: backplane-device-call on the double of CUDA's driver in that folder, with one
# device and with two; it notices wrong elements, and says why it cannot try.
set -eu
export LD_LIBRARY_PATH="$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

expect() { # STATUS PATTERN
  code=0
  said=$("$program") || code=$?
  echo "$said"
  [ $code -eq "$1" ] && echo "$said" | grep -Eq "$2"
}
program=$1

export BACKPLANE_DOUBLE_CUDA_DEVICES=1
expect 0 '^calls between device 0 and device 0: all elements right; there and back 4 KiB in [0-9]+ us, 16 MiB in [0-9]+ us$'
export BACKPLANE_DOUBLE_CUDA_DEVICES=2
expect 0 '^calls between device 0 and device 1: all elements right'
BACKPLANE_DOUBLE_CUDA_WRONG=1
export BACKPLANE_DOUBLE_CUDA_WRONG
expect 1 'FAILED: an array of 1 floats came back with other elements'
export BACKPLANE_DOUBLE_CUDA_DEVICES=0
expect 2 'not tried: the CUDA driver offers no device \(error 100\)'
