# SPDX-License-Identifier: Apache-2.0
"""A group whose backends are those of $BACKPLANE_TEST_GROUP, such as "cpu:backplane,cuda:gloo".

The package is not imported if torch finds the backend by its entry point.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os

import torch
import torch.distributed as dist
from support import raised

NAMES = os.environ["BACKPLANE_TEST_GROUP"]
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
GROUPS = {"torch.backends": (2, 5) <= VERSION < (2, 14), "torch.distributed.backends": VERSION >= (2, 14)}


def is_discovered() -> bool:
    """Whether this torch finds the backend by the entry points of the installed package."""
    try:
        points = importlib.metadata.distribution("backplane").entry_points
    except importlib.metadata.PackageNotFoundError:  # the build tree, without an installation
        return False
    return any(point.name == "backplane" and GROUPS.get(point.group, False) for point in points)


def check_asynchronous(group: dist.ProcessGroup) -> None:
    """With results that C++ wraps, which have `wait` and `get_future`."""
    tensor, column = torch.ones(8), torch.ones(8, 2)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert (work.get_future().wait()[0] == group.size()).all() and work.wait()
    work = dist.all_reduce(column[:, 0], group=group, async_op=True)
    work.wait()
    assert (column[:, 0] == group.size()).all() and (column[:, 1] == 1).all()
    right, left = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    received = torch.zeros(7)
    works = [dist.isend(torch.full((7,), float(group.rank())), right), dist.irecv(received, left)]
    for work in works:
        work.wait()
    assert (received == left).all()
    pairs = [dist.P2POp(dist.isend, received + 1, right), dist.P2POp(dist.irecv, torch.zeros(7), left)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    assert (pairs[1].tensor == (group.rank() - 2) % group.size() + 1).all()


def check_without_gpu(timeout: datetime.timedelta) -> None:
    """torch reads the names and makes both parts, of which its NCCL refuses to start. The other part works alone."""
    config = dist.distributed_c10d.BackendConfig(dist.distributed_c10d.Backend(NAMES))
    assert config.get_device_backend_map() == {"cpu": "backplane", "cuda": "nccl"}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0, timeout)
    options = {"world_size": size, "rank": rank, "timeout": timeout}
    raised((RuntimeError, ValueError), dist.init_process_group, NAMES, store=dist.PrefixStore("both", store), **options)
    dist.init_process_group("cpu:backplane", store=dist.PrefixStore("one", store), **options)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.barrier()


def main() -> None:
    if not is_discovered():
        importlib.import_module("backplane.torch")
    timeout = datetime.timedelta(seconds=100)
    is_combined = "," in NAMES
    if is_combined and VERSION < (2, 14):
        from backplane import UnsupportedError

        refused = raised(UnsupportedError, dist.init_process_group, NAMES, timeout=timeout)
        assert "use torch 2.14 or newer" in str(refused) and NAMES.split(":")[-1] in str(refused), refused
        print("passed", flush=True)
        return
    if "nccl" in NAMES and not torch.cuda.is_available():
        check_without_gpu(timeout)
        print("passed", flush=True)
        return
    dist.init_process_group(NAMES, timeout=timeout)
    import torch_collectives as checks  # imports the package, which torch has found without it

    group = dist.distributed_c10d._get_default_group()
    ours = group._get_backend(torch.device("cpu")) if is_combined else group
    assert ours.group.backend == "shm" and ours.name() == "backplane", ours
    gloo = dist.new_group(backend="gloo")
    members = list(range(dist.get_world_size()))
    checks.check_reductions(group, gloo, members)
    checks.check_moves(group, gloo, members)
    checks.check_objects(group, members)
    checks.check_gradients(group, members)
    check_asynchronous(group)
    if not is_combined:
        checks.check_messages(group, members)
        checks.check_works(group, members)
    if is_combined:
        from backplane.torch import monitored_barrier

        dist.monitored_barrier(group)
        monitored_barrier(group)  # with the timeout of the group
    half = dist.new_group(members[::2])
    if dist.get_rank() in members[::2]:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=half)
        assert (tensor == len(members[::2])).all()
    dist.barrier()
    dist.destroy_process_group()
    print("passed", flush=True)


main()
