# SPDX-License-Identifier: Apache-2.0
"""Each operation of torch.distributed over each plugin, on 2 and 4 of 4 ranks, against torch's gloo or known values.

Ends without destroying its groups.
"""

from __future__ import annotations

import datetime
from typing import Any

import backplane
import torch
import torch.distributed as dist
from backplane.torch import Options
from support import BACKENDS, raised

OPS = dist.ReduceOp
Group = Any


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def of_ranks(size: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The tensors of all ranks."""
    return [numbers(100 + rank, *shape, dtype=dtype) for rank in range(size)]


def check_reductions(group: Group, gloo: Group, members: list[int]) -> None:
    rank, size = group.rank(), len(members)
    for op in (OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX):
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
            ours = of_ranks(size, 33, dtype=dtype)[rank]
            theirs = ours.clone()
            dist.all_reduce(ours, op, group)
            dist.all_reduce(theirs, op, gloo)
            assert torch.equal(ours, theirs), (op, dtype)
    for op in (OPS.BAND, OPS.BOR, OPS.BXOR):
        ours = of_ranks(size, 9, dtype=torch.int32)[rank]
        theirs = ours.clone()
        dist.all_reduce(ours, op, group)
        dist.all_reduce(theirs, op, gloo)
        assert torch.equal(ours, theirs), op
    given = of_ranks(size, 40)
    total = torch.stack(given).sum(0)
    average = given[rank].clone()
    dist.all_reduce(average, OPS.AVG, group)
    assert torch.allclose(average, total / size)
    brain = of_ranks(size, 40, dtype=torch.bfloat16)[rank]
    dist.all_reduce(brain, group=group)
    assert brain.dtype is torch.bfloat16 and torch.equal(brain.float(), total)
    strided = torch.zeros(40, 2)
    strided[:, 1] = given[rank]
    dist.all_reduce(strided[:, 1], group=group)
    assert torch.equal(strided[:, 1], total) and not strided[:, 0].any()
    if hasattr(group, "group"):  # else C++ hands the backend a copy, whose result is lost
        negated = torch._neg_view(-given[rank])  # its memory has the elements with the other sign
        assert negated.is_neg()
        dist.all_reduce(negated, group=group)
        assert torch.equal(negated, total)
    several = [numbers(rank, 5), numbers(10 + rank, 2, 3)]
    dist.all_reduce_coalesced(several, group=group)
    assert torch.equal(several[1], torch.stack([numbers(10 + each, 2, 3) for each in range(size)]).sum(0))
    for root in range(size):
        ours = given[rank].clone()
        dist.reduce(ours, members[root], group=group)
        assert torch.equal(ours, total if rank == root else given[rank])


def check_moves(group: Group, gloo: Group, members: list[int]) -> None:
    rank, size = group.rank(), len(members)
    given = of_ranks(size, 4, 3)
    for root in range(size):
        tensor = given[rank].clone()
        dist.broadcast(tensor, members[root], group)
        assert torch.equal(tensor, given[root])
        transposed = given[rank].clone().t()
        dist.broadcast(transposed, members[root], group)
        assert torch.equal(transposed.t(), given[root])
        gathered = [torch.zeros(4, 3) for _ in given] if rank == root else None
        dist.gather(given[rank], gathered, members[root], group)
        assert gathered is None or all(map(torch.equal, gathered, given))
        part = torch.zeros(4, 3)
        dist.scatter(part, given if rank == root else None, members[root], group)
        assert torch.equal(part, given[rank])
    gathered = [torch.zeros(4, 3) for _ in given]
    dist.all_gather(gathered, given[rank], group)
    assert all(map(torch.equal, gathered, given))
    gathered = [torch.zeros(3, 4).t() for _ in given]
    dist.all_gather(gathered, given[rank], group)
    assert all(map(torch.equal, gathered, given))
    if hasattr(dist, "all_gather_coalesced"):
        lists = [[torch.zeros(4, 3), torch.zeros(2)] for _ in given]
        dist.all_gather_coalesced(lists, [given[rank], given[rank][0, :2].clone()], group)
        assert all(torch.equal(of_rank[0], one) for of_rank, one in zip(lists, given))
        assert all(torch.equal(of_rank[1], one[0, :2]) for of_rank, one in zip(lists, given))
    flat = torch.zeros(size * 4, 3)
    dist.all_gather_into_tensor(flat, given[rank], group)
    assert torch.equal(flat, torch.cat(given))
    blocks = [[numbers(1000 * of + to, 6) for to in range(size)] for of in range(size)]
    sums = torch.stack([blocks[of][rank] for of in range(size)]).sum(0)
    one = torch.zeros(6)
    dist.reduce_scatter(one, blocks[rank], group=group)
    assert torch.equal(one, sums)
    dist.reduce_scatter_tensor(one.zero_(), torch.cat(blocks[rank]), group=group)
    assert torch.equal(one, sums)
    received = [torch.zeros(6) for _ in given]
    dist.all_to_all(received, blocks[rank], group)
    assert all(torch.equal(received[of], blocks[of][rank]) for of in range(size))
    ours, theirs = torch.zeros(size * 6), torch.zeros(size * 6)
    dist.all_to_all_single(ours, torch.cat(blocks[rank]), group=group)
    dist.all_to_all_single(theirs, torch.cat(blocks[rank]), group=gloo)
    assert torch.equal(ours, theirs)
    uneven = [torch.full((to + 1, 2), 10.0 * rank + to) for to in range(size)]  # rank r gets r + 1 rows of each
    expected = torch.cat([torch.full((rank + 1, 2), 10.0 * of + rank) for of in range(size)])
    ours = torch.zeros(size * (rank + 1), 2)
    rows = [rank + 1] * size, [to + 1 for to in range(size)]
    dist.all_to_all_single(ours, torch.cat(uneven), *rows, group=group)
    assert torch.equal(ours, expected)
    parts = list(torch.zeros(size * (rank + 1), 2).split(rank + 1))
    dist.all_to_all(parts, uneven, group)
    assert torch.equal(torch.cat(parts), expected)


def check_messages(group: Group, members: list[int]) -> None:
    rank, size = group.rank(), len(members)
    right, left = members[(rank + 1) % size], members[(rank - 1) % size]
    received = torch.zeros(7)
    works = [dist.isend(torch.full((7,), float(rank)), right, group, 5), dist.irecv(received, left, group, 5)]
    for work in works:
        assert work.wait() and work.is_completed()
    assert (received == group_rank(members, left)).all()
    dist.barrier(group)
    if rank == 0:
        for _ in range(1, size):
            column = torch.zeros(3, 2)[:, 0]
            source = dist.recv(column, None, group)
            assert (column == group_rank(members, source)).all()
    else:
        dist.send(torch.full((3,), float(rank)), members[0], group)
    dist.barrier(group)  # the receives from any rank take no message from below
    pairs = [dist.P2POp(dist.isend, received + 1, right, group), dist.P2POp(dist.irecv, torch.zeros(7), left, group)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    assert (pairs[1].tensor == (rank - 2) % size + 1).all()


def group_rank(members: list[int], global_rank: int) -> int:
    return members.index(global_rank)


def check_works(group: Group, members: list[int]) -> None:
    size = len(members)
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert [float(each[0]) for each in work.get_future().wait()] == [size]
    assert work.is_success() and work.exception() is None and work.result()[0] is tensor
    strided = torch.ones(8, 2)
    future = dist.all_reduce(strided[:, 0], group=group, async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    assert (doubled.wait() == 2 * size).all() and (strided[:, 0] == size).all() and (strided[:, 1] == 1).all()


def check_objects(group: Group, members: list[int]) -> None:
    rank, size = group.rank(), len(members)
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank}, group)
    assert gathered == [{"rank": each} for each in range(size)]
    objects: list[Any] = ["text", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, members[0], group)
    assert objects == ["text", 0]


def check_gradients(group: Group, members: list[int]) -> None:
    rank, size = group.rank(), len(members)

    def model() -> torch.nn.Module:
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))

    data = numbers(3, 8 * size, 20)
    alone = model()
    alone(data).square().mean().backward()
    together = torch.nn.parallel.DistributedDataParallel(model(), process_group=group, bucket_cap_mb=1)
    for _ in range(2):
        together.zero_grad()
        together(data[8 * rank : 8 * (rank + 1)]).square().mean().backward()
        for one, other in zip(alone.parameters(), together.parameters()):
            assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def check_failures(group: Group, members: list[int]) -> None:
    """Wrong arguments leave the group as it was; ranks that disagree break it, and are told who and what."""
    rank = group.rank()
    refused = raised(backplane.UnsupportedError, dist.all_reduce, torch.zeros(2).to_sparse(), group=group)
    assert "sparse" in str(refused), refused
    refused = raised(backplane.InvalidError, dist.all_gather, [torch.zeros(2)], torch.zeros(2), group)
    assert "one per rank" in str(refused), refused
    dist.barrier(group)
    error = raised(backplane.InvalidError, dist.all_reduce, torch.zeros(3 + (rank == 1)), group=group)
    for text in ("rank 1", "all_reduce sum (f32 x 4)", "all_reduce sum (f32 x 3)"):
        assert text in str(error), error


def main() -> None:
    dist.init_process_group("backplane", timeout=datetime.timedelta(seconds=100))
    world = dist.distributed_c10d._get_default_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    assert world.group.backend == "shm", "BACKPLANE_BACKEND chooses the plugin"
    everyone = list(range(size))
    halves = [everyone[: size // 2], everyone[size // 2 :]]
    for backend in BACKENDS:
        for sets in (halves, [everyone]):
            gloo = [dist.new_group(each, backend="gloo") for each in sets]
            ours = [dist.new_group(each, pg_options=Options(backend)) for each in sets]
            mine = next(i for i, each in enumerate(sets) if rank in each)
            group, members = ours[mine], sets[mine]
            assert group.group.backend == backend and group.size() == len(members)
            check_reductions(group, gloo[mine], members)
            check_moves(group, gloo[mine], members)
            check_messages(group, members)
            check_works(group, members)
            check_objects(group, members)
            check_gradients(group, members)
            check_failures(group, members)
        dist.barrier()
    print("passed", flush=True)


if __name__ == "__main__":
    main()
