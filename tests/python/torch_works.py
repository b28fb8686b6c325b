# SPDX-License-Identifier: Apache-2.0
"""Two ranks start more operations than they wait for, through C++, which holds the results, and directly."""

from __future__ import annotations

import datetime

import backplane
import torch
import torch.distributed as dist
from backplane.torch import _torch_work
from support import raised

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
MANY = 3 * _torch_work._MOST_WHOLE


def check_functional_collectives() -> None:
    """C++ holds the results until wait_tensor."""
    name = dist.distributed_c10d._get_default_group().group_name
    outputs = [torch.ops._c10d_functional.all_reduce(torch.full((3,), i + 1.0), "sum", name) for i in range(MANY)]
    for i, output in enumerate(outputs):
        assert (torch.ops._c10d_functional.wait_tensor(output) == 2 * (i + 1.0)).all(), i
    outputs = [torch.ops._c10d_functional.all_gather_into_tensor(torch.full((3,), i + 1.0), 2, name) for i in range(9)]
    for i, output in enumerate(outputs):
        assert (torch.ops._c10d_functional.wait_tensor(output) == i + 1.0).all() and output.shape == (6,)
    assert not _torch_work._whole and not _torch_work._outcomes


def check_works_that_are_dropped(group: dist.ProcessGroup) -> None:
    """Of the older ones, the outcomes are kept until somebody waits."""
    tensors = [torch.ones(2) for _ in range(MANY)]
    for i, tensor in enumerate(tensors):
        group.allreduce([tensor])
        if i % 32 == 0:
            dist.barrier()
    dist.barrier()
    assert all((tensor == 2).all() for tensor in tensors)
    kept, outcomes = len(_torch_work._whole), len(_torch_work._outcomes)
    assert kept + outcomes == MANY and kept < 2 * _torch_work._MOST_WHOLE, (kept, outcomes)
    work = next(iter(_torch_work._outcomes.values()))
    assert work.is_completed() and work.is_success() and work.exception() is None and work.wait()
    assert len(_torch_work._outcomes) == outcomes - 1


def check_works_of_python(group: dist.ProcessGroup) -> None:
    """Those that Python holds have their results, however many follow."""
    before = len(_torch_work._whole) + len(_torch_work._outcomes)
    tensor, column = torch.ones(2), torch.ones(2, 2)
    held = [dist.all_reduce(tensor, async_op=True), group.allreduce([column[:, 0]])]
    for _ in range(MANY):
        dist.all_reduce(torch.ones(1), async_op=True)
    dist.barrier()
    assert len(_torch_work._whole) + len(_torch_work._outcomes) == before + 1, "those of dist.all_reduce are not kept"
    for _ in range(MANY):
        group.allreduce([torch.ones(1)])
    dist.barrier()
    assert held[0].result()[0] is tensor and (held[1].result()[0] == 2).all() and (column[:, 1] == 1).all()
    assert (held[1].get_future().wait()[0] == 2).all()
    held[0].wait()


def check_failures(group: dist.ProcessGroup) -> None:
    """The outcome of a failure is the failure."""
    work = group.allreduce([torch.ones(2 + group.rank())])
    raised(backplane.InvalidError, work.wait)
    failed = _torch_work.TorchWork(work._tensors, [], False)
    failed._parts = work._parts
    failed._keep_outcome()
    assert not failed._parts and failed.is_completed() and not failed.is_success()
    error = raised(backplane.InvalidError, failed.wait)
    assert "all_reduce sum (f32 x 2)" in str(error), error


def main() -> None:
    dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
    group = dist.distributed_c10d._get_default_group()
    if VERSION >= (2, 2):
        check_functional_collectives()
    if _torch_work.FORGETS:
        check_works_that_are_dropped(group)
        check_works_of_python(group)
    check_failures(group)
    print("passed", flush=True)


main()
