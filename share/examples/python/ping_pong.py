# SPDX-License-Identifier: Apache-2.0
"""Two ranks that this program starts send an array to each other and add 1 to it.

python3 ping_pong.py [backend]
"""

import multiprocessing
import os
import sys

import backplane as dist
import numpy


def play(rank):
    array = numpy.zeros(1)
    if rank == 0:
        array += 1
        dist.send(tensor=array, dst=1)
        print(f"rank 0 has sent {array[0]}", flush=True)
        dist.recv(tensor=array, src=1)
        print(f"rank 0 has received {array[0]}", flush=True)
    else:
        dist.recv(tensor=array, src=0)
        print(f"rank 1 has received {array[0]}", flush=True)
        array += 1
        dist.send(tensor=array, dst=0)
        print(f"rank 1 has sent {array[0]}", flush=True)


def start(rank, size, backend):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(backend, rank=rank, world_size=size)
    play(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    backend = sys.argv[1] if len(sys.argv) > 1 else "gloo"
    ranks = [multiprocessing.Process(target=start, args=(rank, 2, backend)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in ranks))
