#!/usr/bin/env bash
# forbidden_changes_test.sh SOURCE_DIR: the checks of the ABI accept the simulated 1.1 and detect each forbidden change.
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
failed=0

# A temporary tree in which 1.0 is frozen and each case changes the current headers.
fresh() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree/core/abi/include/backplane" "$work/tree/core/include/backplane" "$work/tree/tests/abi/frozen"
  cp -r "$1/tests/abi/compat" "$work/tree/tests/abi/"
  cp -r "$1/tests/abi/frozen/1.0" "$work/tree/tests/abi/frozen/"
  cp -r "$1/tests/abi/frozen/1.0/backplane/abi" "$work/tree/core/abi/include/backplane/"
  cp "$1"/tests/abi/frozen/1.0/backplane/*.h "$work/tree/core/include/backplane/"
}
headers=$work/tree/core/abi/include/backplane/abi
layout() { "$work/tree/tests/abi/compat/layout_test.sh" "$work/tree" >"$work/log" 2>&1; }
abidiff() { "$work/tree/tests/abi/compat/abidiff_test.sh" "$work/tree" >"$work/log" 2>&1; }
passes() {
  if ! "$1"; then
    echo "$1 complains about $2:" && sed 's/^/    /' "$work/log"
    failed=1
  fi
}
# notices CHECKS WHAT WORDS FILE SED: expects that each of the checks fails after the edit and prints WORDS.
notices() {
  fresh "$source"
  cp "$headers/$4" "$work/before"
  sed -i "$5" "$headers/$4"
  if cmp -s "$headers/$4" "$work/before"; then
    echo "nothing was changed: $5"
    failed=1
  fi
  for check in $1; do
    if "$check" || ! grep -qE "$3" "$work/log"; then
      echo "$check does not say that it notices $2:" && sed 's/^/    /' "$work/log"
      failed=1
    fi
  done
}

source=$1
fresh "$source"
passes layout 'no change'
passes abidiff 'no change'
"$source/tests/abi/compat/minor1.sh" "$source/tests/abi/frozen/1.0" "$work/tree/core/abi/include"
rm "$work/tree/core/abi/include/backplane/"*.h # they have a folder of their own in a source tree
passes layout 'appended fields'
passes abidiff 'appended fields'
c_api=../../../../include/backplane
notices 'layout abidiff' 'a field of another type' timeout_ns op.h 's/  int64_t timeout_ns;/  uint64_t timeout_ns;/'
notices 'layout abidiff' 'a function with another argument' '\blog\b' host.h 's/uint32_t level, const/int32_t level, const/'
notices 'layout abidiff' 'a number that became a float' native_code status.h 's/int64_t native_code; /double native_code; /'
notices 'layout abidiff' 'a field in the middle' '\bseq\b' op.h 's/^  uint64_t seq;/  uint64_t early; uint64_t seq;/'
notices 'layout abidiff' 'a field that went' vendor plugin.h 's/^  const char\* vendor;.*//'
notices 'layout' 'a field without its line in layout.h' bp_result.extra op.h 's/^} bp_result;/  uint64_t extra;\n&/'
notices 'layout' 'padding' '[Pp]adding' op.h 's/^} bp_result;/  uint32_t extra;\n&/'
notices 'layout' 'an enumerator with another value' BP_F16 types.h 's/BP_F16 = 9,/BP_F16 = 29,/'
notices 'layout' 'a constant with another value' BP_TAG_INTERNAL op.h 's/UINT64_C(1) << 63/UINT64_C(1) << 62/'
notices 'layout' 'a flag with another value' BP_OP_MORE ext/device.h 's/define BP_OP_MORE UINT64_C(2)/define BP_OP_MORE UINT64_C(4)/'
notices 'layout' 'another flag with another value' BP_BACKEND_RPC_OVER_GROUP plugin.h 's/RPC_OVER_GROUP = 256/RPC_OVER_GROUP = 512/'
notices 'layout' 'a line of layout.h that went' 'bp_op.*seq' layout.h '/^BP_AT(bp_op, seq, 32);/d'
for change in 'ext/rpc.h bp_rpc_api.send int32_t.to, int64_t.to,' 'ext/memory.h bp_memory_api.allocate uint64_t.bytes, uint32_t.bytes,' \
  'ext/device.h bp_device_api.wait_on_stream int64_t.timeout_ns, int32_t.timeout_ns,'; do
  read -r header field from to <<<"$change"
  notices 'layout abidiff' "another signature of $field" "${field#*.}" "$header" "s/(\*${field#*.})(\(.*\)${from//./ }/(*${field#*.})(\1${to//./ }/"
done
notices 'layout' 'another signature of a function of the C API' 'function bp_group_run' $c_api/backplane.h \
  's/bp_group_run(bp_group\* group, const bp_op\* op,/bp_group_run(bp_group* group, bp_op* op,/'
notices 'layout abidiff' 'a field of the C API of another type' rpc_timeout_ns $c_api/rpc.h 's/  int64_t rpc_timeout_ns;/  double rpc_timeout_ns;/'
fresh "$source"
sed -i '$a/* an edit */' "$work/tree/tests/abi/frozen/1.0/backplane/abi/op.h"
if layout; then echo 'layout does not notice an edit of the frozen headers' && failed=1; fi
if [ -f "$source/tests/abi/frozen/1.0/binaries.tar.xz" ]; then
  fresh "$source"
  echo >>"$work/tree/tests/abi/frozen/1.0/binaries.tar.xz"
  if layout; then echo 'layout does not notice an edit of the frozen binaries' && failed=1; fi
  rm "$work/tree/tests/abi/frozen/1.0/binaries.tar.xz"
  if layout; then echo 'layout does not notice that the frozen binaries are gone' && failed=1; fi
fi
exit "$failed"
