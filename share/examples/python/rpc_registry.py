# SPDX-License-Identifier: Apache-2.0
"""Workers that join through the registry of RPC backends, with options, and call each other.

backplane run -n 2 python3 rpc_registry.py FILE      where FILE is a path on which no file exists
"""

import os
import sys

from backplane import FileStore, rpc


@rpc.register
def describe(thing):
    return f"{rpc.get_worker_info().name} got {thing}"


def construct_options(rpc_timeout, init_method, num_send_recv_threads=4):
    return rpc.construct_rpc_backend_options(
        rpc.BackendType.PROCESS_GROUP, rpc_timeout, init_method, num_send_recv_threads=num_send_recv_threads
    )


def init_talkative(store, name, rank, world_size, rpc_backend_options):
    print(f"{name} joins with {rpc_backend_options['num_send_recv_threads']} threads")
    return rpc.init_backend(
        rpc.BackendType.PROCESS_GROUP,
        store=store,
        name=name,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=rpc_backend_options,
    )


assert not rpc.backend_registered("TALKATIVE")
talkative = rpc.register_backend("TALKATIVE", construct_options, init_talkative)
assert rpc.BackendType.TALKATIVE is talkative
options = rpc.construct_rpc_backend_options(talkative, rpc_timeout=30, num_send_recv_threads=2)

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", talkative, rank, size, options, store=FileStore(sys.argv[1]))
print(rpc.wait_all([rpc.rpc_async(to, describe, args=("a call",)) for to in range(size)]))
rpc.shutdown()
