# SPDX-License-Identifier: Apache-2.0
"""Futures: the results of asynchronous calls."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, Callable, Generic, TypeVar

from backplane._errors import CancelledError, Status, TimedOutError, check, last_error
from backplane._native import ffi, lib
from backplane._types import Timeout, nanoseconds

T = TypeVar("T")
S = TypeVar("S")
_NO_LIMIT: int = lib.BP_NO_TIMEOUT
_LOOK = 0.1  # s between looks for signals and deadlines


class Future(Generic[T]):
    """A value that does not exist yet. Programs make their own, and end them with `set_result` or `set_exception`.

    All methods may be called from any thread. ``await future`` waits in asyncio.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._has_ended = False
        self._value: Any = None
        self._failure: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        """True if there is a result or a failure. Does not block."""
        return self._has_ended

    def wait(self, timeout: Timeout | None = None) -> T:
        """Blocks until the future has ended, and returns its value or raises its failure.

        Raises TimedOutError if it has not ended after `timeout`, in seconds; what makes the value continues. None:
        without a limit of its own.
        """
        limit = _NO_LIMIT if timeout is None else nanoseconds(timeout)
        if not self._wait(limit):
            raise TimedOutError(f"the future has no value after {timeout} s; what makes it continues")
        return self.value()

    def value(self) -> T:
        """The value of a future that has ended, or its failure, which it raises. TimedOutError if it has not ended."""
        if not self.done():
            raise TimedOutError("the future has no value yet; call wait")
        self._finish()
        if self._failure is not None:
            raise self._failure
        return self._value  # type: ignore[no-any-return]

    def set_result(self, value: T) -> None:
        """Ends the future with a value. Has no effect on a future that has ended."""
        self._end(value, None)

    def set_exception(self, failure: BaseException) -> None:
        """Ends the future with a failure. Has no effect on a future that has ended."""
        self._end(None, failure)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Calls `callback(self)` once the future has ended: at once if it has, else on the thread that ends it.

        That of a call is a thread of the worker. An exception of the callback is printed and has no other effect.
        """
        with self._changed:
            if not self._is_settled():
                self._callbacks.append(callback)
                return
        _run(callback, self)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """A future of what `callback(self)` returns or raises once this one has ended."""
        following: Future[S] = Future()

        def follow(ended: Future[T]) -> None:
            try:
                following.set_result(callback(ended))
            except BaseException as error:
                following.set_exception(error)

        self.add_done_callback(follow)
        return following

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self.add_done_callback(lambda _: loop.call_soon_threadsafe(_set_ended, ended))
        yield from ended
        return self.value()

    def _is_settled(self) -> bool:
        """With the lock: whether callbacks are called at once. If not, `_end` calls them."""
        return self._has_ended

    def _finish(self) -> None:
        pass

    def _wait(self, limit: int) -> bool:
        """`limit`: in nanoseconds; negative: none."""
        if self._has_ended:
            return True
        end = math.inf if limit < 0 else time.monotonic() + limit / 1e9
        lib.bp_rpc_wait_begin()
        try:
            with self._changed:
                while not self._has_ended:
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    self._changed.wait(min(left, _LOOK))
        finally:
            lib.bp_rpc_wait_end()
        return True

    def _end(self, value: Any, failure: BaseException | None) -> None:
        if self._store(value, failure):
            self._call_back()

    def _store(self, value: Any, failure: BaseException | None) -> bool:
        with self._changed:
            if self._has_ended:
                return False
            self._value, self._failure = value, failure
            self._has_ended = True
            self._changed.notify_all()
            return True

    def _call_back(self) -> None:
        with self._changed:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run(callback, self)


def _set_ended(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _run(callback: Callable[[Any], object], future: Any) -> None:
    try:
        callback(future)
    except BaseException:
        import traceback

        traceback.print_exc()


# The calls in flight whose end a callback waits for.
_notified: dict[int, CallFuture[Any]] = {}
_numbers = itertools.count(1)


class CallFuture(Future[T]):
    """The result of a call. A call that nobody waits for continues."""

    def __init__(self, worker: Any, call: Any, unpack: Callable[[Any], T]) -> None:
        """`worker`: the handle of the worker that calls. `call`: a py_call, which this object owns."""
        super().__init__()
        self._worker = worker
        self._call = ffi.gc(call, lib.py_call_release)
        self._unpack = unpack
        self._taking = threading.Lock()

    def done(self) -> bool:
        return self._has_ended or lib.py_call_status(self._call) != Status.AGAIN

    def cancel(self) -> None:
        """Ends the call with CancelledError and informs the callee. Has no effect on a call that has ended."""
        lib.py_call_cancel(self._call, self._worker)

    def set_result(self, value: T) -> None:
        raise CancelledError("the future of a call ends with the call; make a Future for a value of the program")

    def set_exception(self, failure: BaseException) -> None:
        self.set_result(failure)  # type: ignore[arg-type]

    def _is_settled(self) -> bool:
        if self._has_ended:
            return True
        if self._callbacks:
            return False
        number = next(_numbers)
        _notified[number] = self
        if lib.py_call_notify(self._call, self._worker, number):
            return False
        del _notified[number]
        return True

    def _wait(self, limit: int) -> bool:
        if self._has_ended:
            return True
        status = lib.py_call_wait(self._call, limit)
        if status == Status.CANCELLED:
            self.cancel()
        elif status == Status.AGAIN:
            check(Status.OK)
            return False
        check(status)
        return True

    def _finish(self) -> None:
        if self._has_ended:
            return
        with self._taking:
            if self._has_ended:
                return
            try:
                status = lib.py_call_status(self._call)
                if status != Status.OK:
                    raise last_error(status)
                payload = ffi.gc(lib.py_call_take(self._call), lib.bp_rpc_payload_release)
                value = self._unpack(payload)
            except BaseException as error:
                self._store(None, error)
            else:
                self._store(value, None)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def py_rpc_notify(number: int) -> None:
    future = _notified.pop(number)
    future._finish()
    future._call_back()


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """Waits for all futures, and returns their values. Raises the first failure, in the order of the list."""
    return [future.wait() for future in futures]


def collect_all(futures: Sequence[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future of the list itself that ends when all of them have."""
    collected: Future[list[Future[Any]]] = Future()
    left = len(futures)
    lock = threading.Lock()

    def count(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            collected.set_result(list(futures))

    if not futures:
        collected.set_result([])
    for future in futures:
        future.add_done_callback(count)
    return collected
