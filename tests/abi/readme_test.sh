#!/usr/bin/env bash
# The program that README prints is the example that is compiled.
set -euo pipefail
cd "$1"
diff <(sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;/^```$/,$d') <(sed '/^\/\//d' share/examples/hello.cpp)
