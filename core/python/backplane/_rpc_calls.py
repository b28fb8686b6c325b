# SPDX-License-Identifier: Apache-2.0
"""Calls of functions of other workers, and references to their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Generic, TypeVar, Union

from backplane import _rpc_functions as functions
from backplane._errors import check
from backplane._native import ffi, lib
from backplane._rpc_content import pack_arguments, unpack_result
from backplane._rpc_future import CallFuture, Future
from backplane._rpc_registry import rpc_limit
from backplane._rpc_worker import To, WorkerInfo, current, info, rank_of
from backplane._store import c_string
from backplane._types import Timeout

T = TypeVar("T")
Function = Union[str, Callable[..., Any]]


def _limit(timeout: Timeout | None) -> int:
    return int(lib.BP_INHERIT_TIMEOUT) if timeout is None else rpc_limit(timeout)


def rpc_async(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout | None = None,
) -> Future[Any]:
    """Calls a function of another worker, or of this one. Returns a Future of the result at once.

    `to`: name, rank or WorkerInfo. `func`: a registered function, or the name under which the callee registered it.
    `timeout`: in seconds; 0: none; None: that of the worker, 60 s unless its options say otherwise. Arrays are copied:
    the program may change them once this has returned.
    """
    worker = current()
    rank = rank_of(worker, to)
    content = pack_arguments(args or (), kwargs)
    call = ffi.new("py_call**")
    name = c_string("func", functions.name_of(func))
    check(lib.py_rpc_call(worker, rank, name, *content.arguments(), _limit(timeout), call))
    return CallFuture(worker, call[0], _unpack)


def rpc_sync(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout | None = None,
) -> Any:
    """The same, and waits for the result."""
    return rpc_async(to, func, args, kwargs, timeout).wait()


def remote(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout | None = None,
) -> RRef[Any]:
    """Calls a function, or creates an object of a registered class, on a worker that keeps and owns the result.

    Returns a reference at once; `RRef.to_here` raises the failure of the call. The value may be of any type.
    """
    worker = current()
    rank = rank_of(worker, to)
    content = pack_arguments(args or (), kwargs)
    ref = ffi.new("bp_rref**")
    name = c_string("func", functions.name_of(func))
    check(lib.py_rpc_remote(worker, rank, name, *content.arguments(), _limit(timeout), ref))
    return _reference(ref[0])


class RRef(Generic[T]):
    """A reference to a value that one worker owns. ``RRef(value)``: to a value of this worker, of any type.

    A reference may be an argument, a result or a part of them: the receiver gets one of its own. The value is destroyed
    when no worker has a reference.
    """

    _rref: Any

    def __init__(self, value: T) -> None:
        ref = ffi.new("bp_rref**")
        number = functions.keep(value)
        try:
            check(lib.py_rref_create(current(), number, ref))
        except BaseException:
            functions.drop(number)
            raise
        self._rref = ffi.gc(ref[0], lib.bp_rref_release)

    def _worker(self) -> Any:
        handle = ffi.new("bp_rpc**")
        check(lib.bp_rref_worker(self._rref, handle, lib.py_fresh_error()))
        return ffi.gc(handle[0], lib.bp_rpc_release)

    def owner(self) -> WorkerInfo:
        """The worker that owns the value."""
        return info(self._worker(), lib.bp_rref_owner(self._rref))

    def owner_name(self) -> str:
        """The name of that worker."""
        return self.owner().name

    def is_owner(self) -> bool:
        """True if this worker owns the value."""
        return bool(lib.bp_rref_owner(self._rref) == lib.bp_rpc_rank(self._worker()))

    def to_here_async(self, timeout: Timeout | None = None) -> Future[T]:
        """A Future of a copy of the value."""
        call = ffi.new("py_call**")
        check(lib.py_rref_fetch(self._rref, _limit(timeout), call))
        return CallFuture(self._worker(), call[0], _unpack)

    def to_here(self, timeout: Timeout | None = None) -> T:
        """Blocks until the value exists, and returns a copy. Raises the failure of the function that makes it."""
        return self.to_here_async(timeout).wait()

    def local_value(self, timeout: Timeout | None = None) -> T:
        """The value itself, on its owner; blocks until it exists. InvalidError on other workers."""
        value = ffi.new("uint64_t*")
        check(lib.py_rref_local(self._rref, _limit(timeout), value))
        return functions.kept(value[0])  # type: ignore[no-any-return]

    def rpc_sync(self, timeout: Timeout | None = None) -> Any:
        """A proxy: ``rref.rpc_sync().method(1)`` calls the method on the owner and returns its result.

        The value must be of a class that its owner has registered.
        """
        return _Proxy(self, rpc_sync, timeout)

    def rpc_async(self, timeout: Timeout | None = None) -> Any:
        """The same; the method returns a Future."""
        return _Proxy(self, rpc_async, timeout)

    def remote(self, timeout: Timeout | None = None) -> Any:
        """The same; the method returns an RRef to its result."""
        return _Proxy(self, remote, timeout)

    def __repr__(self) -> str:
        return f"<backplane.rpc.RRef: owned by rank {lib.bp_rref_owner(self._rref)}>"


class _Proxy:
    def __init__(self, ref: RRef[Any], call: Callable[..., Any], timeout: Timeout | None) -> None:
        self._parts = ref, call, timeout

    def __getattr__(self, method: str) -> Callable[..., Any]:
        ref, call, timeout = self._parts

        def run(*args: Any, **kwargs: Any) -> Any:
            return call(ref.owner(), "backplane.method", (ref, method, *args), kwargs, timeout)

        return run


def _reference(handle: Any) -> RRef[Any]:
    """Takes ownership of a handle of the C API."""
    ref: RRef[Any] = RRef.__new__(RRef)
    ref._rref = ffi.gc(handle, lib.bp_rref_release)
    return ref


def _unpack(payload: Any) -> Any:
    return unpack_result(payload, _reference)


functions._make_reference = _reference
