# SPDX-License-Identifier: Apache-2.0
"""A worker's program: calls between workers."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import backplane
import numpy as np
from backplane import rpc
from support import raised

started, going_on = threading.Event(), threading.Event()


@rpc.register
def add(a: float, b: float = 10) -> float:
    return a + b


@rpc.register
def echo(*values: object, **named: object) -> list[object]:
    return [list(values), named]


@rpc.register
def nothing() -> None:
    pass


@rpc.register
def scaled(array: np.ndarray, factor: float) -> np.ndarray:
    array *= factor  # received arrays are writable
    return array


@rpc.register
def failing(kind: str) -> None:
    raise {"value": ValueError, "key": KeyError, "exit": SystemExit}[kind]("no such row\nin the table")


@rpc.register
def refused_by_backplane() -> None:
    raise backplane.TimedOutError("the disk is slow")


@rpc.register
def an_object() -> object:
    return object()


@rpc.register
def nested(depth: int) -> int:
    me = rpc.get_worker_info()
    if depth == 0:
        return 0
    return 1 + rpc.rpc_sync((me.id + 1) % len(rpc.get_worker_infos()), nested, (depth - 1,))


@rpc.register
def slow() -> bool:
    """Returns once its caller no longer waits."""
    started.set()
    while not rpc.cancelled():
        if going_on.wait(0.01):
            return False
    return True


@rpc.register
def release() -> None:
    going_on.set()


@rpc.register
def sum_of(ref: rpc.RRef[list[int]]) -> int:
    return sum(ref.to_here())


@rpc.register
def owned_here(ref: rpc.RRef[object]) -> list[object]:
    return [ref.is_owner(), ref.owner_name(), ref]


@rpc.register("tests.Counter")
class Counter:
    alive = 0

    def __init__(self, begin: int = 0) -> None:
        self._value = begin
        self._lock = threading.Lock()
        Counter.alive += 1

    def __del__(self) -> None:
        Counter.alive -= 1

    def add(self, amount: int = 1) -> int:
        with self._lock:
            self._value += amount
            return self._value

    def _secret(self) -> None:
        raise AssertionError("a private method was called")


@rpc.register
def counters() -> int:
    gc.collect()
    return Counter.alive


rank = int(os.environ["RANK"])
name, other = f"worker{rank}", f"worker{1 - rank}"
rpc.init_rpc(name, rank=rank, world_size=2)


def workers() -> None:
    assert rpc.get_worker_info() == rpc.WorkerInfo(name, rank)
    assert rpc.get_worker_info(other).id == 1 - rank
    assert rpc.get_worker_infos() == [("worker0", 0), ("worker1", 1)]
    assert rpc.all_gather({"rank": rank}) == {"worker0": {"rank": 0}, "worker1": {"rank": 1}}
    assert "worker0" in str(raised(ValueError, rpc.get_worker_info, "nobody"))
    assert "already" in str(raised(ValueError, rpc.init_rpc, "again", rank=rank, world_size=2))
    assert rpc.get_metrics()


def calls() -> None:
    for to in (other, 1 - rank, rpc.get_worker_info(other), name):
        assert rpc.rpc_sync(to, add, (1, 2)) == 3
    assert rpc.rpc_sync(other, "add", (1,)) == 11
    assert rpc.rpc_sync(other, add, kwargs={"a": 1, "b": 0.5}) == 1.5
    assert rpc.rpc_sync(other, nothing) is None
    values = [None, True, -(2**63), 2**64 - 1, 1.5, "ä", b"\0", [1, [2]], {"k": 1, 2: "v"}]
    assert rpc.rpc_sync(other, echo, values, {"x": [1], "y": None}) == [values, {"x": [1], "y": None}]
    assert rpc.rpc_sync(other, echo, ("x" * 3_000_000,)) == [["x" * 3_000_000], {}]
    assert rpc.rpc_sync(other, nested, (6,)) == 6


def arrays() -> None:
    for dtype in ("f4", "f8", "c16", "i2", "u1"):
        given = np.arange(12).reshape(3, 4).astype(dtype)
        got = rpc.rpc_sync(other, scaled, (given, 2))
        assert got.dtype == given.dtype
        np.testing.assert_array_equal(got, given * 2)
        np.testing.assert_array_equal(given, np.arange(12).reshape(3, 4))
    big = np.arange(1_000_000.0)
    call = rpc.rpc_async(other, scaled, (big, 3))
    big[:] = 0  # it was copied
    result = call.wait()
    assert (result == np.arange(1_000_000.0) * 3).all()
    assert result.flags.writeable
    strided = np.arange(10.0)[::2]
    [[got, empty, flag], named] = rpc.rpc_sync(
        other, echo, (strided, np.zeros((0, 3)), np.array([True])), {"n": strided}
    )
    np.testing.assert_array_equal(got, strided)
    np.testing.assert_array_equal(named["n"], strided)
    assert empty.shape == (0, 3)
    assert flag.dtype == bool
    [[pair], _] = rpc.rpc_sync(other, echo, ([np.ones(2), {"deep": np.zeros(3, "i4")}],))
    assert pair[1]["deep"].shape == (3,)
    assert rpc.rpc_sync(other, add, (np.float32(1.5), np.int64(2))) == 3.5


def failures() -> None:
    error = raised(ValueError, rpc.rpc_sync, other, failing, ("value",))
    text = str(error)
    for part in ("'failing'", f"'{other}'", "ValueError: no such row in the table", "rpc_calls.py", "in failing"):
        assert part in text, (part, text)
    assert "\n" not in text
    assert error.peer_rank == 1 - rank
    assert isinstance(raised(backplane.InternalError, rpc.rpc_sync, other, failing, ("key",)), backplane.InternalError)
    assert "SystemExit" in str(raised(backplane.InternalError, rpc.rpc_sync, other, failing, ("exit",)))
    assert "the disk is slow" in str(raised(TimeoutError, rpc.rpc_sync, other, refused_by_backplane))
    assert "argument" in str(raised(ValueError, rpc.rpc_sync, other, add, (1, 2, 3)))
    assert "registered" in str(raised(ValueError, rpc.rpc_sync, other, "ad", (1,)))
    assert "did you mean" in str(raised(ValueError, rpc.rpc_sync, other, "ad", (1,))).lower()
    assert "@rpc.register" in str(raised(ValueError, rpc.rpc_sync, other, len, ([],)))
    for value in (object(), {1, 2}, 2**64, np.array([object()])):
        assert "argument 2 cannot be sent" in str(raised(TypeError, rpc.rpc_sync, other, echo, (1, value)))
    assert "argument `x`" in str(raised(TypeError, rpc.rpc_sync, other, echo, (), {"x": object()}))
    error = raised(ValueError, rpc.rpc_sync, other, an_object)
    assert "the result cannot be sent" in str(error), error
    raised(ValueError, rpc.rpc_sync, 7, add, (1,))
    raised(ValueError, rpc.register_function, "add", add)
    raised(TypeError, rpc.register_function, "seven", 7)


def futures() -> None:
    call = rpc.rpc_async(other, add, (1, 2))
    following = call.then(lambda ended: ended.wait() + 1).then(lambda ended: ended.value() * 2)
    assert following.wait() == 8
    assert call.done() and call.value() == 3
    assert call.then(lambda ended: ended.value()).wait() == 3  # it has ended
    failed = rpc.rpc_async(other, failing, ("value",)).then(lambda ended: ended.value())
    raised(ValueError, failed.wait)
    raised(ValueError, failed.wait)
    calls = [rpc.rpc_async(other, add, (i, i)) for i in range(50)]
    assert rpc.collect_all(calls).wait() == calls
    assert rpc.wait_all(calls) == [2 * i for i in range(50)]
    made: rpc.Future[str] = rpc.Future()
    raised(TimeoutError, made.wait, 0.01)
    threading.Timer(0.05, made.set_result, ["x"]).start()
    assert made.wait() == "x"
    raised(backplane.CancelledError, call.set_result, 1)
    rpc.rpc_async(other, add, (1, 2))  # dropped

    async def awaiting() -> None:
        got = await asyncio.gather(*(wait(rpc.rpc_async(other, add, (i, 1))) for i in range(8)))
        assert got == list(range(1, 9))
        try:
            await rpc.rpc_async(other, failing, ("value",))
        except ValueError:
            return
        raise AssertionError("no error")

    async def wait(future: rpc.Future[float]) -> float:
        return await future

    asyncio.run(awaiting())


def deadlines() -> None:
    if rank == 0:
        call = rpc.rpc_async(other, slow, timeout=0.2)
        raised(TimeoutError, call.wait, 0)
        error = raised(backplane.TimedOutError, call.wait)
        assert "'slow'" in str(error) and error.peer_rank == 1, error
        cancelled = rpc.rpc_async(other, slow)
        cancelled.cancel()
        raised(backplane.CancelledError, cancelled.wait)
        endless = rpc.rpc_async(other, slow, timeout=0)
        rpc.rpc_sync(other, release)
        assert endless.wait() is False


def references() -> None:
    there = rpc.remote(other, Counter, (5,))
    assert there.owner() == rpc.get_worker_info(other)
    assert not there.is_owner()
    assert there.rpc_sync().add(2) == 7
    assert there.rpc_async().add(amount=3).wait() == 10
    assert there.remote().add().to_here() == 11
    assert "public method" in str(raised(ValueError, there.rpc_sync()._secret))
    assert "public method" in str(raised(ValueError, rpc.rpc_sync, other, "backplane.method", (there, "__init__")))
    raised(ValueError, there.local_value)
    assert "cannot be sent" in str(raised(ValueError, there.to_here))
    is_owner, owner, back = rpc.rpc_sync(other, owned_here, (there,))
    assert is_owner and owner == other
    assert back.rpc_sync().add() == 12
    here = rpc.RRef([1, 2, 3])
    assert here.is_owner() and here.local_value() == [1, 2, 3] == here.to_here()
    assert rpc.rpc_sync(other, sum_of, (here,)) == 6
    words = rpc.remote(other, echo, ("a",))
    assert words.to_here() == [["a"], {}]
    assert "@rpc.register" in str(raised(ValueError, words.rpc_sync().pop))
    raised(ValueError, rpc.remote(other, failing, ("value",)).to_here)
    array = rpc.remote(other, scaled, (np.ones(1000), 4))
    assert (array.to_here() == 4).all() and (array.to_here() == 4).all()
    rpc.all_gather(None)
    del there, back
    gc.collect()
    while rpc.rpc_sync(other, counters) > 0:
        pass


def threads() -> None:
    def work() -> None:
        for i in range(50):
            results.append(rpc.rpc_sync(other, add, (i, 1)) == i + 1)

    results: list[bool] = []
    running = [threading.Thread(target=work) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert results == [True] * 200


for check in (workers, calls, arrays, failures, futures, deadlines, references, threads):
    try:
        check()
    except BaseException:
        print(f"in {check.__name__}:", flush=True)
        raise
    rpc.all_gather(None)
assert rpc.shutdown() == []
assert rpc.shutdown() == []
raised(ValueError, rpc.rpc_sync, other, add, (1, 2))
print(f"worker {rank} passed")
