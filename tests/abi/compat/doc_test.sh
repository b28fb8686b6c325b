#!/usr/bin/env bash
# doc_test.sh SOURCE_DIR: the worked example that share/doc/abi.md prints is the one that is compiled.
set -euo pipefail
cd "$1"
printed=$(sed -n '/^```c$/,/^```$/p' share/doc/abi.md | sed '/^```/d')
compiled=$(sed -n '/^\/\* \[worked example\] \*\/$/,/^\/\* \[end\] \*\/$/p' tests/abi/compat/growth_plugin.c | sed '1d;$d')
if [ -z "$compiled" ]; then
  echo "tests/abi/compat/growth_plugin.c has no worked example"
  exit 1
fi
diff <(echo "$printed") <(echo "$compiled")
