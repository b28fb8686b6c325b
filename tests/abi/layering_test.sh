#!/usr/bin/env bash
# The permitted includes: abi <- base <- sdk <- plugins, base <- core <- tools and examples. Checks the include
# directives of each part, and that the core names only built-in plugins.
set -euo pipefail
cd "$1"
failed=0

# forbid WHERE PATTERN WHY: no source file below WHERE has a line that matches PATTERN. tools/bench/programs, which measure
# parts of the core, are excepted.
forbid() {
  local hits code=0
  hits=$(grep -rnE --include='*.h' --include='*.hpp' --include='*.c' --include='*.cpp' \
    --exclude-dir=programs "$2" "$1") || code=$?
  if [ "$code" -ne 1 ]; then # 0: a line matches; 2: there is no WHERE, or PATTERN is none
    printf '%s:\n%s\n' "$3" "${hits:-grep in $1 failed with $code}"
    failed=1
  fi
}

quoted='^ *# *include *["<]'
headers=$(cd core/include/backplane && printf '%s|' *.h *.hpp */*.hpp */*/*.hpp)
headers=${headers%|}
api="backplane/(${headers//./\\.})[\">]"
# Arrows inside the core: a folder includes only folders to its left.
order=(options security liveness store rendezvous schedule reduce plugin registry group rpc capi)
folders=$(IFS='|'; echo "${order[*]}")
inside="($folders)/[a-z_]+\.hpp"

forbid core/abi "$quoted(fmt|boost|backplane/(base|sdk)|$api|$inside)" 'the ABI depends on nothing'
forbid base "$quoted(fmt|boost|backplane/sdk|$api|$inside)" 'base knows the ABI alone'
forbid sdk/include "$quoted($api|$inside)" 'the SDK knows the ABI and base alone'
forbid plugins "$quoted($api|$inside)" 'a plugin sees no header of the core'
forbid core "$quoted"'backplane/sdk/' 'the core does not use the SDK'
forbid core/src "$quoted"'(zmq|gloo|nccl|mpi)' 'the core uses no transport library'
for part in tools/backplane tools/bench/measure tools/bench/peers; do # tools/bench/programs measure parts of the core
  forbid "$part" "$quoted($inside)" 'tools use the public API'
done
forbid share "$quoted$inside" 'examples use public headers'

# Inside the C++ API: programs, tests and examples alone include compat/, no program includes detail/, and few headers are
# at the top.
compat="$quoted"'(backplane/|\.\./)?compat/'
for part in core/src sdk plugins tools core/include/backplane/{adapters,detail,*.hpp}; do
  forbid "$part" "$compat" "$part must not include compat/"
done
for part in tools share; do
  forbid "$part" "$quoted"'backplane/detail/' "$part must not include details of the C++ API"
done
top=(core/include/backplane/*.hpp)
if [ "${#top[@]}" -gt 10 ]; then
  echo "core/include/backplane holds ${#top[@]} C++ headers; at most ten: move the rest to detail/, adapters/ or compat/"
  failed=1
fi

# A pattern that matches nothing forbids nothing.
matches() {
  if ! grep -qE "$1" <<<"$2"; then
    echo "the pattern does not see $2"
    failed=1
  fi
}
matches "$quoted($api|$inside)" '#include "backplane/store.hpp"'
matches "$quoted($api|$inside)" '#include "backplane/detail/memory.hpp"'
matches "$compat" '#include "backplane/compat/streams.hpp"'
matches "$quoted($api|$inside)" '#include <backplane/rpc.h>'
matches "$quoted($api|$inside)" '  # include "store/store.hpp"'

for folder in core/src/*/; do
  [[ " ${order[*]} " == *" $(basename "$folder") "* ]] || { echo "$folder has no place in the order of folders"; failed=1; }
done
for file in core/src/*.?pp; do
  forbid "$file" "$quoted$inside" "$file, which all folders use, must not include a folder's header"
done
for i in "${!order[@]}"; do
  [ -d "core/src/${order[$i]}" ] || { echo "there is no core/src/${order[$i]}"; failed=1; continue; }
  for later in "${order[@]:$((i + 1))}"; do
    forbid "core/src/${order[$i]}" "$quoted$later/" "core/src/${order[$i]} must not include core/src/$later"
  done
done
exit "$failed"
