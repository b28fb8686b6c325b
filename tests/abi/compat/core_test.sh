#!/usr/bin/env bash
# core_test.sh COMMAND RANK PLUGIN MINOR [OPTIONS]: the current core lists, describes, probes and uses a plugin that was
# built for ABI 1.MINOR, alone in its directory.
set -euo pipefail
command=$1 rank=$2 plugin=$3 minor=$4
id=$(basename "$plugin" .so)
id=${id#backplane_}
unset BACKPLANE_BACKEND BACKPLANE_PLUGINS_ALLOW BACKPLANE_PLUGINS_DENY
BACKPLANE_PLUGIN_PATH=$(dirname "$plugin")
export BACKPLANE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$command" list --probe >"$work/list"
line=$(awk -v id="$id" '$1 == id && $NF ~ /backplane_/ { print; exit }' "$work/list")
case $line in
  "$id "*yes*" 1.$minor "*"$plugin") ;;
  *)
    echo "backplane list --probe does not show $id of ABI 1.$minor as viable from $plugin:"
    cat "$work/list"
    exit 1
    ;;
esac
"$command" info "$id" >"$work/info"
grep -qE "^ABI +1\.$minor\b" "$work/info" || { cat "$work/info" && exit 1; }
timeout 120 "$command" run -n 3 --backend "$id" "$rank"
if "$command" run -n 2 --backend "$id?no_such_option=1" "$rank" >"$work/log" 2>&1; then
  echo "an unknown option of $id was accepted"
  exit 1
fi
grep -q "no_such_option" "$work/log" || { cat "$work/log" && exit 1; }
echo "$id, built for ABI 1.$minor, works with this core"
