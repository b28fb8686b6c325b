# SPDX-License-Identifier: Apache-2.0
"""torch.distributed and a group of backplane in one process, in the ranks of `backplane run --torch`."""

from __future__ import annotations

import sys

import backplane
import backplane.torch
import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
with backplane.init_process_group() as group:
    assert (group.rank(), group.size()) == (rank, size)
    assert group.all_gather_object(rank) == list(range(size))
    for made in (dist.group.WORLD, dist.new_group(backend="gloo"), dist.new_group(backend="backplane")):
        tensor = torch.tensor([1.0 + rank])
        dist.all_reduce(tensor, group=made)
        assert tensor.item() == size * (size + 1) / 2
print("passed", flush=True)
