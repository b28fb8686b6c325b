#!/usr/bin/env bash
# layout_test.sh SOURCE_DIR: the headers have only grown since each frozen release, and layout.h is complete.
set -euo pipefail
export LC_ALL=C
cd "$1"
tests=tests/abi/compat
headers=core/abi/include
all_headers="$headers core/include"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  printf '%s:\n' "$1"
  sed 's/^/    /'
  failed=1
}
some() { [ -s "$work/found" ]; }

"$tests/facts.sh" $all_headers >"$work/now"
fields=$(grep -c '^field' "$work/now")
if [ "$fields" -lt 100 ]; then
  echo "only $fields fields were found: clang no longer prints layouts as facts.sh reads them"
  exit 1
fi

# 1. layout.h against the compiler, in both directions; the size is the last BP_SIZE of a struct.
sed -nE 's/^BP_AT\((\w+), (\w+), ([0-9]+)\);/\1.\2 \3/p' $headers/backplane/abi/layout.h | sort >"$work/golden"
"$tests/facts.sh" $headers >"$work/abi"
sed -nE 's/^field ([^ ]+ [0-9]+) .*/\1/p' "$work/abi" | sort >"$work/fields"
comm -13 "$work/golden" "$work/fields" >"$work/found"
if some; then complain 'fields without a BP_AT in layout.h' <"$work/found"; fi
comm -23 "$work/golden" "$work/fields" >"$work/found"
if some; then complain 'BP_AT lines of layout.h for what is not there' <"$work/found"; fi
sed -nE 's/^BP_SIZE\((\w+), ([0-9]+)\);/\1 \2/p' $headers/backplane/abi/layout.h |
  awk '{ size[$1] = $2 } END { for (s in size) print s, size[s] }' | sort >"$work/golden"
sed -n 's/^size //p' "$work/abi" | sort >"$work/sizes"
diff "$work/golden" "$work/sizes" >"$work/found" || true
if some; then complain 'sizes in layout.h (<) that are not those of the compiler (>)' <"$work/found"; fi

# 2. No padding: an appended field must not be within the struct_size of an older release.
printf '#include "backplane/%s"\n' backplane.h rpc.h >"$work/all.c"
for compiler in gcc clang; do
  $compiler -Wpadded -fsyntax-only ${all_headers//core/-Icore} "$work/all.c" 2>"$work/found" || true
  if some; then complain "padding, says $compiler" <"$work/found"; fi
done

# 3. Against each frozen release.
for frozen in tests/abi/frozen/[0-9]*; do
  (cd "$frozen" && sha256sum --check --quiet SHA256SUMS) >"$work/found" 2>&1 || true
  if some; then complain "$frozen was edited" <"$work/found"; fi
  (cd "$frozen" && find . -type f ! -name SHA256SUMS | sort | diff - <(sed 's/^[^ ]*  //' SHA256SUMS | sort)) \
    >"$work/found" || true
  if some; then complain "files that came (<) or went (>) in $frozen" <"$work/found"; fi

  "$tests/facts.sh" "$frozen" >"$work/then"
  # These are meant to grow: the minor, the counts at the end of enumerations, and the masks made of them.
  grown='^(macro (BP_ABI_MINOR|BP_ALL_[A-Z_]+) |enum BP_[A-Z_]+_COUNT )'
  grep '^size ' "$work/then" | while read -r _ struct size; do
    now=$(sed -n "s/^size $struct //p" "$work/now")
    if [ "${now:-0}" -lt "$size" ]; then echo "$struct had $size bytes, now ${now:-none}"; fi
  done >"$work/found"
  if some; then complain "structs that shrank since $frozen" <"$work/found"; fi
  comm -23 <(grep -vE "$grown|^size " "$work/then" | sort) <(sort "$work/now") >"$work/found"
  if some; then complain "what $frozen promised and is no longer true" <"$work/found"; fi
  diff <(grep -E '^BP_(AT|SIZE|FROZEN)' "$frozen/backplane/abi/layout.h") \
    <(grep -E '^BP_(AT|SIZE|FROZEN)' $headers/backplane/abi/layout.h) | sed -n 's/^< //p' >"$work/found" || true
  if some; then complain "lines of layout.h that were changed or moved since $frozen, not appended" <"$work/found"; fi
done
if [ "$failed" = 0 ]; then echo "$fields fields, all as they were"; fi
exit "$failed"
