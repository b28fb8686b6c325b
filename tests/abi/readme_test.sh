#!/usr/bin/env bash
# The program that README prints is the example that is compiled, and so are the calls of share/doc/from-torch.md. Every
# relative link of the documents leads to a file, and share/doc/operations.md has every environment variable.
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

failed=0
for document in ./*.md share/doc/*.md share/bench/*.md plugins/*/README.md; do
  while read -r link; do
    if [ ! -e "$(dirname "$document")/$link" ]; then
      echo "$document has a link to $link, which does not exist"
      failed=1
    fi
  done < <(grep -oE '\]\([^)#: ]+[)#]' "$document" | sed 's/^](//; s/[)#]$//')
done
while read -r variable; do
  if ! grep -q "\`$variable\`" share/doc/operations.md; then
    echo "share/doc/operations.md lacks the environment variable $variable"
    failed=1
  fi
done < <(grep -rhoE '"BACKPLANE_[A-Z_]+"' --include='*.[ch]pp' core plugins sdk base tools/backplane | tr -d '"' | sort -u)
exit $failed
