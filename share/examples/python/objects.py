# SPDX-License-Identifier: Apache-2.0
"""Barriers and objects with the calls of hfai.distributed, in the default group and in one of a library.

backplane run -n 3 python3 objects.py
"""

import os
import shutil
import tempfile

import backplane.compat.hf as dist


def count_files(store_path, rank, size):
    """A library, whose group leaves the program's alone."""
    own = dist.init_process_group(
        dist.HF_ZMQ_LOCAL_BACKEND, init_method=f"file://{store_path}", rank=rank, world_size=size
    )
    counts = [None] * size if rank == 0 else None
    own.gather(10 * rank, counts, dst=0)
    total = [sum(counts) if rank == 0 else None]
    own.broadcast(total, src=0)
    own.barrier()
    own.destroy()
    return total[0]


def main():
    dist.init_process_group(backend=dist.HF_ZMQ_BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()

    settings = [{"learning rate": 0.1, "layers": [64, 10]} if rank == 0 else None]
    dist.broadcast(settings, src=0)

    states = [None] * size if rank == 0 else None
    dist.gather({"rank": rank, "layers": settings[0]["layers"]}, states, dst=0)

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast(folder, src=0)
    total = count_files(os.path.join(folder[0], "store"), rank, size)
    dist.barrier()
    if rank == 0:
        print("the states are", states)
        print("the total is", total)
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


main()
