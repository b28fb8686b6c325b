# SPDX-License-Identifier: Apache-2.0
"""A rank's program: each collective, its result compared with numpy's."""

from __future__ import annotations

from typing import Any

import backplane
import numpy as np
from backplane import ReduceOp

group = backplane.init_process_group()
rank, size = group.rank(), group.size()
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def values(of: int, count: int = 5, dtype: str = "f8") -> Any:
    """What rank `of` contributes: small integers, so that no order of additions rounds."""
    numbers = np.arange(count) % 3 + of
    return (numbers % 2 if dtype == "?" else numbers).astype(dtype)


def everybody(count: int = 5, dtype: str = "f8") -> Any:
    return np.stack([values(each, count, dtype) for each in range(size)])


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected)


def all_reduce() -> None:
    for dtype in DTYPES:
        array = values(rank, dtype=dtype)
        assert backplane.all_reduce(array) is None
        equal(array, np.logical_or.reduce(everybody(dtype=dtype)) if dtype == "?" else everybody(dtype=dtype).sum(0))
    for op, function in (
        (ReduceOp.PRODUCT, np.prod),
        (ReduceOp.MIN, np.min),
        (ReduceOp.MAX, np.max),
        (ReduceOp.AVG, np.mean),
    ):
        array = values(rank)
        backplane.all_reduce(array, op)
        np.testing.assert_allclose(array, function(everybody(), axis=0))
    for op, bits in ((ReduceOp.BAND, np.bitwise_and), (ReduceOp.BOR, np.bitwise_or), (ReduceOp.BXOR, np.bitwise_xor)):
        array = values(rank, dtype="u4")
        backplane.all_reduce(array, op)
        equal(array, bits.reduce(everybody(dtype="u4")))


def shapes() -> None:
    for shape in ((), (0,), (2, 3, 4), (100_000,)):
        array = np.full(shape, rank + 1.0)
        backplane.all_reduce(array)
        equal(array, np.full(shape, size * (size + 1) / 2))


def broadcast() -> None:
    for src in range(size):
        array = values(rank)
        if rank == src:
            array.flags.writeable = False  # only read there
        backplane.broadcast(array, src)
        equal(array, values(src))


def reduce() -> None:
    for dst in range(size):
        array = values(rank)
        backplane.reduce(array, dst, ReduceOp.MAX)
        equal(array, everybody().max(0) if rank == dst else values(rank))


def scans() -> None:
    array = values(rank)
    backplane.scan(array)
    equal(array, everybody()[: rank + 1].sum(0))
    array = values(rank)
    backplane.exscan(array)
    equal(array, everybody()[:rank].sum(0) if rank > 0 else values(rank))


def all_gather() -> None:
    outputs = [np.zeros(5) for _ in range(size)]
    backplane.all_gather(outputs, values(rank))
    equal(outputs, everybody())
    output = np.zeros((size, 5))
    backplane.all_gather_into_tensor(output, values(rank))
    equal(output, everybody())
    output = np.zeros((size, 5))
    output[rank] = values(rank)
    backplane.all_gather_into_tensor(output, output[rank])  # in place
    equal(output, everybody())


def gather_and_scatter() -> None:
    for root in range(size):
        outputs = [np.zeros(5) for _ in range(size)] if rank == root else None
        backplane.gather(values(rank), outputs, root)
        if outputs is not None:
            equal(outputs, everybody())
        output = np.zeros(5)
        backplane.scatter(output, list(everybody() + root) if rank == root else None, root)
        equal(output, values(rank) + root)


def reduce_scatter() -> None:
    expected = everybody(5 * size).sum(0).reshape(size, 5)[rank]
    output = np.zeros(5)
    backplane.reduce_scatter_tensor(output, values(rank, 5 * size))
    equal(output, expected)
    output = np.zeros(5)
    backplane.reduce_scatter(output, list(values(rank, 5 * size).reshape(size, 5)))
    equal(output, expected)


