# SPDX-License-Identifier: Apache-2.0
"""The functions of torch.distributed: one default group per process, and operations on it or on a group passed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from backplane._buffers import Array
from backplane._errors import InvalidError, check
from backplane._group import ProcessGroup, _after_destroy
from backplane._native import ffi, lib
from backplane._store import Store, c_string
from backplane._types import ReduceOp, Timeout, nanoseconds_or_inherited
from backplane._work import Work

_default: ProcessGroup | None = None


class group:
    """``group.WORLD`` is the default group, wherever a group is a parameter."""

    WORLD = None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
) -> ProcessGroup:
    """Creates the default group of this process, and returns it. Blocks until all ranks have called it.

    Args:
        backend: such as "gloo", "gloo?iface=eth0&threads=2" or "auto". None: BACKPLANE_BACKEND, else "auto".
        init_method: "env://" (the default), "tcp://host:port" or "file:///path".
        timeout: in seconds, of this call and, by default, of each operation. None: 30 minutes.
        world_size, rank: -1: from the init method or the environment, which `backplane run`, mpirun, srun and torchrun
            set.
        store: instead of an init method; requires `rank` and `world_size`.
        group_name: appears in messages.

    Raises:
        InvalidError: there is a default group already, or an argument is wrong.
        BackplaneError: this or another rank cannot start; the text gives its reason.
    """
    global _default
    had_default = is_initialized()
    group = _make(True, backend, init_method, timeout, world_size, rank, store, group_name)
    if not had_default and is_initialized():  # groups of some backends are never the default
        _default = group
    return group


def create_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
) -> ProcessGroup:
    """Creates a group as `init_process_group` does, and leaves the default group alone. For libraries."""
    return _make(False, backend, init_method, timeout, world_size, rank, store, group_name)


def join_group(
    store: Store,
    backend: str | None = None,
    timeout: Timeout | None = None,
    operation_timeout: Timeout | None = None,
) -> ProcessGroup:
    """Joins a running group as a newcomer, once its members call `ProcessGroup.grow` with the same store.

    Args:
        store: the key-value space in which members and newcomers meet. It must outlive each of these processes.
        backend: as in `init_process_group`; it must select what the members selected.
        timeout: in seconds, of this call. None: that of operations.
        operation_timeout: in seconds, the default of the group's operations on this rank. None: 30 minutes.

    Raises:
        TimedOutError: no group took this process in time. The request is withdrawn.
        InvalidError: the members refused it, since it selects another backend or other options.
    """
    handle = ffi.new("bp_group**")
    text = ffi.NULL if not backend else ffi.new("char[]", c_string("backend", backend))
    limits = nanoseconds_or_inherited(timeout), nanoseconds_or_inherited(operation_timeout)
    check(lib.py_group_join(text, -1, store._handle, *limits, handle))
    group = ProcessGroup(handle[0])
    group._store = store
    return group


def _make(
    is_default: bool,
    backend: str | None,
    init_method: str | None,
    timeout: Timeout | None,
    world_size: int,
    rank: int,
    store: Store | None,
    group_name: str,
) -> ProcessGroup:
    def text(name: str, value: str | None) -> Any:
        return ffi.NULL if not value else ffi.new("char[]", c_string(name, value))

    handle = ffi.new("bp_group**")
    texts = text("backend", backend), text("init_method", init_method), text("group_name", group_name)
    stored = ffi.NULL if store is None else store._handle
    limit = nanoseconds_or_inherited(timeout)
    check(lib.py_group_make(is_default, *texts, rank, world_size, -1, stored, limit, handle))
    group = ProcessGroup(handle[0])
    group._store = store  # a TCPStore that serves must outlive the group
    return group


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Ends the group; None: the default group and all groups made from it. InvalidError if there is none."""
    (get_default_group() if group is None else group).destroy()


def _forget_ended() -> None:
    """Forgets a default group that has ended, or that is that of the parent process."""
    global _default
    if not lib.bp_is_initialized():
        _default = None


_after_destroy.append(_forget_ended)
os.register_at_fork(after_in_child=_forget_ended)


def get_default_group() -> ProcessGroup:
    """The default group. InvalidError if there is none."""
    global _default
    if _default is None:
        handle = ffi.new("bp_group**")
        check(lib.bp_default_group(handle, lib.py_fresh_error()))
        _default = ProcessGroup(handle[0])
    return _default


def is_available() -> bool:
    """True, as in torch.distributed."""
    return True


def is_initialized() -> bool:
    """True if this process has a default group."""
    return bool(lib.bp_is_initialized())


def _of(group: ProcessGroup | None) -> ProcessGroup:
    if group is not None:
        return group
    return _default if _default is not None else get_default_group()


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in the group; -1 if it is not a member."""
    return _of(group).rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """The number of ranks of the group."""
    return _of(group).size()


def get_backend(group: ProcessGroup | None = None) -> str:
    """The id of the group's backend, such as "shm"."""
    return _of(group).backend


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The rank in the job's first group of the rank `group_rank` of `group`."""
    return group.global_rank(group_rank)


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """The ranks, in the job's first group, of the group's members, in the order of their ranks in the group."""
    chosen = _of(group)
    return [chosen.global_rank(rank) for rank in range(chosen.size())]


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in `group` of the rank `global_rank` of the job's first group. InvalidError if it is not a member."""
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise InvalidError(f"global rank {global_rank} is not in group {group.name!r}, whose members are {ranks}")
    return ranks.index(global_rank)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout | None = None,
    backend: str | None = None,
    *,
    use_local_synchronization: bool = False,
    group_name: str = "",
) -> ProcessGroup:
    """Creates a group of some ranks of the default group; None: of all. See `ProcessGroup.new_group`.

    All ranks of the default group call it, in the same order, with the same list; with `use_local_synchronization`,
    only the members of the new group do. `backend`: that of the new group; None: that of the default group.
    """
    world = _of(None)
    chosen = range(world.size()) if ranks is None else ranks
    made = world.new_group(list(chosen), group_name, timeout, use_local_synchronization)
    if backend is None or made.rank() < 0:
        return made
    group = made.with_backend(backend, timeout)
    group._parent = made  # whose end would end it
    return group


