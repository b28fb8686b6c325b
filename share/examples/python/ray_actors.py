# SPDX-License-Identifier: Apache-2.0
"""Actors of Ray that form a group and add up their arrays. They meet through a named actor, which serves the store.

python3 ray_actors.py [RANKS]
"""

import sys

import backplane
import numpy as np
import ray

LIMIT = 300  # seconds for each step


@ray.remote(num_cpus=0)
class Meeting:
    """Serves the store through which the ranks find each other."""

    def __init__(self):
        self.store = backplane.TCPStore(ray.util.get_node_ip_address(), 0, is_master=True)

    def address(self):
        return self.store.host_name, self.store.port

    def wait_for_ranks(self):
        """Returns when all ranks have left."""
        self.store.wait_for_clients(timeout=LIMIT)


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank, world_size):
        meeting = ray.get_actor("meeting")
        store = backplane.TCPStore(*ray.get(meeting.address.remote(), timeout=LIMIT))
        self.group = backplane.create_group(store=store, rank=rank, world_size=world_size, timeout=LIMIT)

    def add_up(self, array):
        total = array.copy()  # arguments of Ray are read-only
        self.group.all_reduce(total)
        return total

    def leave(self):
        del self.group  # destroys the group, and leaves the store


def main(world_size):
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    meeting = Meeting.options(name="meeting").remote()
    workers = [Worker.remote(rank, world_size) for rank in range(world_size)]
    given = [np.full(1000, rank + 1.0) for rank in range(world_size)]
    totals = ray.get([each.add_up.remote(array) for each, array in zip(workers, given)], timeout=LIMIT)
    expected = sum(given)
    assert all((total == expected).all() for total in totals)
    ray.get([each.leave.remote() for each in workers], timeout=LIMIT)
    ray.get(meeting.wait_for_ranks.remote(), timeout=LIMIT)
    print(f"{world_size} actors have the total {totals[0][0]}")
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
