# SPDX-License-Identifier: Apache-2.0
"""The last of several ranks is killed; the others are told on the group of each plugin."""

from __future__ import annotations

import datetime
import os
import signal
import time

import backplane
import torch
import torch.distributed as dist
from backplane.torch import Options
from support import BACKENDS, raised


def main() -> None:
    dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    groups = [dist.new_group(pg_options=Options(backend)) for backend in BACKENDS]
    quick = dist.new_group(timeout=datetime.timedelta(seconds=2))
    for group in groups:
        dist.all_reduce(torch.ones(3), group=group)
    if rank == 0:
        error = raised(TimeoutError, dist.recv, torch.zeros(1), 1, quick)
        assert "recv" in str(error), error
        dist.send(torch.zeros(1), last)
    if rank == last:
        dist.recv(torch.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    for group in groups:
        error = raised(backplane.PeerLostError, dist.all_reduce, torch.ones(3), group=group)
        assert error.peer_rank == last and f"rank {last} (" in str(error) and "is lost" in str(error), error
    print("told after", time.monotonic() - begin, flush=True)
    work = raised(backplane.PeerLostError, dist.barrier, groups[0])
    assert work.peer_rank == last
    print("passed", flush=True)


main()
