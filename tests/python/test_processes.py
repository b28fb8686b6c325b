# SPDX-License-Identifier: Apache-2.0
"""Ranks that multiprocessing starts, fork, and stores."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
from typing import Any

import backplane
import numpy as np
import pytest
from support import BACKENDS, LIMIT


def rank_of_a_pool(backend: str, path: str, rank: int, world_size: int) -> list[float]:
    backplane.init_process_group(backend, f"file://{path}", rank=rank, world_size=world_size)
    array = np.full(4, rank + 1.0)
    backplane.all_reduce(array)
    backplane.destroy_process_group()
    result: list[float] = array.tolist()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_spawned_processes_are_ranks(backend: str, tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        arguments = [(backend, str(tmp_path / "store"), rank, 2) for rank in range(2)]
        assert pool.starmap_async(rank_of_a_pool, arguments, chunksize=1).get(LIMIT) == [[3.0] * 4] * 2


def failing_rank(_: int) -> None:
    backplane.create_group("nonexistent", rank=0, world_size=1)


def test_errors_travel_between_processes() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(ValueError, match="nonexistent") as caught:
        pool.map_async(failing_rank, [0]).get(LIMIT)
    assert isinstance(caught.value, backplane.InvalidError)


def in_fork(function: Any) -> str:
    """What the function returns, or its error, in a child made by fork, which then ends as Python programs do."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, str(function()).encode())
            code = 0
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as results:
        text = results.read()
    os.waitpid(child, 0)
    return text


def test_a_forked_child_cannot_use_the_groups_of_its_parent(tmp_path: pathlib.Path) -> None:
    group = backplane.create_group("self", store=backplane.FileStore(str(tmp_path / "a")), rank=0, world_size=1)
    assert "InvalidError: " in in_fork(group.barrier)
    assert "is a fork; make a new one in this process" in in_fork(group.barrier)
    group.barrier()

    def child() -> object:
        store = backplane.FileStore(str(tmp_path / "b"))
        with backplane.create_group("self", store=store, rank=0, world_size=1) as own:
            own.barrier()
            return own.size()

    assert in_fork(child) == "1"
    group.destroy()


def test_stores(tmp_path: pathlib.Path) -> None:
    server = backplane.TCPStore("127.0.0.1", 0, is_master=True, job_id="test")
    client = backplane.TCPStore("127.0.0.1", server.port, timeout=60.0, job_id="test")
    for store in (client, backplane.FileStore(tmp_path / "store"), backplane.PrefixStore("a/", server)):
        store.set("key", "värde")
        assert store.get("key") == "värde".encode()
        assert store.add("count", 2) == 2
        assert store.add("count", -3) == -1
        store.wait(["key", "count"])
        assert store.check(["key", "count"]) is True
        assert store.check(["key", "missing"]) is False
        assert store.compare_set("key", "värde", b"\0") == b"\0"
        assert store.compare_set("key", "other", "new") == b"\0"
        assert store.num_keys() >= 2
        assert store.delete_key("key") is True
        assert store.delete_key("key") is False
        with pytest.raises(TimeoutError, match="missing"):
            store.get("missing", timeout=0.05)
        with pytest.raises(ValueError, match="NUL"):
            store.get("a\0b")
        for call, arguments in ((store.set, ("key", 5)), (store.get, (5,)), (store.wait, ("key",))):
            with pytest.raises(TypeError, match="pass"):
                call(*arguments)
        store.set_timeout(0.05)
        with pytest.raises(backplane.TimedOutError):
            store.wait(["missing"])
    with pytest.raises(backplane.ResourceError, match=str(server.port)):
        backplane.TCPStore("127.0.0.1", server.port, is_master=True)
    with pytest.raises(ValueError, match="does not serve"):
        client.wait_for_clients()
    with pytest.raises(TimeoutError, match="still connected"):
        server.wait_for_clients(0.05)
    del client, store, call
    server.wait_for_clients(60.0)


def test_the_default_group(tmp_path: pathlib.Path) -> None:
    place = f"file://{tmp_path}/store"
    assert backplane.is_available()
    assert not backplane.is_initialized()
    for call in (backplane.get_rank, backplane.barrier, backplane.destroy_process_group):
        with pytest.raises(backplane.InvalidError, match="init"):
            call()
    with backplane.init_process_group("self", place, rank=0, world_size=1) as group:
        assert backplane.is_initialized()
        assert (backplane.get_rank(), backplane.get_world_size(), backplane.get_backend()) == (0, 1, "self")
        assert backplane.get_default_group() is group
        with pytest.raises(ValueError, match="twice"):
            backplane.init_process_group("self", place, rank=0, world_size=1)
    assert not backplane.is_initialized()
    with pytest.raises(backplane.InvalidError):
        backplane.barrier()


def test_it_works_without_numpy() -> None:
    program = "import backplane, sys; assert 'numpy' not in sys.modules; print(backplane.__version__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == backplane.__version__
