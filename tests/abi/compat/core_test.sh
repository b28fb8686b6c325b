#!/usr/bin/env bash
# core_test.sh CORE PROGRAM MINOR PLUGIN [LAYER]...: a core uses a plugin that was built for ABI 1.MINOR, inside layers,
# which are plugin files as well. No other plugins are present. CORE is an older libbackplane, or the command of the
# current core, which then also lists, describes and probes the plugin. PROGRAM fails if an operation has a wrong
# result; `hello_c` prints the result of its operation.
set -euo pipefail
core=$1 program=$2 minor=$3
shift 3
source "$(dirname "${BASH_SOURCE[0]}")/../../install/ranks.sh"
unset BACKPLANE_BACKEND BACKPLANE_PLUGINS_ALLOW BACKPLANE_PLUGINS_DENY BACKPLANE_LAYERS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BACKPLANE_PLUGIN_PATH=$work/plugins
umask 022
mkdir "$BACKPLANE_PLUGIN_PATH"
install -m 755 "$@" "$BACKPLANE_PLUGIN_PATH"
fail() {
  echo "$1:"
  cat "$2"
  exit 1
}
id_of() { basename "$1" .so | sed 's/^backplane_//'; }
id=$(id_of "$1")
for layer in "${@:2}"; do
  BACKPLANE_LAYERS+=${BACKPLANE_LAYERS:+,}$(id_of "$layer")
  if [ "$(id_of "$layer")" = chaos ]; then BACKPLANE_LAYERS+='?rules=chance 0.5: delay 0us..200us'; fi
done
export BACKPLANE_LAYERS

# job N BACKEND
if [[ $core == *.so.* ]]; then
  # Without the launcher, which belongs to the current core.
  job() {
    LD_LIBRARY_PATH=$(dirname "$core") BACKPLANE_BACKEND=$2 BACKPLANE_RPC_BACKEND=$2 run_ranks "$1" "$program"
  }
else
  job() { BACKPLANE_RPC_BACKEND=$2 timeout 120 "$core" run -n "$1" --backend "$2" "$program"; }
  "$core" list --probe >"$work/list"
  line=$(awk -v id="$id" '$1 == id && $NF ~ /backplane_/ { print; exit }' "$work/list")
  case $line in
    *" yes "*" 1.$minor "*"$BACKPLANE_PLUGIN_PATH/$(basename "$1")") ;;
    *) fail "backplane list --probe does not show $id of ABI 1.$minor as viable" "$work/list" ;;
  esac
  "$core" info "$id" >"$work/info"
  grep -qE "^ABI +1\.$minor\b" "$work/info" || fail "backplane info $id" "$work/info"
fi
job 3 "$id" >"$work/log" 2>&1 || fail "the job" "$work/log"
if [ "$(basename "$program")" = hello_c ]; then
  [ "$(grep -c "of 3 over $id: the ranks add up to 3" "$work/log")" = 3 ] || fail "the job" "$work/log"
fi
if job 2 "$id?no_such_option=1" >"$work/log" 2>&1; then fail "an unknown option of $id was accepted" "$work/log"; fi
grep -q "no_such_option" "$work/log" || fail "the job" "$work/log"
echo "$id, built for ABI 1.$minor, works"
