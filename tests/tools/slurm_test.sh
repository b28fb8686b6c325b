#!/usr/bin/env bash
# slurm_test.sh HELLO: under a Slurm of its own, with two nodes on this machine, the ranks of srun and sbatch meet without
# further variables. Exits with 77 where Slurm is not installed.
set -euo pipefail
hello=$1

for program in slurmctld slurmd srun sbatch munged; do
  if ! command -v $program >/dev/null; then echo "skipped: there is no $program (Debian: slurm-wlm)"; exit 77; fi
done
if [ "$(id -u)" -ne 0 ]; then echo "skipped: slurmd needs root"; exit 77; fi

# In a mount namespace, where the names of the nodes can be looked up, and a pid namespace, whose processes end together.
if [ "${2:-}" != inside ]; then
  apart=(unshare --mount --pid --fork --kill-child --mount-proc)
  if ! "${apart[@]}" mount --bind /etc/hosts /etc/hosts 2>/dev/null; then
    echo "skipped: no namespaces can be made here (unshare, with CAP_SYS_ADMIN)"
    exit 77
  fi
  exec "${apart[@]}" "$0" "$hello" inside
fi

# Of the job that runs this test.
for name in $(compgen -e | grep -E '^(SLURM|BACKPLANE)_'); do unset "$name"; done

place=$(mktemp -d)
chmod 755 "$place"
pids=()
# shellcheck disable=SC2317  # called by the trap
stop() {
  umount /etc/hosts 2>/dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$place"
}
trap stop EXIT

fail() {
  echo "$1"
  tail -n 20 "$place"/*.log
  exit 1
}

# Below the ports that the kernel gives to clients.
free_ports() {
  perl -MIO::Socket::INET -e 'my @held;
    while (@held < $ARGV[0]) {
      my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => 20000 + int(rand(12000)));
      push @held, $socket if $socket;
    }
    print join(" ", map { $_->sockport } @held), "\n"' "$1"
}

(cat /etc/hosts; echo "127.0.0.1 n1 n2") > "$place/hosts"
mount --bind "$place/hosts" /etc/hosts

read -r controller first second < <(free_ports 3)
host=$(hostname -s)
mkdir "$place"/{munge,state,spool-n1,spool-n2}
chmod 711 "$place"/munge
(umask 077; head -c 1024 /dev/urandom > "$place/munge/key")
export SLURM_CONF=$place/slurm.conf
cat > "$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CredType=cred/munge
SlurmUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd-%n.pid
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool-%n
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF

munged --foreground --force --key-file="$place/munge/key" --socket="$place/munge/socket" \
  --pid-file="$place/munge/pid" --seed-file="$place/munge/seed" --log-file="$place/munge/log" > "$place/munged.log" 2>&1 &
pids+=($!)
for ((i = 0; i < 100; ++i)); do [ -S "$place/munge/socket" ] && break; sleep 0.1; done
slurmctld -D > "$place/slurmctld.out.log" 2>&1 &
pids+=($!)
for node in n1 n2; do
  slurmd -D -N $node > "$place/slurmd-$node.out.log" 2>&1 &
  pids+=($!)
done

export SLURM_WAIT=0
for ((i = 0; i < 300; ++i)); do
  [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
  sleep 0.1
done
[ "$(sinfo -h -t idle -o %D)" = 2 ] || fail "the nodes do not start: $(sinfo -h -N -o '%n %T %E')"

# expect_sum RANKS COMMAND...: the ranks of the example meet and add up their numbers.
expect_sum() {
  local ranks=$1
  shift
  timeout 60 "$@" > "$place/out" 2> "$place/err" || { cat "$place/out" "$place/err"; fail "failed: $*"; }
  [ "$(grep -c " of $ranks over " "$place/out")" = "$ranks" ] || { cat "$place/out"; fail "not $ranks ranks: $*"; }
  grep -q "add up to $((ranks * (ranks - 1) / 2))" "$place/out" || { cat "$place/out"; fail "no sum: $*"; }
  echo "passed: $*"
}

unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE
expect_sum 3 srun -N 1 -n 3 "$hello"
expect_sum 4 srun -N 2 -n 4 "$hello"
expect_sum 4 srun -N 2 -n 4 --mpi=pmi2 "$hello"
if ldconfig -p | grep -q 'libmpich\.so\.12 '; then
  BACKPLANE_BACKEND=mpi BACKPLANE_MPI_LIBRARY=libmpich.so.12 expect_sum 4 srun -N 2 -n 4 --mpi=pmi2 "$hello"
else
  echo "skipped: mpi under srun, because MPICH is not installed"
fi
printf '#!/bin/sh\nsrun %s\n' "$hello" > "$place/job"
expect_sum 4 sh -c "sbatch --wait -N 2 -n 4 -o $place/batch $place/job && cat $place/batch"
