# SPDX-License-Identifier: Apache-2.0
"""Groups that torch makes in different ways, and what it tells about them."""

from __future__ import annotations

import importlib
import pathlib
import signal
import subprocess
import sys

import pytest
import torch
from test_torch import LONG_LIMIT, check_passed, run_torch


@pytest.mark.parametrize("names", ["backplane", "cpu:backplane", "cpu:backplane,cuda:gloo", "cpu:backplane,cuda:nccl"])
def test_backends_are_chosen_by_device(names: str) -> None:
    if ":" in names and torch.__version__ < "2":
        pytest.skip(f"torch {torch.__version__} has one backend for all devices")
    check_passed(run_torch("torch_classes.py", 3, BACKPLANE_BACKEND="shm", BACKPLANE_TEST_GROUP=names))


@pytest.mark.parametrize("what", ["split", "shrink", "reconfigure"])
def test_members_change(what: str) -> None:
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < (2, 14):
        pytest.skip(f"torch {torch.__version__} changes the members of groups of its own backends only")
    ranks = run_torch("torch_membership.py", 4, what, BACKPLANE_BACKEND="shm")
    if what != "split":
        killed = ranks.pop()
        assert killed.returncode == -signal.SIGKILL, killed.stdout
    for rank, ended in enumerate(ranks):
        assert ended.returncode == 0 and "passed" in ended.stdout, f"rank {rank}: {ended.returncode}\n{ended.stdout}"


def test_the_flight_recorder_is_analyzed_by_torch(tmp_path: pathlib.Path) -> None:
    size = 3
    variables = {"BACKPLANE_BACKEND": "shm", "BACKPLANE_TEST_DIRECTORY": str(tmp_path)}
    check_passed(run_torch("torch_flight_recorder.py", size, **variables))
    analyzer = "torch.distributed.flight_recorder.fr_trace"
    try:
        importlib.import_module(analyzer)
    except ModuleNotFoundError:
        pytest.skip(f"torch {torch.__version__} has no {analyzer}")

    def analyze(prefix: str) -> str:
        command = [sys.executable, "-m", analyzer, "--prefix", prefix, str(tmp_path)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG_LIMIT, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    matched = analyze("matched_")
    assert "Not all ranks" not in matched and "mismatch" not in matched.lower(), matched
    desync = analyze("desync_")
    assert "Not all ranks joining collective, sequence number: 2" in desync, desync
    assert f"missing ranks: {{{size - 1}}}" in desync and "all_reduce" in desync, desync
