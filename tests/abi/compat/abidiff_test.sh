#!/usr/bin/env bash
# abidiff_test.sh SOURCE_DIR: from each frozen release to the current headers only fields were appended.
set -euo pipefail
for frozen in "$1"/tests/abi/frozen/[0-9]*; do
  echo "== $(basename "$frozen") and now"
  "$1/tests/abi/compat/abidiff.sh" "$frozen" "$1/core/abi/include" "$1/core/include"
done
