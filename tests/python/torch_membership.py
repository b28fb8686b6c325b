# SPDX-License-Identifier: Apache-2.0
"""Groups whose members change, with torch 2.14 or newer: torch_membership.py split|shrink|reconfigure

Run on 4 ranks. The last one of "shrink" and "reconfigure" is killed; torch's store is served by rank 0.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from typing import Any

import backplane
import backplane.torch
import torch
import torch.distributed as dist
from support import raised

TIMEOUT = datetime.timedelta(seconds=100)


def total(group: Any = None) -> float:
    """The sum of 1 + each rank's global rank in the job."""
    tensor = torch.tensor([1.0 + int(os.environ["RANK"])])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def split() -> None:
    dist.init_process_group("backplane", timeout=TIMEOUT)
    rank = dist.get_rank()
    ours = dist.split_group(split_ranks=[[2, 0], [1, 3]], timeout=TIMEOUT)
    assert type(ours) is type(dist.distributed_c10d._get_default_group())
    assert dist.get_process_group_ranks(ours) == ([2, 0] if rank in (0, 2) else [1, 3])
    assert (ours.rank(), ours.size()) == ([2, 0, 1, 3].index(rank) % 2, 2)
    assert total(ours) == (4 if rank in (0, 2) else 6)
    again = dist.split_group(split_ranks=[[0, 2], [1, 3]], timeout=TIMEOUT)
    assert again.rank() == rank // 2 and total(again) == (4 if rank in (0, 2) else 6)
    work = dist.all_reduce(torch.ones(2), group=again, async_op=True)
    assert work.wait() and work.is_completed()
    # Of a group that other backends are a part of, C++ splits the parts.
    both = dist.new_group(backend="cpu:backplane,cuda:gloo", timeout=TIMEOUT)
    part = dist.split_group(both, [[0, 1], [2, 3]], timeout=TIMEOUT)
    assert part.size() == 2 and total(part) == (3 if rank < 2 else 7)
    assert part._get_backend(torch.device("cpu")).name() == "backplane"
    dist.barrier()
    some = dist.split_group(split_ranks=[[1, 2]], timeout=TIMEOUT)
    if rank in (1, 2):
        assert total(some) == 5
        alone = dist.split_group(some, [[0], [1]], timeout=TIMEOUT)
        assert alone.size() == 1 and total(alone) == 1 + rank
    else:
        assert some is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


def shrink() -> None:
    dist.init_process_group("backplane", timeout=TIMEOUT)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    trio = dist.new_group([0, 1, 2], timeout=TIMEOUT)
    if rank == 2:
        dist.barrier()  # lives on, and is not needed
    elif rank < 2:
        pair = dist.shrink_group([2], trio)
        assert dist.get_process_group_ranks(pair) == [0, 1] and pair.rank() == rank and total(pair) == 3
        dist.all_reduce(torch.ones(1), group=pair, async_op=True).wait()
        dist.barrier()
    if rank == last:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    lost = raised(backplane.PeerLostError, total)
    assert lost.peer_rank == last, lost
    group = dist.shrink_group([last], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    assert group is dist.distributed_c10d._get_default_group() and dist.get_world_size() == last
    assert dist.get_rank() == rank and total() == sum(range(1, last + 1))
    dist.barrier()


def reconfigure() -> None:
    dist.init_process_group("backplane", timeout=TIMEOUT, enable_reconfigure=True)
    c10d = dist.distributed_c10d
    group = c10d._get_default_group()
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    store = dist.PrefixStore("test", c10d._get_default_store())
    refused = raised(backplane.InvalidError, total)
    assert "call torch.distributed._reconfigure" in str(refused), refused

    def exchange(key: str, ranks: list[int]) -> list[str]:
        """The handles of these ranks, in their order."""
        store.set(f"{key}/{rank}", c10d._get_reconfigure_handle())
        return [store.get(f"{key}/{each}").decode() for each in ranks]

    assert c10d._supports_reconfigure()
    c10d._reconfigure(1, exchange("all", [3, 2, 1, 0])).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (3 - rank, 4) and total() == 10
    assert (dist.ProcessGroup.rank(group), dist.ProcessGroup.size(group)) == (3 - rank, 4), "C++ is told"
    wrong = raised(backplane.InvalidError, c10d._reconfigure, 2, ["tcp://127.0.0.1:1"])
    assert "must differ, and contain" in str(wrong), wrong
    assert total() == 10, "a refused call changes nothing"
    if rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    raised(backplane.PeerLostError, total)
    c10d._reconfigure(2, set(exchange("survivors", [0, 1, 2])), timeout=TIMEOUT).wait()
    assert sorted([0, 1, 2]) == sorted(_ranks()) and dist.get_world_size() == 3 and total() == 6
    pair = [2, 0]
    if rank in pair:
        c10d._reconfigure(3, exchange("pair", pair)).wait()
        assert dist.get_rank() == pair.index(rank) and group.size() == 2 and total() == 4
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, rank)
        assert gathered == pair


def _ranks() -> list[int]:
    """The ranks that the members have in the group."""
    tensor = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    tensor[dist.get_rank()] = dist.get_rank()
    dist.all_reduce(tensor)
    return tensor.tolist()  # type: ignore[no-any-return]


{"split": split, "shrink": shrink, "reconfigure": reconfigure}[sys.argv[1]]()
print("passed", flush=True)
