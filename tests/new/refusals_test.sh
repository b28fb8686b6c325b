#!/usr/bin/env bash
# refusals_test.sh COMMAND: `backplane new` rejects invalid arguments with one line and leaves no files.
set -euo pipefail
command=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# refused EXIT_CODE TEXT ARGUMENT...: fails unless `backplane new` exits so and prints one line that contains TEXT.
refused() {
  local expected=$1 text=$2 code=0
  shift 2
  "$command" new "$@" >output 2>&1 || code=$?
  [ "$code" = "$expected" ] || fail "new $* ended with $code: $(cat output)"
  grep -qF "$text" output || fail "new $*: $(cat output)"
  [ "$(wc -l <output)" = 1 ] || fail "new $* printed more than one line: $(cat output)"
  rm output
}

refused 2 "is not a valid id" Upper
refused 2 "is not a valid id" "$(printf 'a%.0s' {1..33})"
refused 2 "is not a valid id" "a/b"
refused 2 "is not a valid id" ""
refused 2 "stands for the backend that Backplane chooses" auto
refused 2 "is the id of a bundled plugin" inproc
refused 2 "the templates are: --language c++ --from sendrecv" net --language go
refused 2 "the templates are: --language c++ --from sendrecv" net --language rust --from wrap
refused 2 "cannot create the project: there is no directory" net --directory missing/net
[ -z "$(ls -A)" ] || fail "files are left: $(ls -A)"

mkdir full empty
touch full/precious file
refused 2 "is not an empty directory" net --directory full
refused 2 "is not an empty directory" net --directory full/
refused 2 "is not an empty directory" net --directory file
[ "$(ls -A full)" = precious ] || fail "a full directory was changed"
if [ "$(id -u)" -ne 0 ]; then
  chmod a-w empty
  refused 1 "cannot create a folder" net --directory empty/net
  chmod u+w empty
fi
"$command" new net --directory empty >output
[ -f empty/CMakeLists.txt ] || fail "an empty directory was not used"
[ "$(stat -c %a empty)" = 755 ] || fail "the project is not readable by all users"
rm -r output empty full file
[ -z "$(ls -A)" ] || fail "files are left: $(ls -A)"
echo "rejected all invalid arguments and left no files"
