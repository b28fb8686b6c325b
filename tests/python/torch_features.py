# SPDX-License-Identifier: Apache-2.0
"""What programs run over torch.distributed, on the default group of backplane, against values computed alone.

The groups have 2 and 4 ranks, over each plugin. A check that the version of torch at hand does not support is skipped,
and rank 0 prints the reason. Ends without destroying the last group.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import sys
from typing import Any, Callable

import backplane
import backplane.torch
import torch
import torch.distributed as dist
from support import BACKENDS, raised
from torch.nn.parallel import DistributedDataParallel

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
CHECKS: list[tuple[Callable[[pathlib.Path], None], str, bool]] = []


def check(reason: str = "", at: tuple[int, int] = (0, 0)) -> Callable[[Callable[[pathlib.Path], None]], None]:
    """Registers a check, which needs torch of version `at`. `reason`: what older ones lack."""
    return lambda function: CHECKS.append((function, reason, at <= VERSION))


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def of_ranks(*shape: int) -> list[torch.Tensor]:
    return [numbers(100 + rank, *shape) for rank in range(dist.get_world_size())]


def total(*shape: int) -> torch.Tensor:
    return torch.stack(of_ranks(*shape)).sum(0)


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


class Branches(torch.nn.Module):
    """Uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(12, 4), torch.nn.Linear(12, 4)])

    def forward(self, data: torch.Tensor, which: int) -> torch.Tensor:
        found: torch.Tensor = self.layers[which](data)
        return found


def batch(step: int) -> torch.Tensor:
    """The data of all ranks."""
    return numbers(step, 4 * dist.get_world_size(), 12)


def own(data: torch.Tensor) -> torch.Tensor:
    return data.chunk(dist.get_world_size())[dist.get_rank()]


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def train(trained: torch.nn.Module, optimizer: torch.optim.Optimizer, is_distributed: bool, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss(trained(own(batch(step)) if is_distributed else batch(step))).backward()
        optimizer.step()


def trained_alone(make: Callable[[Any], torch.optim.Optimizer]) -> torch.nn.Module:
    alone = model()
    train(alone, make(alone.parameters()), False)
    return alone


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.5)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def same_parameters(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for a, b in zip(one.parameters(), other.parameters()):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), (a - b).abs().max()


@check()
def ddp_static_graph(_: pathlib.Path) -> None:
    together = DistributedDataParallel(model(), static_graph=True)
    train(together, sgd(together.parameters()), True)
    same_parameters(trained_alone(sgd), together)


@check()
def ddp_unused_parameters(_: pathlib.Path) -> None:
    alone, together = Branches(), DistributedDataParallel(Branches(), find_unused_parameters=True)
    for which in (0, 1):
        loss(alone(batch(which), which)).backward()
        loss(together(own(batch(which)), which)).backward()
        for a, b in zip(alone.layers[which].parameters(), together.module.layers[which].parameters()):
            assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@check()
def ddp_no_sync(_: pathlib.Path) -> None:
    alone, together = model(), DistributedDataParallel(model())
    for step in range(2):
        loss(alone(batch(step))).backward()
    with together.no_sync():
        loss(together(own(batch(0)))).backward()
    loss(together(own(batch(1)))).backward()
    for a, b in zip(alone.parameters(), together.parameters()):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@check()
def ddp_bf16_hook(_: pathlib.Path) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    together = DistributedDataParallel(model())
    # Under its own name, torch takes the hook with NCCL only.
    together.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
    loss(together(own(batch(0)))).backward()
    alone = model()
    loss(alone(batch(0))).backward()
    for a, b in zip(alone.parameters(), together.parameters()):
        assert torch.allclose(a.grad, b.grad, rtol=0.05, atol=0.05 * float(a.grad.abs().max()))


@check()
def zero_redundancy_optimizer(_: pathlib.Path) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    together = DistributedDataParallel(model())
    train(together, ZeroRedundancyOptimizer(together.parameters(), torch.optim.Adam, lr=0.01), True)
    same_parameters(trained_alone(adam), together)


