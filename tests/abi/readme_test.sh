#!/usr/bin/env bash
# The program that README prints is the example that is compiled, and so are the calls of share/doc/from-torch.md.
set -euo pipefail
cd "$1"
diff <(sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;/^```$/,$d') <(sed '/^\/\//d' share/examples/hello.cpp)

printed=$(sed -nE 's/^\| `[^`]*` \| `([^`]*)` \|.*/\1/p' share/doc/from-torch.md)
compiled=$(sed -n '/^ *\/\/ \[from-torch.md\]$/,/^ *\/\/ \[end\]$/p' tests/group/from_torch_test.cpp | sed '1d;$d;s/^ *//')
if [ -z "$compiled" ]; then
  echo "tests/group/from_torch_test.cpp has no calls of share/doc/from-torch.md"
  exit 1
fi
diff <(echo "$printed") <(echo "$compiled")
