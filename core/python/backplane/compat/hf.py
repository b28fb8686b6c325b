# SPDX-License-Identifier: Apache-2.0
"""The names of hfai.distributed: barriers and objects over zmq, beside the other backends.

After ``init_process_group(HF_ZMQ_BACKEND)``, `gather` and `broadcast` exchange objects; over other backends, arrays.
Unlike the original, messages are msgpack instead of pickle, None can be broadcast, ranks that disagree are reported
instead of waiting for ever, and `timeout` holds.
"""

from __future__ import annotations

from typing import Any

from backplane._distributed import create_group as _create_group
from backplane._distributed import destroy_process_group as _destroy
from backplane._distributed import get_default_group, get_rank, get_world_size, is_initialized
from backplane._distributed import init_process_group as _init
from backplane._errors import InvalidError
from backplane._group import ProcessGroup
from backplane._store import Store
from backplane._types import Timeout
from backplane._work import Work

__all__ = [
    "HF_BARRIER_BACKEND",
    "HF_ZMQ_BACKEND",
    "HF_ZMQ_LOCAL_BACKEND",
    "ObjectGroup",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "gather",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
]

HF_ZMQ_BACKEND = "hf_zmq"  # becomes the default group
HF_ZMQ_LOCAL_BACKEND = "hf_zmq_local"  # returns a group and leaves the default group alone, for libraries
HF_BARRIER_BACKEND = HF_ZMQ_BACKEND  # the old name

_exchanges_objects = False  # whether the default group was made with HF_ZMQ_BACKEND


class ObjectGroup:
    """The group of `HF_ZMQ_LOCAL_BACKEND`. Objects are those of `backplane.ProcessGroup`."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def get_rank(self) -> int:
        """This process's rank."""
        return self.group.rank()

    def get_world_size(self) -> int:
        """The number of ranks."""
        return self.group.size()

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        self.group.barrier()

    def gather(self, obj: Any, gather_list: list[Any] | None = None, dst: int = 0) -> None:
        """Puts the object of rank r into `gather_list[r]` of rank `dst`, which has one item per rank."""
        size = self.group.size()
        if self.group.rank() == dst and (gather_list is None or len(gather_list) != size):
            raise InvalidError(f"`gather_list` must be a list of {size} on rank {dst}, the destination")
        gathered = self.group.gather_object(obj, dst)
        if gathered is not None and gather_list is not None:
            gather_list[:] = gathered

    def broadcast(self, objs: list[Any], src: int = 0) -> None:
        """Replaces the one item of `objs` by a copy of that of rank `src`, on that rank, too."""
        if len(objs) != 1:
            raise InvalidError(f"`objs` must be a list of one object, not of {len(objs)}")
        objs[0] = self.group.broadcast_object(objs[0], src)

    def destroy(self) -> None:
        """Ends the group."""
        self.group.destroy()


def init_process_group(
    backend: str,
    init_method: str | None = None,
    timeout: Timeout = 1800.0,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: object = None,
) -> ObjectGroup | None:
    """Creates the default group, as `backplane.init_process_group` does, or, for "hf_zmq_local", a group of its own.

    `backend`: one of the names above, or "hf_barrier", in any case, also with options of zmq
    ("hf_zmq?iface=eth0"); or any other backend. `pg_options` is not used.
    """
    global _exchanges_objects
    name, mark, options = backend.partition("?")
    is_local = name.lower() == HF_ZMQ_LOCAL_BACKEND
    is_hf = is_local or name.lower() in (HF_ZMQ_BACKEND, "hf_barrier")
    chosen = f"zmq{mark}{options}" if is_hf else backend
    make = _create_group if is_local else _init
    group = make(chosen, init_method, timeout, world_size, rank, store, group_name)
    if is_local:
        return ObjectGroup(group)
    _exchanges_objects = is_hf
    return None


def destroy_process_group() -> None:
    """Ends the default group."""
    _destroy()


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Blocks until all ranks have called it."""
    return (group or get_default_group()).barrier(async_op)


def gather(
    obj: Any,
    gather_list: list[Any] | None = None,
    dst: int = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Puts the object, or array, of rank r into `gather_list[r]` of rank `dst`. The other ranks pass no list."""
    chosen = group or get_default_group()
    if not _exchanges_objects:
        return chosen.gather(obj, gather_list, dst, async_op)
    _require_blocking(async_op)
    ObjectGroup(chosen).gather(obj, gather_list, dst)
    return None


def broadcast(objs: Any, src: int = 0, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Replaces the one item of the list `objs` by a copy of that of rank `src`; or broadcasts an array."""
    chosen = group or get_default_group()
    if not _exchanges_objects:
        return chosen.broadcast(objs, src, async_op)
    _require_blocking(async_op)
    ObjectGroup(chosen).broadcast(objs, src)
    return None


def _require_blocking(async_op: bool) -> None:
    if async_op:
        raise InvalidError("`async_op` must be False; objects are exchanged by calls that block")