@check("FSDP on CPUs", (2, 4))
def fsdp(_: pathlib.Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    together = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    train(together, sgd(together.parameters()), True)
    with FullyShardedDataParallel.summon_full_params(together):
        same_parameters(trained_alone(sgd), together)


@check("fully_shard on CPUs", (2, 7))
def fully_shard(_: pathlib.Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    together = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (together[0], together[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(together, mesh=mesh)
    train(together, sgd(together.parameters()), True)
    for a, b in zip(trained_alone(sgd).parameters(), together.parameters()):
        assert torch.allclose(a, b.full_tensor(), rtol=1e-4, atol=1e-5)


@check("DTensor", (2, 5))
def dtensor(_: pathlib.Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left, right = numbers(1, 8, 12), numbers(2, 12, 4)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    assert torch.allclose(product.full_tensor(), left @ right)
    rows = distribute_tensor(left, mesh, [Shard(0)])
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local(), left)


@check("functional collectives", (2, 3))
def functional_collectives(_: pathlib.Path) -> None:
    import torch.distributed._functional_collectives as functional

    rank, size, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    mine = of_ranks(size * 2, 3)
    assert torch.equal(functional.all_reduce(mine[rank], "sum", world) + 0, torch.stack(mine).sum(0))
    assert torch.equal(functional.all_gather_tensor(mine[rank], 0, world) + 0, torch.cat(mine))
    scattered = functional.reduce_scatter_tensor(mine[rank], "sum", 0, world)
    assert torch.equal(scattered + 0, torch.stack(mine).sum(0).chunk(size)[rank])
    exchanged = functional.all_to_all_single(mine[rank], None, None, world)
    assert torch.equal(exchanged + 0, torch.cat([each.chunk(size)[rank] for each in mine]))
    several = functional.all_reduce_coalesced([mine[rank], mine[rank] + 1], "sum", world)
    assert torch.equal(several[1] + 0, torch.stack(mine).sum(0) + size)
    weight = mine[rank].clone().requires_grad_()
    if hasattr(functional, "all_gather_tensor_autograd"):
        functional.all_gather_tensor_autograd(weight, 0, world).mul(
            torch.full((size * size * 2, 3), 2.0)
        ).sum().backward()
        assert torch.equal(weight.grad, torch.full_like(weight, 2 * size))


@check("device meshes", (2, 3))
def mesh_of_two_dimensions(_: pathlib.Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("rows", "columns"))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh.get_group("columns"))
    assert tensor.item() == (rank // 2) * 4 + 1
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh.get_group("rows"))
    assert tensor.item() == sum(range(rank % 2, size, 2))


@check()
def objects(_: pathlib.Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank, "text": "x" * 1000 * rank}, gathered)
    assert gathered is None or [each["rank"] for each in gathered] == list(range(size))
    part: list[Any] = [None]
    dist.scatter_object_list(part, [{of} for of in range(size)] if rank == 0 else [None] * size)
    assert part == [{rank}]
    if hasattr(dist, "send_object_list"):
        if rank == 0:
            dist.send_object_list(["a", 1], 1)
        elif rank == 1:
            received: list[Any] = [None, None]
            dist.recv_object_list(received, 0)
            assert received == ["a", 1]


@check("distributed checkpoints", (2, 3))
def checkpoint(place: pathlib.Path) -> None:
    import torch.distributed.checkpoint as dcp

    rank, size = dist.get_rank(), dist.get_world_size()
    state: dict[str, Any] = {"weight": numbers(1, 6, 4), "step": 7}
    if VERSION >= (2, 5):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (size,))
        state["shards"] = distribute_tensor(numbers(2, 8, 3), mesh, [Shard(0)])
    dcp.save(state, checkpoint_id=place)
    loaded = {**state, "weight": torch.zeros(6, 4), "step": 0}
    if "shards" in state:
        loaded["shards"] = torch.zeros_like(state["shards"])
    dcp.load(loaded, checkpoint_id=place)
    assert torch.equal(loaded["weight"], numbers(1, 6, 4)) and loaded["step"] == 7
    if "shards" in state:
        assert torch.equal(loaded["shards"].to_local(), numbers(2, 8, 3).chunk(size)[rank])


@check("torch.compile of collectives", (2, 6))
def compiled(_: pathlib.Path) -> None:
    import torch.distributed._functional_collectives as functional

    def scaled_sum(tensor: torch.Tensor) -> torch.Tensor:
        summed = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        return torch.relu(functional.all_gather_tensor(summed, 0, dist.group.WORLD) + 1)

    torch._dynamo.reset()
    result = torch.compile(scaled_sum, backend="aot_eager", fullgraph=True)(numbers(100 + dist.get_rank(), 5))
    assert torch.equal(result, torch.relu(2 * total(5) + 1).repeat(dist.get_world_size()))


@check("coalescing of collectives", (2, 3))
def coalescing(_: pathlib.Path) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    rank, size = dist.get_rank(), dist.get_world_size()
    several = [numbers(100 + rank, 5), numbers(100 + rank, 2, 3)]
    with _coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor)
    assert torch.equal(several[0], total(5)) and torch.equal(several[1], total(2, 3))
    outputs = [torch.zeros(size * 5), torch.zeros(size * 2)]
    with _coalescing_manager(async_ops=True) as works:
        dist.all_gather_into_tensor(outputs[0], numbers(100 + rank, 5))
        dist.all_gather_into_tensor(outputs[1], numbers(100 + rank, 2))
    works.wait()
    assert torch.equal(outputs[0], torch.cat(of_ranks(5))) and torch.equal(outputs[1], torch.cat(of_ranks(2)))
    part = torch.zeros(3)
    with _coalescing_manager():
        dist.reduce_scatter_tensor(part, numbers(100 + rank, 3 * size))
    assert torch.equal(part, total(3 * size).chunk(size)[rank])


