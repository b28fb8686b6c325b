# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.distributed over the backend of backplane.torch."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from backplane._ports import free_port
from support import LIMIT, run_ranks

LONG_LIMIT = 3 * LIMIT  # s; each rank imports torch, which takes seconds of a processor


def run_torch(program: str, size: int, *arguments: str, **variables: str) -> list[subprocess.CompletedProcess[str]]:
    """Runs a file of this folder on `size` ranks, which torch's own launcher could have started."""
    folder = pathlib.Path(__file__).parent
    port = free_port()
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, program, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    deadline = time.monotonic() + LONG_LIMIT
    ended = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            ended.append(subprocess.CompletedProcess(program, process.returncode, output))
    finally:
        for process in processes:
            process.kill()  # nothing if it has ended
            process.wait()
    return ended


def check_passed(ranks: list[subprocess.CompletedProcess[str]]) -> None:
    """Shows each rank that failed: one may only have been told of another's failure."""
    failed = [
        f"rank {rank}: exit code {ended.returncode}\n{ended.stdout}"
        for rank, ended in enumerate(ranks)
        if ended.returncode != 0 or "passed" not in ended.stdout
    ]
    assert not failed, "\n".join(failed)


def test_operations_have_the_values_of_torch() -> None:
    check_passed(run_torch("torch_collectives.py", 4, BACKPLANE_BACKEND="shm"))


def test_features_have_the_values_of_a_single_process(tmp_path: pathlib.Path) -> None:
    check_passed(run_torch("torch_features.py", 4, str(tmp_path)))


def test_more_operations_than_are_waited_for() -> None:
    check_passed(run_torch("torch_works.py", 2, BACKPLANE_BACKEND="shm"))


@pytest.mark.parametrize("default_backend", ["gloo", "backplane"])
def test_the_launcher_leaves_a_port_to_torch(default_backend: str) -> None:
    output = run_ranks(2, "shm", "torch_beside.py", default_backend, options=["--torch"])
    assert output.count("passed") == 2, output


def test_a_killed_rank_is_named() -> None:
    *survivors, killed = run_torch("torch_failures.py", 3)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    for rank, ended in enumerate(survivors):
        assert ended.returncode == 0 and "passed" in ended.stdout, f"rank {rank}: {ended.returncode}\n{ended.stdout}"


def test_torchrun_restarts_ranks(tmp_path: pathlib.Path) -> None:
    # torchrun 1.13 fails with Python 3.11 unless --redirects and --tee are given.
    options = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", "--redirects=1", "--tee=1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, f"--log_dir={tmp_path}", "torch_restart.py"],
        cwd=pathlib.Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BACKPLANE_BACKEND": "shm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"rank {rank} passed in attempt 1" in done.stdout, done.stdout
