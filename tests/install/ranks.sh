# shellcheck shell=bash
# Starts the ranks of a job without a launcher. Source this file.

free_port() {
  local port
  while true; do
    port=$((20000 + RANDOM % 12000)) # below the ports that the kernel gives to clients
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
}

# run_ranks N PROGRAM ARGUMENT...: fails if a rank fails.
run_ranks() {
  local world_size=$1 port rank pids=() failed=0
  shift
  port=$(free_port)
  for ((rank = 0; rank < world_size; ++rank)); do
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANK=$rank WORLD_SIZE=$world_size BACKPLANE_JOB_ID=$$ \
      timeout 120 "$@" </dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return "$failed"
}
