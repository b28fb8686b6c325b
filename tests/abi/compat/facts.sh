#!/usr/bin/env bash
# facts.sh FOLDER...: all properties of the C headers in FOLDER/backplane on which compiled code depends, one per line,
# sorted:
#   field STRUCT.FIELD OFFSET TYPE      size STRUCT BYTES      enum NAME VALUE      macro NAME TEXT
#   function NAME TYPE
set -euo pipefail
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
includes=("${@/#/-I}")
for folder in "$@"; do (cd "$folder" && find backplane -name '*.h'); done | sort | sed 's/.*/#include "&"/' >"$work/all.c"

{
  # Deeper fields belong to a nested struct, which is listed separately.
  clang -fsyntax-only -Xclang -fdump-record-layouts-complete "${includes[@]}" "$work/all.c" | awk '
    /^ +0 \| struct bp_/ { name = $4; next }
    /\[sizeof=/ { if (name != "") { match($0, /sizeof=[0-9]+/); print "size", name, substr($0, RSTART + 7, RLENGTH - 7) }
                  name = ""; next }
    name != "" && /^ +[0-9]+ \|   [^ ]/ {
      offset = $1; line = $0; sub(/^ +[0-9]+ \|   /, "", line)
      field = line; sub(/.* /, "", field); sub(/ ?[^ ]+$/, "", line); gsub(/ /, "_", line)
      print "field", name "." field, offset, line }'

  clang -fsyntax-only -Xclang -ast-dump -fno-color-diagnostics "${includes[@]}" "$work/all.c" |
    sed -nE "s/^[|\`]-FunctionDecl .* (bp_[a-z_]+) '([^']*)'.*/function \1 \2/p"

  gcc -E -P "${includes[@]}" "$work/all.c" >"$work/all.i"
  if grep -qE '\bBP_[A-Z0-9_]+ *(,|})' <(grep -oE 'enum *\{[^}]*\}' <(tr '\n' ' ' <"$work/all.i")); then
    echo "an enumerator has no explicit value" >&2
    exit 1
  fi
  tr '\n' ' ' <"$work/all.i" | grep -oE '\bBP_[A-Z0-9_]+ = [0-9]+' | sed 's/^/enum /; s/ = / /'
  gcc -E -dM "${includes[@]}" "$work/all.c" | sed -nE 's/^#define (BP_[A-Z0-9_]+) +(.+)/macro \1 \2/p'
} | sort -u
