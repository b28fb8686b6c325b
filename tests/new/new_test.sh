#!/usr/bin/env bash
# new_test.sh PREFIX HELLO CC CXX LANGUAGE ORIGIN NAME: writes a project with the installed `backplane new`, builds it
# against the installed Backplane, runs its tests, installs the plugin and runs a job over it.
set -euo pipefail
prefix=$1 hello=$2
export CC=$3 CXX=$4
language=$5 origin=$6 name=$7

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Excludes settings and plugins of this machine.
unset BACKPLANE_PLUGIN_PATH BACKPLANE_BACKEND LD_LIBRARY_PATH CMAKE_PREFIX_PATH
export HOME=$work XDG_DATA_HOME=$work
umask 022 # plugin files that others could write are refused

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cd "$work"
"$prefix/bin/backplane" new "$name" --language "$language" --from "$origin" | tee printed
commands=$(grep -m 1 '^    cmake ' printed) || fail "it prints no commands"
rm said
[ "$(ls -A)" = "$name" ] || fail "backplane new left more than the project: $(ls -A)"
if grep -rqi acme "$name" && [[ $name != *acme* ]]; then fail "a placeholder was left: $(grep -ri acme "$name")"; fi
[ -f "$name/.github/workflows/ci.yml" ] || fail "there is no file for continuous integration"

cmake -S "$name" -B build -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >log 2>&1 ||
  fail "it cannot be configured: $(cat log)"
cmake --build build >log 2>&1 || fail "it does not build: $(cat log)"
if grep -i warning log; then fail "it builds with warnings"; fi
ctest --test-dir build --output-on-failure --no-tests=error || fail "its own tests fail"

plugin=build/backplane_$name.so
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}')
[ "$exported" = bp_plugin_v1 ] || fail "$plugin exports: $exported"
readelf -d "$plugin" >dynamic
if grep NEEDED dynamic | grep -i backplane; then fail "$plugin needs libbackplane"; fi
grep -q 'BIND_NOW\|Flags:.*NOW' dynamic || fail "$plugin is not resolved at load"

(eval "$commands") >log 2>&1 || fail "the commands that it prints do not work as printed: $(cat log)"

cmake --install build --prefix "$work/elsewhere" >log
export BACKPLANE_PLUGIN_PATH=$work/elsewhere/lib/backplane/plugins
timeout 120 "$prefix/bin/backplane" run -n 3 --backend "$name" "$hello" >output 2>&1 || fail "the job: $(cat output)"
[ "$(grep -c "of 3 over $name: the ranks add up to 3" output)" = 3 ] || fail "output of the job: $(cat output)"
echo "$language $origin: written, built, checked, and used by a job"
