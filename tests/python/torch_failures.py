# SPDX-License-Identifier: Apache-2.0
"""The last of several ranks is killed; the others are told on the group of each plugin, and by DDP.

Before, ranks disagree about an operation of a group, which breaks it and names the rank and both operations.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import Any, Callable

import backplane
import torch
import torch.distributed as dist
from backplane.torch import Options
from support import BACKENDS, raised

# What rank 1 and the others do, and how the error describes it.
CONTRADICTIONS: list[tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[str, str]]] = [
    (
        lambda group: dist.all_reduce(torch.ones(3, dtype=torch.float64), group=group),
        lambda group: dist.all_reduce(torch.ones(3), group=group),
        ("all_reduce sum (f64 x 3)", "all_reduce sum (f32 x 3)"),
    ),
    (
        lambda group: dist.broadcast(torch.ones(3), 0, group),
        lambda group: dist.all_reduce(torch.ones(3), group=group),
        ("broadcast (f32 x 3) with root 0", "all_reduce sum (f32 x 3)"),
    ),
]


def step(model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def check_contradictions(rank: int) -> None:
    for of_one, of_others, texts in CONTRADICTIONS:
        group = dist.new_group(pg_options=Options("shm"))
        error = raised(backplane.InvalidError, of_one if rank == 1 else of_others, group)
        for text in ("rank 1", *texts):
            assert text in str(error), error


def check_timeout(rank: int) -> None:
    """A rank that never comes is named."""
    group, barred = (dist.new_group(timeout=datetime.timedelta(seconds=10)) for _ in range(2))
    if rank == 0:
        error = raised(TimeoutError, dist.recv, torch.zeros(1), 1, group)
        assert "recv" in str(error), error
    if rank != 1:
        error = raised(TimeoutError, dist.all_reduce, torch.ones(3), group=group)
        assert "rank 1 (" in str(error) and "never entered all_reduce sum (f32 x 3)" in str(error), error
        error = raised(TimeoutError, dist.barrier, barred)
        assert "rank 1 (" in str(error) and "; the timeout of a group is " in str(error), error


def main() -> None:
    dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    groups = [dist.new_group(pg_options=Options(backend)) for backend in BACKENDS]
    models = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=each) for each in groups]
    for group, model in zip(groups, models):
        dist.all_reduce(torch.ones(3), group=group)
        step(model)
    check_contradictions(rank)
    check_timeout(rank)
    if rank == 0:
        dist.send(torch.zeros(1), last)
    if rank == last:
        dist.recv(torch.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    for group, model in zip(groups, models):
        error = raised(RuntimeError, step, model)  # through C++, whose exceptions have no type of this package
        assert f"rank {last} (" in str(error) and "is lost" in str(error), error
        error = raised(backplane.PeerLostError, dist.all_reduce, torch.ones(3), group=group)
        assert error.peer_rank == last and f"rank {last} (" in str(error) and "is lost" in str(error), error
    print("told after", time.monotonic() - begin, flush=True)
    work = raised(backplane.PeerLostError, dist.barrier, groups[0])
    assert work.peer_rank == last
    print("passed", flush=True)


main()
