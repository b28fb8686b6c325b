#!/usr/bin/env bash
# exports_test.sh SOURCE_DIR LIBBACKPLANE: the C API of libbackplane only grows, and exports.txt lists it.
set -euo pipefail
export LC_ALL=C
golden=$1/tests/abi/exports.txt
# gcc -fsanitize=address adds symbols of its own.
exported=$(nm -D --defined-only "$2" | awk '$3 !~ /^__odr_asan/ { print $3 }' | sort -u)
if [ -z "$exported" ]; then
  echo "nm found no symbol in $2"
  exit 1
fi
failed=0
missing=$(comm -13 <(echo "$exported") <(sort "$golden"))
if [ -n "$missing" ]; then
  printf 'gone from libbackplane, which breaks every program that calls them:\n%s\n' "$missing"
  failed=1
fi
fresh=$(comm -23 <(echo "$exported") <(sort "$golden"))
if [ -n "$fresh" ]; then
  printf 'new in libbackplane; append to tests/abi/exports.txt what is meant to be public for good:\n%s\n' "$fresh"
  failed=1
fi
for frozen in "$1"/tests/abi/frozen/*/exports.txt; do
  if ! cmp -s "$frozen" <(head -n "$(wc -l <"$frozen")" "$golden"); then
    echo "tests/abi/exports.txt does not begin with the lines of $frozen: it is append-only"
    failed=1
  fi
done
if [ "$failed" = 0 ]; then echo "$(echo "$exported" | wc -l) symbols, all as listed"; fi
exit "$failed"
