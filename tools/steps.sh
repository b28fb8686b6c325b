# Sourced by tools/demo and tools/test: runs steps, and shows their progress and the remaining time.
#
#   plan NAME SECONDS ...   the next steps, and the measured duration of each on two cores
#   step NAME COMMAND...    runs a step; writes its output to build/logs/NAME.log, and shows the end if it fails

step_names=()
step_seconds=()
step_count=0
step_monitor=

plan() {
  while [ $# -gt 0 ]; do
    step_names+=("$1")
    step_seconds+=("$2")
    shift 2
  done
}

# The progress in the log of a running step: "[3/8]" of Ninja, "3/8 Test" of CTest.
step_counts() {
  tail -c 20000 "$1" 2>/dev/null | grep -aoE '^(\[[0-9]+/[0-9]+\]| *[0-9]+/[0-9]+ Test )' | tail -n 1 | grep -oE '[0-9]+/[0-9]+'
}

# The line that a terminal shows while a step runs.
step_line() {
  local counts done=0 total=1 i planned_before=0 planned_left=0
  if counts=$(step_counts "$2"); then
    done=${counts%/*}
    total=${counts#*/}
  fi
  for i in "${!step_names[@]}"; do
    if [ "$i" -lt $((step_count - 1)) ]; then planned_before=$((planned_before + step_seconds[i])); fi
    if [ "$i" -ge "$step_count" ]; then planned_left=$((planned_left + step_seconds[i])); fi
  done
  local planned=${step_seconds[$((step_count - 1))]:-0}
  awk -v name="$1" -v number="$step_count" -v steps="${#step_names[@]}" -v counts="${counts:-}" -v now="$SECONDS" \
    -v before="$planned_before" -v planned="$planned" -v fraction="$done/$total" -v left="$planned_left" 'BEGIN {
      split(fraction, f, "/"); gone = planned * f[1] / f[2]
      pace = before + gone > 20 ? now / (before + gone) : 1
      minutes = (left + planned - gone) * pace / 60
      printf "== %d/%d %s%s, %s left", number, steps, name, counts == "" ? "" : ": " counts,
             minutes < 1 ? "less than a minute" : sprintf("about %d min", minutes + 0.5) }'
}

# Shows the beginning and end of each failed test's output, then CTest's summary. Tests that run CTest print similar
# lines: the first line that numbers a test is CTest's, and the last line that begins a summary.
show_failed_tests() {
  awk -v log_file="$1" -v first=20 -v last=40 '
    function show(lines,   i) {
      for (i = 0; i < lines; ++i) {
        if (i < first || i >= lines - last) print line[i]
        else if (i == first) printf "... (%d lines: %s)\n", lines - first - last, log_file
      }
    }
    BEGIN { total = "[0-9]+" }
    $0 ~ "^ *[0-9]+/" total " Test +#" {
      if (failed) show(said)
      said = summary = 0
      total = substr($1, index($1, "/") + 1)
      failed = !/ Passed +[0-9.]+ sec$|\*\*\*(Skipped|Not Run \(Disabled\))/
      if (failed) print
      next
    }
    /^ *Start +[0-9]+: |^\[(ERROR_MESSAGE|HANDLER_OUTPUT)\]|^Errors while running CTest/ { next }
    /^[0-9]+% tests passed, / { summary = said }
    { line[said++] = $0 }
    END {
      if (failed) show(summary)
      for (i = summary; i < said; ++i) print line[i]
    }' "$1"
}

# Shows a part of a failed step's log: failed tests, the first failed edge of Ninja and the following lines, or the end.
show_failure() {
  if grep -q '^[0-9]*% tests passed, ' "$1"; then
    show_failed_tests "$1"
  elif grep -q '^FAILED: ' "$1"; then
    sed -n '/^FAILED: /,$p' "$1" | head -n 100
  else
    tail -n 60 "$1"
  fi
}

step() {
  local name=$1 log=build/logs/${1//[^a-z]/-}.log status
  shift
  mkdir -p build/logs
  : >"$log"
  step_count=$((step_count + 1))
  if [ -t 1 ]; then
    while :; do
      printf '\r\033[K%s' "$(step_line "$name" "$log")"
      sleep 1
    done &
    step_monitor=$!
    trap 'kill "$step_monitor" 2>/dev/null || true' EXIT
  else
    printf '== %d/%d %s (after %d s)\n' "$step_count" "${#step_names[@]}" "$name" "$SECONDS"
  fi
  local began=$SECONDS
  set +e
  (set -e; "$@") >"$log" 2>&1 </dev/null
  status=$?
  set -e
  if [ -n "$step_monitor" ]; then
    kill "$step_monitor"
    wait "$step_monitor" 2>/dev/null || true
    step_monitor=
    printf '\r\033[K== %d/%d %s: %d s\n' "$step_count" "${#step_names[@]}" "$name" $((SECONDS - began))
  fi
  if [ "$status" -ne 0 ]; then
    show_failure "$log"
    printf '== %s failed, see %s\n' "$name" "$log" >&2
    exit "$status"
  fi
}
