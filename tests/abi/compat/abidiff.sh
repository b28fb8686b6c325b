#!/usr/bin/env bash
# abidiff.sh OLD_FOLDER NEW_FOLDER...: compares two states of the ABI as libabigail sees them in debug information. Prints
# its report; fails if anything but appending a field to a struct was done.
set -euo pipefail
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A library that has every struct of OLD in its interface. New structs cannot break old code.
find "$1/backplane" -name '*.h' -exec sed -nE 's/^\} (bp_[a-z_]+);/\1/p' {} + | sort -u >"$work/structs"
{
  (cd "$1" && find backplane -name '*.h' | sort | sed 's/.*/#include "&"/')
  sed -E 's/.*/BP_EXPORT void use_&(const & *it);\nvoid use_&(const & *it) { (void)it; }/' "$work/structs"
} >"$work/all.c"
gcc -g -O0 -fPIC -shared -fvisibility=hidden -I"$1" -o "$work/old.so" "$work/all.c"
shift
gcc -g -O0 -fPIC -shared -fvisibility=hidden "${@/#/-I}" -o "$work/new.so" "$work/all.c"

code=0
abidiff --leaf-changes-only --no-show-locs "$work/old.so" "$work/new.so" >"$work/report" || code=$?
cat "$work/report"
# 1: an error, 2: wrong use, 4: changes, 8: changes that are incompatible for certain.
if ((code & ~4)); then
  echo "abidiff ends with $code"
  exit 1
fi
abidw "$work/old.so" >"$work/types"
if ! grep -q "name='bp_plugin'" "$work/types"; then
  echo "abidiff sees no types: no debug information"
  exit 1
fi
# Lines other than headings and fields behind the old end of a struct report changes of existing parts.
awk '
  /^Leaf changes summary|^Changed leaf types summary|^Removed\/Changed\/Added|^$/ { next }
  /^.struct bp_[a-z_]+. changed:$/ { end = -1; next }
  /^  type size changed from [0-9]+ to [0-9]+ \(in bits\)$/ { end = $5; next }
  /^  [0-9]+ data member insertions?:$/ { next }
  /^    .*, at offset [0-9]+ \(in bits\)$/ && end >= 0 { if ($(NF - 2) + 0 >= end + 0) next }
  { print "incompatible: " $0; bad = 1 }
  END { exit bad }' "$work/report"
