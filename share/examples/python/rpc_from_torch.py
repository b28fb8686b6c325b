# SPDX-License-Identifier: Apache-2.0
"""A program of torch.distributed.rpc: workers fit a line, and keep its parameters on one of them.

backplane run -n 3 python3 rpc_from_torch.py

The lines that end in a comment are the only ones that differ under torch.
"""

import os
import threading

from backplane import rpc  # import torch.distributed.rpc as rpc


@rpc.register  # remove
class Parameters:
    def __init__(self, size):
        self.values = [0.0] * size
        self.updates = 0
        self.lock = threading.Lock()

    def add(self, gradient, rate):
        with self.lock:
            self.values = [value - rate * each for value, each in zip(self.values, gradient)]
            self.updates += 1
            return self.values

    def read(self):
        return self.values, self.updates


@rpc.register  # remove
def fit(parameters, points, steps):
    values, _ = parameters.rpc_sync().read()
    for _ in range(steps):
        errors = [(values[0] * x + values[1] - y, x) for x, y in points]
        gradient = [sum(error * x for error, x in errors), sum(error for error, _ in errors)]
        values = parameters.rpc_sync().add(gradient, 0.02)
    return rpc.get_worker_info().name


def train(size):
    parameters = rpc.remote("worker1", Parameters, args=(2,))
    points = [(x, 3 * x + 2) for x in range(-3, 4)]
    futures = [
        rpc.rpc_async(f"worker{to}", fit, args=(parameters, points), kwargs={"steps": 40}) for to in range(1, size)
    ]
    print("fitted by", *[future.wait() for future in futures])
    (slope, offset), updates = parameters.rpc_async().read().wait()
    print(f"{slope:.2f} x + {offset:.2f} after {updates} updates, kept by {parameters.owner().name}")


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
if rank == 0:
    train(size)
rpc.shutdown()
