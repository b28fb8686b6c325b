# SPDX-License-Identifier: Apache-2.0
"""Remote procedure calls, and the registry of backends."""

from __future__ import annotations

import pathlib
import re

import backplane
import pytest
from backplane import rpc
from support import run_ranks

AGENTS = [agent for agent in ("process_group", "tensorpipe", "zmq") if rpc.backend_registered(agent)]


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The agent of the workers that the test starts."""
    monkeypatch.setenv("BACKPLANE_RPC_BACKEND", request.param)
    return str(request.param)


def test_calls_and_references(agent: str) -> None:
    assert run_ranks(2, "shm", "rpc_calls.py").count("passed") == 2, agent


KILLED = """
import os, signal
import backplane
from backplane import rpc
from support import raised

@rpc.register
def die():
    os.kill(os.getpid(), signal.SIGKILL)

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    error = raised(ConnectionError, rpc.rpc_sync, "worker1", die)
    assert error.peer_rank == 1 and "worker1" in str(error) and "'die'" in str(error), error
    rpc.shutdown(graceful=False)
    print("passed")
else:
    signal.pause()
"""


def test_a_killed_worker_is_named(agent: str) -> None:
    assert "passed" in run_ranks(2, "shm", KILLED, options=["--keep-going"], code=137), agent


INTERRUPTED = """
import os, threading
import backplane
from backplane import rpc
from support import Interrupt, raised

going_on = threading.Event()

@rpc.register
def wait():
    while not rpc.cancelled() and not going_on.wait(0.01):
        pass

@rpc.register
def release():
    going_on.set()

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    with Interrupt():
        raised(KeyboardInterrupt, rpc.rpc_sync, "worker1", wait)
    made = rpc.Future()
    with Interrupt():
        raised(KeyboardInterrupt, made.wait)
    reference = rpc.remote("worker1", wait)
    with Interrupt():
        raised(KeyboardInterrupt, reference.to_here)
    rpc.rpc_sync("worker1", release)
    reference.to_here()
rpc.shutdown()
print("passed")
"""


def test_interrupts_end_waits_for_calls(agent: str) -> None:
    assert run_ranks(2, "shm", INTERRUPTED).count("passed") == 2, agent


ENDING = """
import os, sys, threading
from backplane import rpc

rank = int(os.environ["RANK"])
called = threading.Event()

@rpc.register
def linger():
    called.set()
    while not rpc.cancelled():
        pass
    print("the function has ended", flush=True)

rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
kept = rpc.RRef(object())
if rank == 0:
    rpc.rpc_async("worker1", linger).then(print)
    call = rpc.rpc_async("worker1", linger)
    rpc.all_gather(None)
else:
    called.wait()
    rpc.all_gather(None)
    print("passed", flush=True)
"""


def test_programs_may_just_end(agent: str) -> None:
    """Without shutdown, with functions that run and references that are held."""
    output = run_ranks(2, "shm", ENDING)
    assert "passed" in output, agent
    assert "the function has ended" in output, agent


def test_workers_over_the_default_group() -> None:
    program = """
    import backplane
    from backplane import rpc

    @rpc.register
    def rank():
        return backplane.get_rank()

    with backplane.init_process_group() as group:
        rpc.init_rpc(f"worker{group.rank()}")
        assert [rpc.rpc_sync(each, rank) for each in rpc.get_worker_infos()] == [0, 1, 2]
        rpc.shutdown()
    print("passed")
    """
    assert run_ranks(3, "shm", program).count("passed") == 3


def test_the_document_s_program_runs(agent: str) -> None:
    text = (pathlib.Path(__file__).parents[2] / "share/doc/python.md").read_text()
    [program] = [each for each in re.findall("```python\n(.*?)```", text, re.DOTALL) if "rpc_sync" in each]
    assert run_ranks(2, "shm", program).count("3\n") == 2, agent


def test_the_registry(tmp_path: pathlib.Path) -> None:
    assert rpc.backend_registered("SHM")
    assert not rpc.backend_registered("nonexistent")
    agent = rpc.BackendType.PROCESS_GROUP
    assert repr(agent) == "BackendType.PROCESS_GROUP"
    assert agent is rpc.BackendType["process_group"]
    assert agent in list(rpc.BackendType)
    with pytest.raises(ValueError, match="nonexistent"):
        rpc.BackendType["nonexistent"]
    with pytest.raises(AttributeError):
        rpc.BackendType.NONEXISTENT  # noqa: B018

    options = rpc.construct_rpc_backend_options(agent, rpc_timeout=5, num_send_recv_threads=2)
    assert options["num_send_recv_threads"] == "2"
    assert options.rpc_timeout == 5
    with pytest.raises(KeyError):
        options["nonexistent"]
    with pytest.raises(ValueError, match="num_send_recv_thread"):
        rpc.construct_rpc_backend_options(agent, num_send_recv_thread=2)

    store = backplane.FileStore(str(tmp_path / "store"))
    for wrong in (agent, rpc.BackendType.SELF):
        with pytest.raises(TypeError, match="store"):
            rpc.init_backend(wrong, "store", name="a", rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(ValueError, match="PROCESS_GROUP"):
        rpc.init_backend(rpc.BackendType.SELF, store, "a", 0, 1, options)
    with pytest.raises(TypeError, match="construct_rpc_backend_options"):
        rpc.init_backend(agent, store, "a", 0, 1, {})
    own = rpc.construct_rpc_backend_options(rpc.BackendType.SELF)
    with rpc.init_backend(rpc.BackendType.SELF, store, "group", 0, 1, own) as group:
        assert group.size() == 1
    rpc.init_backend(agent, backplane.PrefixStore("b", store), "lonely", 0, 1, options)
    assert rpc.get_worker_info() == ("lonely", 0)
    rpc.shutdown()
    with pytest.raises(ValueError):
        rpc.get_worker_info()


def test_a_backend_of_the_program(tmp_path: pathlib.Path) -> None:
    calls = []

    def construct(rpc_timeout: float, init_method: str, **keywords: object) -> dict[str, object]:
        return {"rpc_timeout": rpc_timeout, **keywords}

    def init(store: backplane.Store, name: str, rank: int, world_size: int, rpc_backend_options: object) -> None:
        calls.append((name, rank, world_size, rpc_backend_options))
        rpc.init_rpc(name, "process_group", rank, world_size, store=store)

    mine = rpc.register_backend("mine", construct, init)
    assert mine is rpc.BackendType.MINE
    assert rpc.backend_registered("Mine")
    for taken in ("mine", "shm"):
        with pytest.raises(ValueError, match="already registered"):
            rpc.register_backend(taken, construct, init)
    options = rpc.construct_rpc_backend_options(mine, 7, color="red")
    with pytest.raises(ValueError, match="store"):
        rpc.init_rpc("w", mine, 0, 1, options)
    rpc.init_rpc("w", mine, 0, 1, options, store=backplane.FileStore(str(tmp_path / "store")))
    assert calls == [("w", 0, 1, {"rpc_timeout": 7, "color": "red"})]
    assert rpc.get_worker_info().name == "w"
    rpc.shutdown()
