# SPDX-License-Identifier: Apache-2.0
"""The worker of this process: how it joins, what it knows of the others, and how it ends."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any, NamedTuple, Union

from backplane._errors import BackplaneError, InvalidError, Status, check
from backplane._native import ffi, lib
from backplane._objects import pack, take
from backplane._rpc_registry import (
    BackendOptions,
    BackendType,
    backend_registered,
    init_backend,
    require_options_of,
)
from backplane._store import Store, c_string
from backplane._types import Timeout, nanoseconds_or_inherited


class WorkerInfo(NamedTuple):
    """A worker."""

    name: str
    id: int  # its rank


To = Union[str, int, WorkerInfo]
_store_in_use: object = None  # a TCPStore that serves must outlive the worker


def init_rpc(
    name: str,
    backend: BackendType | str | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
    *,
    store: Store | None = None,
    init_method: str | None = None,
    group: str = "",
    timeout: Timeout | None = None,
) -> None:
    """Joins as the worker of this process. Blocks until all workers have joined.

    Args:
        name: of letters, digits and ``_ : -``, at most 127, unique among the workers.
        backend: such as "tensorpipe" or BackendType.PROCESS_GROUP. None: that of `rpc_backend_options`, else
            BACKPLANE_RPC_BACKEND, else tensorpipe if all workers are on one host that has it, else process_group.
        rank, world_size: left out: from the default group, the init method or the environment.
        rpc_backend_options: a result of `construct_rpc_backend_options`.
        store, init_method: where the workers meet, as in `init_process_group`.
        group: backend of the process group in which the workers meet.
        timeout: in seconds, of joining. None: 30 minutes.

    Raises:
        InvalidError: there is a worker already, or an argument is wrong.
        BackplaneError: this or another worker cannot join; the text gives its reason.
    """
    size = -1 if world_size is None else world_size
    chosen: BackendType | None = backend if isinstance(backend, BackendType) else None
    if isinstance(backend, str) and "?" not in backend and backend_registered(backend):
        chosen = BackendType[backend]
    if chosen is not None and chosen.value is not None:
        if store is None:
            raise InvalidError(f"`store` must be given for {chosen!r}, a backend of the program")
        init_backend(chosen, store, name, rank, size, rpc_backend_options)
        return
    if chosen is not None and rpc_backend_options is not None:
        require_options_of(chosen, rpc_backend_options)
    text = backend if isinstance(backend, str) else "" if chosen is None else chosen.name.lower()
    join(name, text, rank, size, rpc_backend_options, store, init_method, group, timeout)


def join(
    name: str,
    backend: str,
    rank: int,
    world_size: int,
    options: BackendOptions | None,
    store: Store | None,
    init_method: str | None,
    group: str,
    timeout: Timeout | None,
) -> None:
    global _store_in_use
    if options is not None and not isinstance(options, BackendOptions):
        raise TypeError(
            f"`rpc_backend_options` is a {type(options).__name__}; it must be made by construct_rpc_backend_options"
        )

    def optional(argument: str, value: str | None) -> Any:
        return ffi.NULL if not value else ffi.new("char[]", c_string(argument, value))

    handle = ffi.new("bp_rpc**")
    check(
        lib.py_rpc_init(
            c_string("name", name),
            optional("backend", backend),
            optional("init_method", init_method),
            optional("group", group),
            rank,
            world_size,
            ffi.NULL if store is None else store._handle,
            ffi.NULL if options is None else options._handle,
            nanoseconds_or_inherited(timeout),
            lib.BP_INHERIT_TIMEOUT,
            handle,
        )
    )
    lib.bp_rpc_release(handle[0])
    _store_in_use = store


def shutdown(graceful: bool = True, timeout: Timeout | None = None) -> list[str]:
    """Ends the worker. A second call has no effect.

    `graceful`: all workers call it; blocks until all calls, including nested ones, have finished, at most `timeout`
    seconds (None: 30 minutes). Otherwise calls in flight end with CancelledError. Returns one sentence for each value
    of this worker that others still referred to. TimedOutError names calls or functions that did not end; the worker
    has ended in that case as well. Must not be called inside a function that a peer has called.
    """
    worker = current_or_none()
    if worker is None:
        return []
    leaks = ffi.new("char**")
    check(lib.bp_rpc_shutdown(worker, graceful, nanoseconds_or_inherited(timeout), leaks, lib.py_fresh_error()))
    return _text(leaks).splitlines()


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Name and rank of a worker; of this one without a name. InvalidError for an unknown name lists the names."""
    worker = current()
    return info(worker, lib.bp_rpc_rank(worker) if worker_name is None else rank_of(worker, worker_name))


def get_worker_infos() -> list[WorkerInfo]:
    """All workers, in rank order."""
    worker = current()
    return [info(worker, rank) for rank in range(lib.bp_rpc_world_size(worker))]


def get_metrics() -> Any:
    """Counters of this worker, as parsed JSON; bp_rpc_metrics in rpc.h lists them."""
    text = ffi.new("char**")
    check(lib.bp_rpc_metrics(current(), text, lib.py_fresh_error()))
    return json.loads(_text(text))


def cancelled() -> bool:
    """In a function that a peer has called: True if the caller no longer waits. Long functions ask, and return."""
    return bool(lib.bp_rpc_cancelled())


def all_gather(obj: Any, timeout: Timeout | None = None) -> dict[str, Any]:
    """Returns each worker's object by the worker's name. All workers call it, in the same order. Blocks."""
    worker = current()
    packed = pack("obj", obj)
    out = ffi.new("bp_objects**")
    limit = nanoseconds_or_inherited(timeout)
    check(lib.bp_rpc_all_gather(worker, packed, len(packed), limit, out, lib.py_fresh_error()))
    return {info(worker, rank).name: each for rank, each in enumerate(take(out[0]))}


def current_or_none() -> Any:
    handle = ffi.new("bp_rpc**")
    if lib.bp_rpc_current(handle, ffi.NULL) != Status.OK:
        return None
    return ffi.gc(handle[0], lib.bp_rpc_release)


def current() -> Any:
    handle = ffi.new("bp_rpc**")
    check(lib.bp_rpc_current(handle, lib.py_fresh_error()))
    return ffi.gc(handle[0], lib.bp_rpc_release)


def _text(text: Any) -> str:
    if text[0] == ffi.NULL:
        return ""
    try:
        return bytes(ffi.string(text[0])).decode("utf-8", "replace")
    finally:
        lib.bp_free(text[0])


def info(worker: Any, rank: int) -> WorkerInfo:
    name = lib.bp_rpc_worker_name(worker, rank)
    if name == ffi.NULL:
        raise InvalidError(f"there is no worker of rank {rank}")
    return WorkerInfo(ffi.string(name).decode(), rank)


def rank_of(worker: Any, to: To) -> int:
    if isinstance(to, WorkerInfo):
        return to.id
    if isinstance(to, int):
        return to
    rank = ffi.new("int32_t*")
    check(lib.bp_rpc_find(worker, c_string("to", to), rank, lib.py_fresh_error()))
    return int(rank[0])


def _leave() -> None:
    """No function of Python may run once the interpreter ends. As for threads, it waits for those that do."""
    try:
        shutdown(graceful=False, timeout=1.0)
    except BackplaneError as error:
        print(f"backplane: {error}; this program waits for it", file=sys.stderr, flush=True)
    finally:
        lib.py_gate_close()


atexit.register(_leave)
os.register_at_fork(after_in_child=lib.py_gate_open)
