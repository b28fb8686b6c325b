# SPDX-License-Identifier: Apache-2.0
"""Workers of Dask that form a group and add up their arrays. They meet through a store that the client serves.

python3 dask_workers.py [RANKS]
"""

import sys

import backplane
import numpy as np
from dask.distributed import Client, LocalCluster, wait

LIMIT = 300  # seconds for each step


def add_up(address, rank, world_size):
    """Runs on one worker, at the same time as on all others."""
    store = backplane.TCPStore(*address)
    with backplane.create_group(store=store, rank=rank, world_size=world_size, timeout=LIMIT) as group:
        array = np.full(1000, rank + 1.0)
        group.all_reduce(array)
    return array


def main(world_size):
    # One thread per worker: a task of the group occupies it until all ranks have come.
    options = {"threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=world_size, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(world_size, timeout=LIMIT)
        store = backplane.TCPStore("127.0.0.1", 0, is_master=True)  # this host's own address if others have workers
        workers = client.scheduler_info(n_workers=-1)["workers"]
        futures = [
            client.submit(add_up, (store.host_name, store.port), rank, world_size, workers=[worker], pure=False)
            for rank, worker in enumerate(workers)
        ]
        wait(futures, timeout=LIMIT)
        totals = client.gather(futures)
        store.wait_for_clients(timeout=LIMIT)
    assert all((total == world_size * (world_size + 1) / 2).all() for total in totals)
    print(f"{world_size} workers have the total {totals[0][0]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
