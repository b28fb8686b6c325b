#!/usr/bin/env bash
# targets_test.sh SOURCE_DIR: the public headers parse on targets for which Backplane is not built: all of them for
# aarch64, and the C headers, freestanding, for macOS. C++ headers that use calls of Linux state that at their top.
# Exits with 77 without the cross libraries.
set -euo pipefail
cd "$1"
if ! [ -d /usr/aarch64-linux-gnu/include/c++ ]; then
  echo "targets_test: no C++ library for aarch64 (Debian: libstdc++-12-dev-arm64-cross)"
  exit 77
fi
includes=(-I core/abi/include -I base/include -I core/include -I sdk/include)
failed=0
# parse HEADERS ARGUMENT...: parses all headers in one unit; abi_headers_alone compiles each separately.
parse() {
  local headers=$1 said
  shift
  if ! said=$(clang -fsyntax-only -Wall -Wextra -Werror "$@" "${includes[@]}" - < <(sed 's/.*/#include "&"/' <<<"$headers") 2>&1); then
    printf 'with %s:\n%s\n' "$*" "$said"
    failed=1
  fi
}
c_headers=$(cd core/abi/include && find backplane -name '*.h' && printf 'backplane/%s.h\n' backplane rpc)
cpp_headers=$(cd core/include && find backplane -name '*.hpp' && cd ../../sdk/include && ls backplane/sdk/*.hpp && cd ../../base/include && ls backplane/base/*.hpp)
for target in aarch64-linux-gnu arm64-apple-macos13 x86_64-apple-macos13; do
  parse "$c_headers" --target=$target -ffreestanding -x c -std=c11
  parse "$c_headers" --target=$target -ffreestanding -nostdinc++ -x c++ -std=c++20
done
parse "$cpp_headers" --target=aarch64-linux-gnu -x c++ -std=c++20
for header in $(grep -rlE --include='*.hpp' '<(sys/(prctl|syscall|eventfd|random)|linux/.*)\.h>' base/include/backplane core/include/backplane sdk/include/backplane/sdk); do
  if ! head -n 30 "$header" | grep -q 'Linux only'; then
    echo "$header uses Linux's own calls and does not say 'Linux only' at its top"
    failed=1
  fi
done
exit "$failed"
