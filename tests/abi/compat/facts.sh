#!/usr/bin/env bash
# facts.sh HEADERS: all that a compiled plugin knows of the ABI in HEADERS/backplane/abi, one fact per line, sorted:
#   field STRUCT.FIELD OFFSET TYPE      size STRUCT BYTES      enum NAME VALUE      macro NAME TEXT
set -euo pipefail
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '#include "backplane/abi/abi.h"' >"$work/all.c"

{
  # Fields that stand deeper belong to a struct inside the struct, which is listed for itself.
  clang -fsyntax-only -Xclang -fdump-record-layouts-complete -I"$1" "$work/all.c" | awk '
    /^ +0 \| struct bp_/ { name = $4; next }
    /\[sizeof=/ { if (name != "") { match($0, /sizeof=[0-9]+/); print "size", name, substr($0, RSTART + 7, RLENGTH - 7) }
                  name = ""; next }
    name != "" && /^ +[0-9]+ \|   [^ ]/ {
      offset = $1; line = $0; sub(/^ +[0-9]+ \|   /, "", line)
      field = line; sub(/.* /, "", field); sub(/ ?[^ ]+$/, "", line); gsub(/ /, "_", line)
      print "field", name "." field, offset, line }'

  gcc -E -P -I"$1" "$work/all.c" >"$work/all.i"
  if grep -qE '\bBP_[A-Z0-9_]+ *(,|})' <(grep -oE 'enum *\{[^}]*\}' <(tr '\n' ' ' <"$work/all.i")); then
    echo "an enumerator has no explicit value" >&2
    exit 1
  fi
  tr '\n' ' ' <"$work/all.i" | grep -oE '\bBP_[A-Z0-9_]+ = [0-9]+' | sed 's/^/enum /; s/ = / /'
  gcc -E -dM -I"$1" "$work/all.c" | sed -nE 's/^#define (BP_[A-Z0-9_]+) +(.+)/macro \1 \2/p'
} | sort -u