def all_to_all() -> None:
    blocks = np.stack([np.full(3, 10 * rank + to) for to in range(size)])
    expected = np.stack([np.full(3, 10 * of + rank) for of in range(size)])
    output = np.zeros_like(blocks)
    backplane.all_to_all_single(output, blocks)
    equal(output, expected)
    outputs = [np.zeros(3, blocks.dtype) for _ in range(size)]
    backplane.all_to_all(outputs, list(blocks))
    equal(outputs, expected)


def all_to_all_splits() -> None:
    """Rank r sends r + to + 1 rows of 2 to rank `to`."""
    sent = [rank + to + 1 for to in range(size)]
    given = np.concatenate([np.full((rows, 2), 10 * rank + to) for to, rows in enumerate(sent)])
    output = np.zeros((sum(sent), 2), given.dtype)  # as many from each as to each
    backplane.all_to_all_single(output, given, sent, sent)
    equal(output, np.concatenate([np.full((rows, 2), 10 * of + rank) for of, rows in enumerate(sent)]))


def other_buffers() -> None:
    data = bytearray([rank, 1, 2])
    backplane.all_reduce(data)
    assert bytes(data) == bytes([sum(range(size)), size, 2 * size])
    view = memoryview(bytearray(16)).cast("i")
    view[0] = rank
    backplane.all_reduce(view, ReduceOp.MAX)
    assert view.tolist() == [size - 1, 0, 0, 0]


def asynchronous() -> None:
    arrays = [np.full(1000, float(rank + i)) for i in range(5)]
    works = [backplane.all_reduce(array, async_op=True) for array in arrays]
    for i, work in enumerate(works):
        assert work is not None
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        equal(arrays[i], np.full(1000, sum(range(size)) + size * i))
    work = backplane.barrier(async_op=True)
    assert work is not None
    work.wait()


def subgroups() -> None:
    chosen = list(range(size))[::-1]
    reversed_group = backplane.new_group(chosen)
    assert reversed_group.rank() == size - 1 - rank
    assert backplane.get_process_group_ranks(reversed_group) == chosen
    alone = backplane.new_group([0])
    if rank == 0:
        array = np.ones(2)
        backplane.all_reduce(array, group=alone)
        equal(array, 1)
    else:
        assert alone.rank() == -1
        try:
            alone.barrier()
            raise AssertionError("no error")
        except backplane.InvalidError as error:
            assert "not a member" in str(error), error
    halves = group.split(rank % 2, key=-rank)
    assert halves.size() == (size - rank % 2 + 1) // 2
    assert [backplane.get_group_rank(halves, halves.global_rank(each)) for each in range(halves.size())] == list(
        range(halves.size())
    )
    try:
        backplane.get_group_rank(halves, size)
        raise AssertionError("no error")
    except backplane.InvalidError as error:
        assert f"global rank {size} is not in group" in str(error), error
    over_zmq = backplane.new_group([0, 1], None, "zmq")
    if rank < 2:
        assert over_zmq.backend == "zmq"
        over_zmq.barrier()
        over_zmq.destroy()
    else:
        assert over_zmq.rank() == -1
    other = group.with_backend("zmq") if group.backend != "zmq" else group
    other.barrier()
    with backplane.new_group() as copy:
        copy.barrier()
    try:
        copy.barrier()
        raise AssertionError("no error")
    except ValueError as error:
        assert "destroyed" in str(error) or "ended" in str(error), error


for check in (
    all_reduce,
    shapes,
    broadcast,
    reduce,
    scans,
    all_gather,
    gather_and_scatter,
    reduce_scatter,
    all_to_all,
    all_to_all_splits,
    other_buffers,
    asynchronous,
    subgroups,
):
    try:
        check()
    except BaseException:
        print(f"in {check.__name__}:", flush=True)
        raise
backplane.barrier()
backplane.destroy_process_group()
assert not backplane.is_initialized()
print(f"rank {rank} passed")
