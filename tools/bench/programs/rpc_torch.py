# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.rpc compared with rpc_bench: the same calls between two processes, median and fastest batch.

    python3 rpc_torch.py [SECONDS]     # of each line
"""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


def null():
    pass


def echo(data):
    return data


def batches(call, calls, seconds):
    call()
    end = time.perf_counter() + seconds
    times = []
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return times


def work(rank, directory, seconds):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{directory}/store")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        print(f"torch {torch.__version__}; microseconds per operation; load {os.getloadavg()[0]:.1f}")
        for size in (0, 4 << 10, 1 << 20, 64 << 20):
            data = torch.zeros(size, dtype=torch.uint8)
            call = (lambda: rpc.rpc_sync("worker1", null)) if size == 0 else (
                lambda: rpc.rpc_sync("worker1", echo, args=(data,)))
            times = batches(call, 20 if size <= 1 << 16 else 1, seconds)
            what = "null" if size == 0 else "echo"
            print(f"{what:<8}{size:>10} | median {statistics.median(times):10.1f} | fastest {min(times):10.1f}")
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(work, args=(place, float(sys.argv[1]) if len(sys.argv) > 1 else 4.0), nprocs=2)
