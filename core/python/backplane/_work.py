# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import datetime
import sys
from collections.abc import Generator, Sequence
from typing import Any, Callable

from backplane._errors import BackplaneError, InvalidError, Status, TimedOutError, check, last_error
from backplane._native import ffi, lib
from backplane._types import Received, Timeout, nanoseconds_or_inherited

# Operations whose Work was dropped: the request, and what must live until the operation has ended. Lives forever: the
# exit handler of the library ends operations after the interpreter has freed its objects.
_dropped: collections.deque[tuple[Any, Any]] = collections.deque()
_keep_forever: Callable[[Any], None] = ctypes.pythonapi.Py_IncRef
ctypes.pythonapi.Py_IncRef.argtypes = [ctypes.py_object]
ctypes.pythonapi.Py_IncRef.restype = None
_keep_forever(_dropped)
_MOST_EXAMINED = 16


class Work:
    """An operation in flight.

    Its arrays must not be touched until it has ended: until `wait` has returned or raised, or `is_completed` is True.
    A Work may be dropped: the operation continues, keeps its arrays alive, and ends at its deadline at the latest, or
    fails when the group or the process ends.
    ``await work`` waits in asyncio without blocking the event loop, and returns the Work. An await that is cancelled,
    as by asyncio.wait_for, leaves the operation in flight. All methods may be called from any thread.
    """

    __slots__ = ("_kept", "_slot")

    def __init__(self, *kept: object) -> None:
        """Prepares an operation that is then submitted into `_slot`, so that no exception can lose its request."""
        release_ended()
        self._slot = ffi.new("bp_request**")
        self._kept = kept

    @property
    def _request(self) -> Any:
        return self._slot[0]

    def wait(self, timeout: Timeout | None = None) -> bool:
        """Blocks until the operation has ended, and returns True.

        Raises the failure of the operation, each time the same. Raises TimedOutError if the operation is still in
        flight after `timeout`, in seconds; it then continues. None: waits until the operation's own deadline.
        """
        status = lib.bp_request_wait(self._request, nanoseconds_or_inherited(timeout), lib.py_fresh_error())
        if status == Status.AGAIN:
            check(Status.OK)
            seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
            raise TimedOutError(f"the operation is still in flight after {seconds} s; it continues")
        check(status)
        return True

    def is_completed(self) -> bool:
        """True if the operation has ended, also by a failure. Does not block."""
        return not _is_in_flight(self._slot)

    def is_success(self) -> bool:
        """True if the operation has ended without a failure."""
        return bool(lib.bp_request_test(self._request, ffi.NULL) == Status.OK)

    def exception(self) -> BackplaneError | None:
        """The failure of an operation that has ended; None if it succeeded or is in flight."""
        status = lib.bp_request_test(self._request, lib.py_fresh_error())
        return None if status in (Status.OK, Status.AGAIN) else last_error(status)

    def cancel(self) -> None:
        """Asks the operation to end with CancelledError. A cancelled collective breaks its group. Does not block."""
        lib.bp_request_cancel(self._request)

    def received(self) -> Received:
        """Source, tag and size of the message that a completed irecv got. Blocks until the operation has ended."""
        self.wait()
        result = ffi.new("bp_result*", {"struct_size": ffi.sizeof("bp_result")})
        lib.bp_request_result(self._request, result)
        return Received(result.source, result.tag, result.bytes)

    def source_rank(self) -> int:
        """The rank that sent the message of a completed irecv; -1 for other operations."""
        return self.received().source

    def __await__(self) -> Generator[Any, None, Work]:
        if not self.is_completed():
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()
            waiter = lib.py_waiter_create(self._request)
            if waiter == ffi.NULL:
                raise last_error(lib.py_error().status)
            descriptor = lib.py_waiter_descriptor(waiter)
            try:
                loop.add_reader(descriptor, _set_ended, ended)
                yield from ended
            finally:
                loop.remove_reader(descriptor)
                lib.py_waiter_release(waiter)
        self.wait()
        return self

    def __del__(self) -> None:
        if not hasattr(self, "_kept") or self._request == ffi.NULL:
            return  # never submitted
        _dropped.append((self._slot, self._kept))
        if not sys.is_finalizing():
            release_ended()


def wait_any(works: Sequence[Work], timeout: Timeout | None = None) -> int:
    """Blocks until at least one of the operations has ended, and returns the lowest index of those that have.

    A failure of the operation is raised by ``works[index].wait()``. Raises TimedOutError if none has ended after
    `timeout`, in seconds; they continue.
    """
    if not works:
        raise InvalidError("`works` is empty; there is no operation to wait for")
    index = ffi.new("uint64_t*", len(works))
    requests = [work._request for work in works]
    limit = nanoseconds_or_inherited(timeout)
    status = lib.bp_request_wait_any(requests, len(works), limit, index, lib.py_fresh_error())
    if index[0] < len(works):
        check(Status.OK)
    elif status == Status.AGAIN:
        check(Status.OK)
        raise TimedOutError(f"none of the {len(works)} operations has ended after {timeout} s; they continue")
    else:
        check(status)
    return int(index[0])


def _is_in_flight(slot: Any) -> bool:
    return bool(lib.bp_request_test(slot[0], ffi.NULL) == Status.AGAIN)


def _set_ended(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def release_ended(most: int = _MOST_EXAMINED) -> None:
    """Releases dropped operations that have ended, and their arrays.

    Examines `most`, in turn: each operation calls it, and thousands may be in flight.
    """
    for _ in range(min(len(_dropped), most)):
        try:
            slot, kept = _dropped.popleft()
        except IndexError:  # another thread was faster
            return
        if _is_in_flight(slot):
            _dropped.append((slot, kept))
        else:
            lib.bp_request_release(slot[0])