def barrier(
    group: ProcessGroup | None = None, async_op: bool = False, *, timeout: Timeout | None = None
) -> Work | None:
    """See `ProcessGroup.barrier`."""
    return _of(group).barrier(async_op, timeout)


def broadcast(tensor: Array, src: int, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """See `ProcessGroup.broadcast`."""
    return _of(group).broadcast(tensor, src, async_op)


def all_reduce(
    tensor: Array, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.all_reduce`."""
    chosen = group if group is not None else _default or _of(None)  # _of without its call, as all_reduce is fast
    return chosen.all_reduce(tensor, op, async_op)


def reduce(
    tensor: Array, dst: int, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.reduce`."""
    return _of(group).reduce(tensor, dst, op, async_op)


def scan(
    tensor: Array, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.scan`."""
    return _of(group).scan(tensor, op, async_op)


def exscan(
    tensor: Array, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.exscan`."""
    return _of(group).exscan(tensor, op, async_op)


def all_gather(
    tensor_list: Sequence[Array], tensor: Array, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.all_gather`."""
    return _of(group).all_gather(tensor_list, tensor, async_op)


def all_gather_into_tensor(
    output_tensor: Array, input_tensor: Array, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See `ProcessGroup.all_gather_into_tensor`."""
    return _of(group).all_gather_into_tensor(output_tensor, input_tensor, async_op)


def gather(
    tensor: Array,
    gather_list: Sequence[Array] | None = None,
    dst: int = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.gather`."""
    return _of(group).gather(tensor, gather_list, dst, async_op)


def scatter(
    tensor: Array,
    scatter_list: Sequence[Array] | None = None,
    src: int = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.scatter`."""
    return _of(group).scatter(tensor, scatter_list, src, async_op)


def reduce_scatter(
    output: Array,
    input_list: Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.reduce_scatter`."""
    return _of(group).reduce_scatter(output, input_list, op, async_op)


def reduce_scatter_tensor(
    output: Array,
    input: Array,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.reduce_scatter_tensor`."""
    return _of(group).reduce_scatter_tensor(output, input, op, async_op)


def all_to_all(
    output_tensor_list: Sequence[Array],
    input_tensor_list: Sequence[Array],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.all_to_all`."""
    return _of(group).all_to_all(output_tensor_list, input_tensor_list, async_op)


def all_to_all_single(
    output: Array,
    input: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See `ProcessGroup.all_to_all_single`."""
    return _of(group).all_to_all_single(output, input, output_split_sizes, input_split_sizes, async_op)


def send(tensor: Array, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """See `ProcessGroup.send`."""
    _of(group).send(tensor, dst, tag)


def recv(tensor: Array, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """See `ProcessGroup.recv`. Returns the sender's rank."""
    return _of(group).recv(tensor, src, tag).source


def isend(tensor: Array, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """See `ProcessGroup.isend`."""
    return _of(group).isend(tensor, dst, tag)


def irecv(tensor: Array, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """See `ProcessGroup.irecv`."""
    return _of(group).irecv(tensor, src, tag)


def broadcast_object_list(object_list: list[Any], src: int = 0, group: ProcessGroup | None = None) -> None:
    """Replaces the objects of `object_list` by those of rank `src`. Lists of one length; see `ObjectOperations`."""
    received = _of(group).broadcast_object(object_list, src)
    _require_length("object_list", object_list, len(received))
    object_list[:] = received


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Puts the object of rank r into `object_list[r]`. The list has one item per rank."""
    chosen = _of(group)
    _require_length("object_list", object_list, chosen.size())
    object_list[:] = chosen.all_gather_object(obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int = 0,
    group: ProcessGroup | None = None,
) -> None:
    """Puts the object of rank r into `object_gather_list[r]` of rank `dst`. The other ranks pass no list."""
    chosen = _of(group)
    if chosen.rank() == dst:
        _require_length("object_gather_list", object_gather_list, chosen.size())
    gathered = chosen.gather_object(obj, dst)
    if gathered is not None and object_gather_list is not None:
        object_gather_list[:] = gathered


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int = 0,
    group: ProcessGroup | None = None,
) -> None:
    """Puts `scatter_object_input_list[r]` of rank `src` into `scatter_object_output_list[0]` of rank r."""
    _require_length("scatter_object_output_list", scatter_object_output_list, 1, at_least=True)
    scatter_object_output_list[0] = _of(group).scatter_object(scatter_object_input_list, src)


def send_object(obj: Any, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """See `ProcessGroup.send_object`."""
    _of(group).send_object(obj, dst, tag)


def recv_object(src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> Any:
    """See `ProcessGroup.recv_object`. Returns the object."""
    return _of(group).recv_object(src, tag)[0]


def _require_length(name: str, items: list[Any] | None, length: int, at_least: bool = False) -> None:
    size = -1 if items is None else len(items)
    if size != length and not (at_least and size > length):
        found = "None" if size < 0 else f"a list of {size}"
        raise InvalidError(f"`{name}` is {found}; it must be a list of {length}")
