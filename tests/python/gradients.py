# SPDX-License-Identifier: Apache-2.0
"""A rank's program: gradients in packs, and memory of the backend, on three ranks."""

from __future__ import annotations

import gc

import backplane
import numpy as np
from backplane.compat.megengine import (
    AllreduceCallback,
    bcast_list_,
    get_offsets,
    is_distributed,
    pack_allreduce_split,
    param_pack_concat,
    param_pack_split,
    synchronized,
)
from backplane.gradients import GradientReducer
from support import raised

group = backplane.init_process_group()
rank, size = group.rank(), group.size()


def packs() -> None:
    with GradientReducer(group, "mean", pack_bytes=1000) as reducer:
        for step in range(3):
            gradients = {
                f"layer{i}.{kind}": np.full(shape, step + i + rank, kind)
                for i, shape in enumerate([(3, 4), (), (200,), (7, 1)])
                for kind in ("f8", "f4")
            }
            added = {name: reducer.add(name, gradient) for name, gradient in gradients.items()}
            assert "twice" in str(raised(ValueError, reducer.add, "layer0.f8", np.zeros(1)))
            assert (added["layer0.f8"].wait() == step + 1).all()  # layer2.f8 has filled its pack
            assert added["layer0.f8"].is_completed()
            assert "not full" in str(raised(ValueError, added["layer3.f8"].wait))
            assert not added["layer3.f8"].is_completed()
            reducer.finish()
            for name, gradient in gradients.items():
                assert (gradient == step + int(name[5]) + 1).all(), (name, gradient)
                assert added[name].get() is gradient
        reducer.finish()  # of a round in which nothing was added
    raised(backplane.CancelledError, reducer.add, "late", np.zeros(1))


def refused() -> None:
    with GradientReducer() as reducer:
        raised(ValueError, reducer.add, "strided", np.zeros(4)[::2])
        raised(TypeError, reducer.add, "objects", np.array([object()]))
    raised(ValueError, GradientReducer, group, "median")
    assert "on rank 0" in str(raised(ValueError, GradientReducer, group, "sum" if rank == 0 else "mean"))


def different_names() -> None:
    reducer = GradientReducer(group)
    gradient = np.full(3, float(rank))
    added = reducer.add("weight" if rank < 2 else "bias", gradient)
    error = raised(ValueError, reducer.finish)
    assert "rank 2" in str(error) and ("bias" if rank == 2 else "weight") in str(error), error
    assert (gradient == rank).all()
    assert str(raised(ValueError, added.wait)) == str(error)
    raised(ValueError, reducer.finish)
    reducer.close()


def different_numbers() -> None:
    reducer = GradientReducer(group, timeout=60)
    if rank == 1:
        reducer.add("extra", np.zeros(3))
    raised(backplane.BackplaneError, reducer.finish)
    raised(backplane.BackplaneError, reducer.add, "next", np.zeros(1))
    reducer.close()


def callback() -> None:
    class Parameter:
        name = "weight"

    reduced = AllreduceCallback("SUM", backend=group.backend)
    for _ in range(2):
        gradients = [np.full(4, float(rank)), np.full((2, 2), rank, "f4"), np.full(1, float(rank))]
        futures = [reduced(each, gradient) for each, gradient in zip((Parameter(), "bias", object()), gradients)]
        reduced.flush()
        assert [(future.get() == 3).all() for future in futures] == [True] * 3
    reduced.close()


def helpers() -> None:
    assert is_distributed()
    assert get_offsets([(2, 3), (), (4,)]) == [0, 6, 6, 7, 7, 11]
    arrays = [np.full((2, 3), float(rank)), np.float64(rank), np.arange(4.0)]
    pack = param_pack_concat(arrays, None, [0, 6, 6, 7, 7, 11])
    assert pack.shape == (11,)
    assert [each.shape for each in param_pack_split(pack, [0, 6, 6, 7, 7, 11], [(2, 3), (), (4,)])] == [
        (2, 3),
        (1,),
        (4,),
    ]
    raised(ValueError, param_pack_concat, arrays, None, [0, 5, 5, 6, 6, 10])
    total, scalar, mean = pack_allreduce_split(arrays, [(2, 3), (), (4,)], None, "mean")
    assert (total == 1).all() and scalar == [1.0] and (mean == np.arange(4.0)).all()
    given = [np.full(2, rank), np.full((), float(rank))]
    bcast_list_(given, root=2)
    assert (given[0] == 2).all() and given[1] == 2


def synchronization() -> None:
    @synchronized
    def load(fails: bool) -> int:
        if fails:
            raise OSError("no such file")
        return rank

    assert load(False) == rank
    error = raised(OSError if rank == 1 else backplane.CancelledError, load, rank == 1)
    assert "no such file" in str(error)
    assert rank == 1 or error.peer_rank == 1


def memory() -> None:
    for shape, dtype in (((300, 1000), "f4"), (5, "i8"), ((2, 0), "f8"), ((), "u1")):
        array = backplane.empty(shape, dtype)
        assert array.shape == np.empty(shape).shape
        assert array.dtype == dtype
        array[...] = rank
        backplane.all_reduce(array)
        assert (array == 3).all()
    row = backplane.empty((300, 1000), "f4", group)[7]  # keeps the memory alive
    gc.collect()
    row[:] = rank
    work = group.all_reduce(row, async_op=True)
    del row
    gc.collect()
    work.wait()
    raised(ValueError, backplane.empty, (2, -1))
    raised(ValueError, backplane.empty, 2, object)
    raised(ValueError, backplane.empty, (1 << 40, 1 << 40))
    raised(OSError, backplane.empty, 1 << 52, "u1")
    with group.new_group(range(size)) as other:
        kept = backplane.empty(4, group=other)
        kept[:] = rank
        other.all_reduce(kept)
    assert (kept == 3).all()


for check in (
    packs,
    refused,
    different_names,
    different_numbers,
    callback,
    helpers,
    synchronization,
    memory,
):
    try:
        check()
    except BaseException:
        print(f"in {check.__name__}:", flush=True)
        raise
    backplane.barrier()
backplane.destroy_process_group()
print(f"rank {rank} passed")
