# SPDX-License-Identifier: Apache-2.0
"""A rank under torchrun, of which rank 1 is killed in the first attempt; the second attempt ends the job's work."""

from __future__ import annotations

import datetime
import os
import signal

import backplane
import backplane.torch
import torch
import torch.distributed as dist

dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
tensor = torch.tensor([1.0 + rank])
dist.all_reduce(tensor)
if attempt == "0":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(tensor)
    except backplane.PeerLostError as error:
        print(f"rank {rank} lost rank {error.peer_rank}", flush=True)
        raise
assert tensor.item() == 3.0
print(f"rank {rank} passed in attempt {attempt}", flush=True)
