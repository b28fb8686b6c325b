#!/usr/bin/env bash
# install_test.sh BUILD_DIR CC CXX: installs Backplane, builds separate projects against it, runs them, moves the
# installed tree, and runs them again.
set -euo pipefail
build=$1
export CC=$2 CXX=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/install/ranks.sh
. "$here/ranks.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Excludes settings and plugins of this machine.
unset BACKPLANE_PLUGIN_PATH BACKPLANE_BACKEND LD_LIBRARY_PATH
export HOME=$work XDG_DATA_HOME=$work

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect TEXT COMMAND...: fails unless the command succeeds and its output contains TEXT.
expect() {
  local text=$1 output
  shift
  output=$("$@" 2>&1) || fail "$*: $output"
  grep -qF "$text" <<<"$output" || fail "$*: '$text' is not in the output: $output"
}

configure() {
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DEXAMPLES="$work/prefix/share/backplane/examples" >"$work/log" 2>&1
}
build_outside() {
  if ! configure "$1" "$2" || ! cmake --build "$2" >"$work/log" 2>&1; then
    cat "$work/log"
    fail "the separate project $1 does not build"
  fi
}

run_installed() {
  local prefix=$1 libdir program
  libdir=$(dirname "$(find "$prefix" -name libbackplane.so)")
  export LD_LIBRARY_PATH=$libdir
  for program in hello hello_c; do
    BACKPLANE_BACKEND=self \
      expect "rank 0 of 1 over self: the ranks add up to 0" run_ranks 1 "$work/examples/bin/$program"
    if [ -e "$libdir/backplane/plugins/backplane_gloo.so" ]; then
      BACKPLANE_BACKEND=gloo expect "of 2 over gloo: the ranks add up to 1" run_ranks 2 "$work/examples/bin/$program"
    fi
    BACKPLANE_BACKEND=bulletin BACKPLANE_PLUGIN_PATH=$work/plugin \
      expect "of 2 over bulletin: the ranks add up to 1" run_ranks 2 "$work/examples/bin/$program"
  done
  BACKPLANE_BACKEND=bulletin BACKPLANE_PLUGIN_PATH=$work/plugin \
    expect "rank 0  after irecv, wait      holds 2" run_ranks 2 "$work/examples/bin/ping_pong"
  BACKPLANE_BACKEND=self expect "over self" run_ranks 1 "$work/c/hello_from_c"
  BACKPLANE_BACKEND=self expect "epoch  1 of 1" run_ranks 1 "$work/examples/bin/digits" --epochs 1
  unset LD_LIBRARY_PATH
  # The command finds its library and plugins without environment variables.
  if [ -e "$prefix/bin/backplane" ]; then
    expect "$libdir/backplane/plugins" "$prefix/bin/backplane" list
  fi
}

check_exports() {
  local plugin exported
  while IFS= read -r plugin; do
    exported=$(nm -D --defined-only "$plugin" | awk '{print $3}')
    [ "$exported" = bp_plugin_v1 ] || fail "$plugin exports: $exported"
    if readelf -d "$plugin" | grep NEEDED | grep -i backplane; then fail "$plugin needs libbackplane"; fi
  done < <(find "$work/prefix" "$work/plugin" -name 'backplane_*.so')
  exported=$(nm -D --defined-only "$(find "$work/prefix" -name libbackplane.so)" | awk '$3 !~ /^bp_/ {print $3}')
  [ -z "$exported" ] || fail "libbackplane exports more than bp_*: $exported"
  # readelf fails on other files than ELF.
  find "$work/prefix" -type f -print0 | { xargs -0 readelf -d 2>/dev/null || true; } >"$work/dynamic"
  # shellcheck disable=SC2016 # $ORIGIN is expanded by the loader
  grep -E 'R(UN)?PATH' "$work/dynamic" | grep -qF '$ORIGIN' || fail "no installed file has a run path"
  # shellcheck disable=SC2016
  if grep -E 'R(UN)?PATH' "$work/dynamic" | grep -vF '$ORIGIN'; then
    fail "an installed file has an absolute run path"
  fi
}

# Checks that everything that was built is installed.
check_complete() {
  local plugins
  plugins=$(dirname "$(find "$work/prefix" -name libbackplane.so)")/backplane/plugins
  diff <(cd "$build/lib/backplane/plugins" && ls) <(cd "$plugins" && ls) || fail "not all plugins (<) are installed (>)"
  if [ -e "$build/bin/backplane" ]; then
    [ -x "$work/prefix/bin/backplane" ] || fail "the command is not installed"
  fi
}

# Checks that the relative links of installed documents lead to installed files.
check_documents() {
  local document link
  [ -e "$work/prefix/share/backplane/doc/user-guide.md" ] || fail "the documents are not installed"
  while read -r document; do
    while read -r link; do
      [ -e "$(dirname "$document")/$link" ] || fail "$document links to $link, which is not installed"
    done < <(grep -oE '\]\([^)#: ]+[)#]' "$document" | sed 's/^](//; s/[)#]$//')
  done < <(find "$work/prefix/share/backplane" -name '*.md' -not -path '*/templates/*')
}

cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
check_complete
check_documents
build_outside "$work/prefix/share/backplane/examples" "$work/examples"
build_outside "$work/prefix/share/backplane/examples/plugin" "$work/plugin"
build_outside "$here/outside" "$work/c"
check_exports
run_installed "$work/prefix"

mkdir "$work/elsewhere"
mv "$work/prefix" "$work/elsewhere/moved"
run_installed "$work/elsewhere/moved"
echo "installed, used, moved, and used again"
