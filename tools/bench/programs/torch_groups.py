# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over backplane beside torch's gloo: all_reduce, and steps of DistributedDataParallel.

    PYTHONPATH=build/release/python python3 torch_groups.py [RANKS [SECONDS [BACKEND ...]]]     # seconds of each line

All groups live in the same processes, and their samples alternate. A sample is the longest of the ranks' mean times of
some operations back to back. Prints medians in microseconds, and how many times gloo's they are faster.
"""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import backplane.torch

ROUNDS = 21
SIZES = {"4 KB": 4 << 10, "64 KB": 64 << 10, "1 MB": 1 << 20, "32 MB": 32 << 20}


def all_reduce(group, size):
    data = torch.zeros(size // 4)
    return lambda: dist.all_reduce(data, group=group)


def step(group):
    torch.manual_seed(0)
    # 4.3 M parameters in five layers.
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    layers.append(torch.nn.Linear(1024, 100))
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(16, 1024)

    def call():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return call


def mean(call, calls):
    """The longest of the ranks' mean times of a call, in seconds."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    taken = torch.tensor([(time.perf_counter() - begin) / calls])
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def sample(call, seconds):
    """The mean time of a call, of as many as take about `seconds`, in microseconds."""
    calls = int(max(1, min(1000, seconds / mean(call, 1))))
    return mean(call, calls) * 1e6


def work(rank, ranks, place, seconds, backends):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=ranks)
    groups = {"torch's gloo": dist.group.WORLD}
    for backend in backends:
        options = backplane.torch.Options(backend)
        groups[backend] = dist.new_group(range(ranks), backend="backplane", pg_options=options)
    if rank == 0:
        print(f"torch {torch.__version__}, {ranks} ranks, load {os.getloadavg()[0]:.1f}; medians, microseconds")
    rows = {name: {g: all_reduce(group, size) for g, group in groups.items()} for name, size in SIZES.items()}
    rows["DDP step"] = {g: step(group) for g, group in groups.items()}
    for name, calls in rows.items():
        times = {g: [] for g in groups}
        for _ in range(ROUNDS):
            for g, call in calls.items():
                times[g].append(sample(call, seconds / ROUNDS / len(groups)))
        if rank == 0:
            medians = {g: statistics.median(found) for g, found in times.items()}
            base = medians["torch's gloo"]
            cells = [f"{g} {median:.1f} ({base / median:.1f}x)" for g, median in medians.items()]
            print(f"{name:<10}" + " | ".join(cells), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(work, args=(ranks, place, seconds, sys.argv[3:] or ["shm", "zmq", "gloo"]), nprocs=ranks)
