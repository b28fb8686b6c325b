# SPDX-License-Identifier: Apache-2.0
"""Writes the flight recorder for torchfrtrace to $BACKPLANE_TEST_DIRECTORY; the last rank leaves out an operation."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from backplane.torch import dump_flight_recorder
from support import raised


def main() -> None:
    directory = os.environ["BACKPLANE_TEST_DIRECTORY"]
    dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(8))
    dist.all_gather([torch.zeros(3) for _ in range(size)], torch.ones(3))
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * size))
    dist.all_to_all_single(torch.zeros(size), torch.ones(size))
    dist.broadcast(torch.ones(5), 1)
    dist.barrier()
    half = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(4, dtype=torch.int64), group=half)
        dist.send(torch.ones(6), 1) if rank == 0 else dist.recv(torch.ones(6), 0)
    quick = dist.new_group(timeout=datetime.timedelta(seconds=10), pg_options=None)
    dist.all_reduce(torch.ones(2), group=quick)
    path = dump_flight_recorder(directory, "matched_")
    assert path.name == f"matched_{rank}" and path.stat().st_size > 0
    if rank != size - 1:
        error = raised(TimeoutError, dist.all_reduce, torch.ones(7), group=quick)
        assert "all_reduce" in str(error), error
    dump_flight_recorder(directory, "desync_")
    dist.barrier()
    dist.destroy_process_group()
    print("passed", flush=True)


main()