@check()
def coalesced_lists(_: pathlib.Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    several = [numbers(100 + rank, 5), numbers(100 + rank, 2, 3)]
    dist.all_reduce_coalesced(several)
    assert torch.equal(several[0], total(5)) and torch.equal(several[1], total(2, 3))
    lists = [[torch.zeros(5), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [numbers(100 + rank, 5), numbers(100 + rank, 3)])
    assert torch.equal(torch.stack([each[0] for each in lists]), torch.stack(of_ranks(5)))
    assert torch.equal(torch.stack([each[1] for each in lists]), torch.stack(of_ranks(3)))


@check()
def premultiplied_sum(_: pathlib.Path) -> None:
    if VERSION < (2, 0):
        error = raised(NotImplementedError, dist.all_reduce, torch.ones(6), dist._make_nccl_premul_sum(0.5))
        assert "does not tell the factor of PREMUL_SUM" in str(error), error
        return
    for factor in (0.5, torch.tensor([2.0])):
        tensor = numbers(100 + dist.get_rank(), 6)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert torch.equal(tensor, factor * total(6))


@check("groups that only their members make", (2, 1))
def members_make_a_group(_: pathlib.Path) -> None:
    if dist.get_rank() in (0, 1):
        group = dist.new_group([0, 1], use_local_synchronization=True)
        tensor = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 3.0


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


@check()
def data_loader_that_forks(_: pathlib.Path) -> None:
    data = Numbers()
    sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, 2, sampler=sampler, num_workers=1, multiprocessing_context="fork")
    seen = torch.zeros(())
    for each in loader:
        summed = each.sum()
        dist.all_reduce(summed)
        seen += summed
    assert seen.item() == sum(range(16))


@check()
def monitored_barrier(_: pathlib.Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    second, long = datetime.timedelta(seconds=1), datetime.timedelta(seconds=60)
    backplane.torch.monitored_barrier(timeout=long)
    last = size - 1
    if rank == 0:
        error = raised(TimeoutError, backplane.torch.monitored_barrier, timeout=second)
        assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in str(error), error
        everyone = ", ".join(map(str, range(1, size)))
        error = raised(TimeoutError, backplane.torch.monitored_barrier, timeout=second, wait_all_ranks=True)
        name = f"Ranks {everyone}" if size > 2 else "Rank 1"
        assert f"{name} failed to pass monitoredBarrier in 1000 ms" in str(error), error
    dist.barrier()
    backplane.torch.monitored_barrier(timeout=long, wait_all_ranks=True)  # the failures have left the group usable
    if rank == last:
        error = raised(TimeoutError, backplane.torch.monitored_barrier, timeout=datetime.timedelta(seconds=0.1))
        assert f"Rank {last} successfully reached monitoredBarrier, but received errors" in str(error), error
    dist.barrier()  # the arrival that was withdrawn does not count
    if rank == 0:
        error = raised(TimeoutError, backplane.torch.monitored_barrier, timeout=second, wait_all_ranks=True)
        assert f"{last} failed to pass monitoredBarrier" in str(error), error
    dist.barrier()
    backplane.torch.monitored_barrier(timeout=long)


def start(backend: str, members: list[int], rank: int, store: dist.Store) -> None:
    """Makes a default group of some of the processes."""
    os.environ["BACKPLANE_BACKEND"] = backend
    dist.init_process_group(
        "backplane",
        timeout=datetime.timedelta(seconds=100),
        world_size=len(members),
        rank=members.index(rank),
        store=dist.PrefixStore(f"{backend}/{members}", store),
    )


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, size, rank == 0, datetime.timedelta(seconds=100))
    if rank == 0:
        for function, reason, is_supported in CHECKS:
            if not is_supported:
                print(f"skipped: {function.__name__}: torch {torch.__version__} lacks {reason}")
    pairs = [list(range(i, i + 2)) for i in range(0, size, 2)]
    for backend in BACKENDS:
        for members in (next(pair for pair in pairs if rank in pair), list(range(size))):
            if dist.is_initialized():
                dist.destroy_process_group()
            start(backend, members, rank, store)
            place = folder / f"{backend}-{len(members)}-{members[0]}"
            for function, _, is_supported in CHECKS:
                if is_supported:
                    function(place)
                    dist.barrier()
    print("passed", flush=True)


main()
