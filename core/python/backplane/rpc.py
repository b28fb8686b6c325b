# SPDX-License-Identifier: Apache-2.0
"""Remote procedure calls between workers, with the names of torch.distributed.rpc.

    from backplane import rpc

    @rpc.register
    def add(a, b):
        return a + b

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    total = rpc.rpc_sync("worker1", add, args=(1, 2))
    there = rpc.remote("worker1", add, args=(1, 2))  # the value stays on worker1
    rpc.shutdown()

Functions are registered by name and called by name; no code travels, and pickle is never used. Arguments and results
are of the types that msgpack carries, numpy arrays, which are sent without serialisation, and RRefs.

Failures raise subclasses of `BackplaneError`, whose text names worker, function and cause, and whose `peer_rank` is the
worker's rank. An exception of the callee arrives as InvalidError if it is a ValueError or a TypeError, with its own
status if it is a BackplaneError, else as InternalError; the text has its type, its message and its traceback.
"""

from backplane._rpc_calls import RRef, remote, rpc_async, rpc_sync
from backplane._rpc_functions import register, register_function
from backplane._rpc_future import Future, collect_all, wait_all
from backplane._rpc_registry import (
    BackendOptions,
    BackendType,
    BackendValue,
    backend_registered,
    construct_rpc_backend_options,
    init_backend,
    register_backend,
)
from backplane._rpc_worker import (
    WorkerInfo,
    all_gather,
    cancelled,
    get_metrics,
    get_worker_info,
    get_worker_infos,
    init_rpc,
    shutdown,
)

__all__ = [
    "BackendOptions",
    "BackendType",
    "BackendValue",
    "Future",
    "RRef",
    "WorkerInfo",
    "all_gather",
    "backend_registered",
    "cancelled",
    "collect_all",
    "construct_rpc_backend_options",
    "get_metrics",
    "get_worker_info",
    "get_worker_infos",
    "init_backend",
    "init_rpc",
    "register",
    "register_backend",
    "register_function",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "wait_all",
]
