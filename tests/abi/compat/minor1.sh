#!/usr/bin/env bash
# minor1.sh FROZEN_1_0 TARGET: writes to TARGET/backplane the headers of a simulated ABI 1.1. Every struct that may grow
# gets one more field; that of bp_host is the worked example of share/doc/abi.md.
set -euo pipefail
rm -rf "$2/backplane"
mkdir -p "$2"
cp -r "$1/backplane" "$2/"
cd "$2/backplane/abi"
chmod -R u+w .
sed -i 's/^#define BP_ABI_MINOR 0\b/#define BP_ABI_MINOR 1/' version.h

# append STRUCT FIELD SIZE_AT_1_0 DECLARATION...: appends a field as share/doc/abi.md describes.
append() {
  local struct=$1 field=$2 size=$3 declaration=$4 header
  header=$(grep -lE "^} $struct;" ./*.h ext/*.h)
  sed -i "s|^} $struct;|\n  $declaration\n&|" "$header"
  sed -i "s|^BP_SIZE($struct, $size);|&\nBP_AT($struct, $field, $size);\nBP_SIZE($struct, $((size + 8)));|" layout.h
  grep -q "^BP_AT($struct, $field, $size);" layout.h # its size in layout.h was what we think it was
}
append bp_host now_ns 96 '/* Since 1.1: nanoseconds of the clock that the core'"'"'s deadlines are measured with. [any], does not block. */\
  int64_t (*now_ns)(void* ctx);'
append bp_error since_1_1 1112 'uint64_t since_1_1;'
append bp_result since_1_1 24 'uint64_t since_1_1;'
append bp_op since_1_1 168 'uint64_t since_1_1;'
append bp_option since_1_1 64 'uint64_t since_1_1;'
append bp_process_group_api since_1_1 72 'void (*since_1_1)(void* self);'
append bp_capability since_1_1 32 'uint64_t since_1_1;'
append bp_options_request since_1_1 32 'uint64_t since_1_1;'
append bp_init since_1_1 104 'uint64_t since_1_1;'
append bp_agent since_1_1 48 'uint64_t since_1_1;'
append bp_backend since_1_1 104 'uint64_t since_1_1;'
append bp_plugin since_1_1 40 'uint64_t since_1_1;'
append bp_reduce_api since_1_1 40 'uint64_t since_1_1;'
append bp_device_api since_1_1 32 'uint64_t since_1_1;'
append bp_memory_api since_1_1 40 'uint64_t since_1_1;'
append bp_notify_api since_1_1 24 'uint64_t since_1_1;'
append bp_probe_api since_1_1 32 'uint64_t since_1_1;'
append bp_native_api since_1_1 24 'uint64_t since_1_1;'
append bp_security_api since_1_1 8 'uint64_t since_1_1;'
append bp_plan_api since_1_1 8 'uint64_t since_1_1;'
append bp_call since_1_1 64 'uint64_t since_1_1;'
append bp_metric since_1_1 32 'uint64_t since_1_1;'
append bp_metrics_api since_1_1 32 'uint64_t since_1_1;'
append bp_calls_api since_1_1 32 'uint64_t since_1_1;'
append bp_rpc_message since_1_1 56 'uint64_t since_1_1;'
append bp_rpc_api since_1_1 40 'uint64_t since_1_1;'
append bp_rpc_host since_1_1 56 'uint64_t since_1_1;'
