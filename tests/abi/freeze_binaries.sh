#!/usr/bin/env bash
# freeze_binaries.sh VERSION: writes tests/abi/frozen/VERSION/binaries.tar.xz: plugins, programs and libbackplane, built
# from this tree for x86-64, which the tests of later releases run. Run it on the day of an ABI release, after freeze.sh
# VERSION. Takes some minutes. Needs the packages of `tools/install-deps test`, and the oldest system on which the tests
# must run.
set -euo pipefail
export LC_ALL=C
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
frozen=$root/tests/abi/frozen/$1
templates=$root/share/templates
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "freeze_binaries.sh: $*" >&2
  exit 1
}

[ "$(uname -sm)" = 'Linux x86_64' ] || fail 'the binaries are for x86-64 Linux'
rustc --version >"$work/rustc" || fail 'there is no rustc that works (Debian: rustc)'
diff -rq "$root/core/abi/include/backplane/abi" "$frozen/backplane/abi" >&2 || fail "run tests/abi/freeze.sh $1 first"
for header in backplane.h rpc.h; do
  cmp "$root/core/include/backplane/$header" "$frozen/backplane/$header" || fail "run tests/abi/freeze.sh $1 first"
done

# The binaries contain no paths of this machine, and need no library of other packages except libzmq.
compile=(-Os -Wall -Wextra "-ffile-prefix-map=$root=backplane" "-ffile-prefix-map=$work=build")
link=-Wl,--build-id=none,--as-needed
cmake -S "$root" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
  -DCMAKE_BUILD_TYPE=MinSizeRel -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 \
  -DBACKPLANE_TESTS=OFF -DBACKPLANE_TOOLS=OFF \
  -DCMAKE_C_FLAGS="${compile[*]}" -DCMAKE_CXX_FLAGS="${compile[*]} -DFMT_HEADER_ONLY" \
  -DCMAKE_SHARED_LINKER_FLAGS=$link -DCMAKE_MODULE_LINKER_FLAGS=$link -DCMAKE_SKIP_RPATH=ON \
  -Dpkgcfg_lib_SODIUM_sodium="$(gcc -print-file-name=libsodium.a)" >"$work/log" || fail "$(cat "$work/log")"
ninja -C "$work/build" backplane backplane_plugin_{zmq,trace,validate,chaos}

binaries=$work/binaries
mkdir "$binaries"
cp "$work/build/lib/libbackplane.so.1" "$work"/build/lib/backplane/plugins/*.so "$binaries/"

# plugin COMPILER ID SOURCE FLAG...
plugin() {
  local compiler=$1 id=$2 source=$3
  shift 3
  "$compiler" "${compile[@]}" "$@" -fPIC -shared -fvisibility=hidden -I "$frozen" -I "$root/sdk/include" -I "$root/base/include" "$source" \
    -o "$binaries/backplane_$id.so" -pthread -Wl,-z,now "$link" -Wl,--version-script="$root/sdk/cmake/plugin.map"
}
# The templates as `backplane new` would fill them in.
for id in by_c by_gcc by_clang by_rust; do
  mkdir "$work/$id"
  case $id in
    by_c) cp "$templates"/c/sendrecv/src/* "$work/$id/" ;;
    by_rust) cp "$templates"/rust/sendrecv/src/* "$work/$id/" ;;
    *) cp "$templates"/c++/{sendrecv,sockets}/src/* "$work/$id/" ;;
  esac
  sed -i "s/acme-id/$id/g" "$work/$id"/*
done
plugin gcc by_c "$work/by_c/acme.c" -std=c11
plugin g++ by_gcc "$work/by_gcc/acme.cpp" -std=c++20 -fno-gnu-unique
plugin clang++ by_clang "$work/by_clang/acme.cpp" -std=c++20
rustc --edition 2021 --crate-type cdylib --crate-name by_rust -C opt-level=s -C lto=fat -C codegen-units=1 \
  -C panic=unwind -C relocation-model=pic -C linker=gcc -C link-arg=-Wl,-z,now,--build-id=none \
  --remap-path-prefix "$work=build" -o "$binaries/backplane_by_rust.so" "$work/by_rust/lib.rs"

# program COMPILER NAME SOURCE FLAG...
program() {
  local compiler=$1 name=$2 source=$3
  shift 3
  "$compiler" "${compile[@]}" "$@" -I "$frozen" -I "$root/core/include" -I "$root/base/include" "$source" -o "$binaries/$name" \
    -pthread "$link" -L "$work/build/lib" -lbackplane
}
program gcc hello_c "$root/share/examples/hello.c" -std=c11
program g++ rank "$root/tests/abi/compat/rank.cpp" -std=c++20
program g++ master_worker "$root/share/examples/master_worker.cpp" -std=c++20

cd "$binaries"
chmod 755 -- *
strip --strip-all -- *
for file in *; do
  if grep -aE "$root|$work|${HOME:-/root}" "$file" >&2; then fail "$file contains a path of this machine"; fi
  if readelf -n "$file" | grep 'Build ID' >&2; then fail "$file has a build id"; fi
  if objdump -p "$file" | sed -n 's/^ *NEEDED *//p' |
    grep -vxE 'lib(c|m|gcc_s|stdc\+\+|zmq|backplane)\.so\.[0-9]+|ld-linux-x86-64\.so\.2' >&2; then
    fail "$file needs that library, too"
  fi
  # What Debian 12 has.
  objdump -T "$file" | grep -oE '\bGLIBC(XX)?_[0-9.]+' | sed 's/_/ /' | while read -r library version; do
    limit=2.36
    if [ "$library" = GLIBCXX ]; then limit=3.4.30; fi
    [ "$(printf '%s\n' "$version" "$limit" | sort -V | tail -1)" = "$limit" ] || fail "$file needs $library $version"
  done
done
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c -- * | xz -9e >"$frozen/binaries.tar.xz"
cd "$frozen"
sed -i '/binaries.tar.xz$/d' SHA256SUMS
sha256sum ./binaries.tar.xz >>SHA256SUMS
ls -l "$binaries" binaries.tar.xz
