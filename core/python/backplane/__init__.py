# SPDX-License-Identifier: Apache-2.0
"""Backplane: collectives and messages between processes, over communication backends that are plugins.

Names and semantics are those of torch.distributed, on numpy arrays and all other objects with the buffer protocol or
DLPack::

    import backplane, numpy

    backplane.init_process_group()
    total = numpy.array([backplane.get_rank()])
    backplane.all_reduce(total)

``backplane run -n 4 python3 program.py`` starts four ranks of a program.

Threads: all functions may be called from any thread, and release the GIL while they block. Signals: Ctrl-C ends a
blocked call of the main thread with KeyboardInterrupt; an interrupted collective breaks its group. Processes: a child
made by fork cannot use its parent's groups, and can make its own; with multiprocessing, prefer the start method spawn.
"""

from backplane._batch import (
    P2POp,
    batch_isend_irecv,
)
from backplane._distributed import (
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    create_group,
    destroy_process_group,
    exscan,
    gather,
    gather_object,
    get_backend,
    get_default_group,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    irecv,
    is_available,
    is_initialized,
    isend,
    join_group,
    new_group,
    recv,
    recv_object,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scan,
    scatter,
    scatter_object_list,
    send,
    send_object,
)
from backplane._errors import (
    BackplaneError,
    CancelledError,
    InternalError,
    InvalidError,
    PeerLostError,
    ResourceError,
    Status,
    TimedOutError,
    UnsupportedError,
)
from backplane._group import (
    ProcessGroup,
)
from backplane._group_messages import (
    Message,
)
from backplane._launch import (
    launch,
    launch_program,
)
from backplane._memory import (
    contiguous,
    empty,
)
from backplane._native import ffi as _ffi
from backplane._native import lib as _lib
from backplane._store import (
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)
from backplane._types import (
    ANY_SOURCE,
    ANY_TAG,
    Received,
    ReduceOp,
)
from backplane._work import (
    Work,
    wait_any,
)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BackplaneError",
    "CancelledError",
    "FileStore",
    "InternalError",
    "InvalidError",
    "Message",
    "P2POp",
    "PeerLostError",
    "PrefixStore",
    "ProcessGroup",
    "Received",
    "ReduceOp",
    "ResourceError",
    "Status",
    "Store",
    "TCPStore",
    "TimedOutError",
    "UnsupportedError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "contiguous",
    "create_group",
    "destroy_process_group",
    "empty",
    "exscan",
    "gather",
    "gather_object",
    "get_backend",
    "get_default_group",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "join_group",
    "launch",
    "launch_program",
    "new_group",
    "recv",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scan",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object",
    "wait_any",
]

_version: bytes = _ffi.string(_lib.bp_version()) + _ffi.string(_lib.py_prerelease())
__version__ = _version.decode()

for _public in (BackplaneError, *BackplaneError.__subclasses__(), Status, ProcessGroup, Store, TCPStore, FileStore):
    _public.__module__ = __name__
for _public in (Message, P2POp, PrefixStore, Received, ReduceOp, Work):
    _public.__module__ = __name__
