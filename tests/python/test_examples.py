# SPDX-License-Identifier: Apache-2.0
"""The programs of share/examples/python."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import backplane
import backplane.compat.hf
import numpy as np
import pytest
from backplane._ports import free_port
from support import BACKENDS, LIMIT, run_ranks

EXAMPLES = pathlib.Path(__file__).parents[2] / "share/examples/python"


@pytest.mark.parametrize("backend", BACKENDS)
def test_ping_pong(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "ping_pong.py"), backend],
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for line in ("0 has sent 1.0", "1 has received 1.0", "1 has sent 2.0", "0 has received 2.0"):
        assert f"rank {line}" in done.stdout, done.stdout


@pytest.mark.skipif("zmq" not in BACKENDS, reason="the backend zmq is not built")
def test_objects() -> None:
    output = run_ranks(3, "zmq", str(EXAMPLES / "objects.py"))
    assert "the total is 30\n" in output
    assert "{'rank': 2, 'layers': [64, 10]}" in output


@pytest.mark.skipif("gloo" not in BACKENDS, reason="the backend tcp is not built")
def test_first_calls() -> None:
    assert run_ranks(4, "gloo", str(EXAMPLES / "first_calls.py")).count("has finished") == 4


def test_rpc_registry(tmp_path: pathlib.Path) -> None:
    output = run_ranks(2, "shm", str(EXAMPLES / "rpc_registry.py"), str(tmp_path / "store"))
    assert output.count("['worker0 got a call', 'worker1 got a call']") == 2
    assert "worker1 joins with 2 threads" in output


FITTED = ["fitted by worker1 worker2\n", "3.00 x + 2.00 after 80 updates, kept by worker1\n"]


def test_rpc_from_torch() -> None:
    output = run_ranks(3, "shm", str(EXAMPLES / "rpc_from_torch.py"))
    assert all(line in output for line in FITTED), output


def test_rpc_from_torch_under_torch(tmp_path: pathlib.Path) -> None:
    """The comments of the program say what differs."""
    pytest.importorskip("torch.distributed.rpc")
    text = (EXAMPLES / "rpc_from_torch.py").read_text()
    text, removed = re.subn(r"^.*  # remove\n", "", text, flags=re.MULTILINE)
    text, replaced = re.subn(r"^.*  # (import .*)$", r"\1", text, flags=re.MULTILINE)
    assert (removed, replaced) == (2, 1)
    program = tmp_path / "program.py"
    program.write_text(text)
    output = run_ranks(3, "shm", str(program), options=["--torch"])
    assert all(line in output for line in FITTED), output


@pytest.mark.skipif("zmq" not in BACKENDS, reason="the backend zmq is not built")
def test_hf_arguments(tmp_path: pathlib.Path) -> None:
    place = f"file://{tmp_path}/"
    own = backplane.compat.hf.init_process_group("HF_ZMQ_LOCAL?io_threads=1", place + "a", rank=0, world_size=1)
    assert own is not None
    assert not backplane.compat.hf.is_initialized()
    assert (own.get_rank(), own.get_world_size()) == (0, 1)
    with pytest.raises(ValueError, match="`objs`"):
        own.broadcast([1, 2])
    with pytest.raises(ValueError, match="`gather_list`"):
        own.gather(1, [])
    own.destroy()

    assert backplane.compat.hf.init_process_group("hf_barrier", place + "b", rank=0, world_size=1) is None
    assert backplane.compat.hf.is_initialized()
    nothing = [None]
    backplane.compat.hf.broadcast(nothing)
    assert nothing == [None]
    with pytest.raises(ValueError, match="async_op"):
        backplane.compat.hf.broadcast(nothing, async_op=True)
    backplane.compat.hf.destroy_process_group()

    backplane.compat.hf.init_process_group("self", place + "c", rank=0, world_size=1)
    arrays = [np.zeros(2)]
    backplane.compat.hf.gather(np.ones(2), arrays)
    assert (arrays[0] == 1).all()
    work = backplane.compat.hf.broadcast(arrays[0], async_op=True)
    assert work is not None
    work.wait()
    backplane.compat.hf.barrier()
    backplane.compat.hf.destroy_process_group()


def test_gradients() -> None:
    assert run_ranks(2, "shm", str(EXAMPLES / "gradients.py")).count("3.0 x + 2.0\n") == 2


@pytest.mark.parametrize(
    ("package", "program", "line"),
    [
        ("ray", "ray_actors.py", "3 actors have the total 6.0"),
        ("distributed", "dask_workers.py", "3 workers have the total 6.0"),
    ],
    ids=["ray", "dask"],
)
def test_schedulers(package: str, program: str, line: str) -> None:
    """Run by tools/ray-dask-check, which installs the packages."""
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert line in done.stdout, done.stdout
