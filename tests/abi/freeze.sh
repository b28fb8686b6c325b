#!/usr/bin/env bash
# freeze.sh VERSION: writes tests/abi/frozen/VERSION: the C headers, the plugin of the C template, the exports of
# libbackplane, and checksums. Run it on the day of an ABI release. Replaces existing files only before that release.
# Deletes binaries of other headers; freeze_binaries.sh VERSION builds them again.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
frozen=$root/tests/abi/frozen/$1
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
if [ -f "$frozen/binaries.tar.xz" ]; then cp "$frozen"/{binaries.tar.xz,SHA256SUMS} "$before/"; fi
rm -rf "$frozen"
mkdir -p "$frozen/backplane" "$frozen/plugin"
cp -r "$root/core/abi/include/backplane/abi" "$frozen/backplane/"
cp "$root"/core/include/backplane/{backplane,rpc}.h "$frozen/backplane/"
for file in acme.c matching.h transport.h; do
  sed 's/acme-id/toy/g' "$root/share/templates/c/sendrecv/src/$file" >"$frozen/plugin/$file"
done
cp "$root/tests/abi/exports.txt" "$frozen/"
cd "$frozen"
find . -type f | sort | xargs sha256sum >"$root/tests/abi/frozen/sums"
mv "$root/tests/abi/frozen/sums" SHA256SUMS
if [ -f "$before/binaries.tar.xz" ] && grep -v 'binaries.tar.xz$' "$before/SHA256SUMS" | cmp -s - SHA256SUMS; then
  cp "$before"/* .
fi
