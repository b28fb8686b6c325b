# SPDX-License-Identifier: Apache-2.0
"""Operations in flight, as torch sees them."""

from __future__ import annotations

import atexit
import collections
import datetime
import os
import select
import sys
import threading
import traceback
from typing import Any, Callable

import torch
from torch._C import _distributed_c10d

from backplane._errors import BackplaneError, last_error
from backplane._native import ffi, lib
from backplane._work import Work
from backplane.torch._tensors import Tensors

_Base: Any = _distributed_c10d.Work

_STOP_LIMIT = 10.0  # s; for callbacks that still run when the program ends

# Versions of torch below 2.8 forget the Python side of a Work that only C++ holds, whose `wait` then blocks for ever.
# Those that C++ has not waited for are kept here. Of those that have ended, except the newest, only the outcome is.
FORGETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)
_MOST_WHOLE = 256
_MOST_EXAMINED = 2  # for each that is added, so that the older ones are examined again and again
_REFERENCES = 2  # to an object that only a local variable and the argument of getrefcount refer to
_whole: collections.OrderedDict[int, TorchWork] = collections.OrderedDict()  # the least recently examined first
_outcomes: dict[int, TorchWork] = {}


class TorchWork(_Base):  # type: ignore[misc]
    """One or several operations on tensors, which end together.

    If it `is_waited_for`, the operations are performed, and have ended when the Work is returned.
    """

    def __init__(
        self, tensors: Tensors, results: list[torch.Tensor], is_waited_for: bool, is_for_cpp: bool = False
    ) -> None:
        super().__init__()
        self._is_waited_for = is_waited_for
        self._parts: list[Work] = []
        self._tensors = tensors
        self._results = results
        self._lock = threading.Lock()
        self._future: Any = None
        self._error: BackplaneError | None = None  # of an operation of which only the outcome is kept
        if is_for_cpp and FORGETS:
            _keep(self)

    def slot(self) -> Any:
        """Where the next operation is submitted; NULL: it is performed."""
        if self._is_waited_for:
            return ffi.NULL
        part = Work(self._tensors)
        self._parts.append(part)
        return part._slot

    def submitted(self) -> TorchWork:
        if self._is_waited_for:
            self._finish()
        elif self._tensors.has_copies:
            self._watch(self._finish_quietly)  # results must arrive also if nobody waits
        return self

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Blocks until the operation has ended; raises its failure. `timeout` of 0 or less: the operation's own."""
        _drop(self)
        if self._error is not None:
            raise self._error
        limit = timeout if timeout is not None and timeout > datetime.timedelta(0) else None
        for part in self._parts:
            part.wait(limit)
        self._finish()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(part.is_completed() for part in self._parts):
            return False
        self._finish_quietly()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BackplaneError | None:
        """The failure of an operation that has ended, else None."""
        if self._error is not None:
            return self._error
        return next((error for error in (part.exception() for part in self._parts) if error is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors that were written."""
        return self._results

    def source_rank(self) -> int:
        """The group's rank that sent what a receive got."""
        return self._parts[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future that has the result once the operation has ended. A failure is a RuntimeError with its text.

        C++ waits for it, too, as in DistributedDataParallel. It takes an exception that is set for a result, and
        crashes; one that a callback raises is an error for both sides.
        """
        with self._lock:
            is_new = self._future is None
            if is_new:
                ended: torch.futures.Future[None] = torch.futures.Future()
                self._future = ended.then(self._outcome)
        if is_new:
            self._watch(lambda: ended.set_result(None))
        _drop(self)
        return self._future

    def _finish(self) -> None:
        if self._tensors.has_copies:
            with self._lock:
                self._tensors.copy_back()

    def _finish_quietly(self) -> None:
        if self.exception() is None:
            self._finish()

    def _keep_outcome(self) -> None:
        """Releases the tensors and the requests of an operation that has ended. A future of it has no tensors."""
        self._finish_quietly()
        self._error = self.exception()
        self._parts, self._tensors, self._results = [], Tensors(), []

    def _outcome(self, _: object) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        self._finish()
        return self._results

    def _watch(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when all parts have ended, at once or on the thread of the watcher."""
        for part in self._parts:
            if not part.is_completed():
                _watcher().add(part, lambda: self._watch(ended))
                return
        ended()


class _Ended(TorchWork):
    """The result of operations that have ended, and whose caller only waits."""

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True


ENDED = _Ended(Tensors(), [], True)


def _keep(work: TorchWork) -> None:
    _whole[id(work)] = work
    for _ in range(min(_MOST_EXAMINED, len(_whole) - _MOST_WHOLE)):
        try:
            key, oldest = _whole.popitem(last=False)
        except KeyError:  # other threads were faster
            return
        # Python code that holds the Work may still ask for its results.
        if oldest.is_completed() and sys.getrefcount(oldest) <= _REFERENCES:
            oldest._keep_outcome()
            _outcomes[key] = oldest
        else:
            _whole[key] = oldest


def _drop(work: TorchWork) -> None:
    if FORGETS:
        _whole.pop(id(work), None)
        _outcomes.pop(id(work), None)


class _Watcher:
    """A thread that waits for the end of operations that have a future."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, tuple[Any, Callable[[], None]]] = {}
        self._stopped, self._stopping = os.pipe()
        self._epoll.register(self._stopped, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="backplane-futures", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _stop(self) -> None:
        """Ends the thread before the interpreter ends, which would abort the process if the thread were in torch."""
        global _the_watcher
        if self is not _the_watcher:
            return  # in a forked child: the thread is the parent's
        os.write(self._stopping, b"0")
        self._thread.join(_STOP_LIMIT)
        _the_watcher = None  # other handlers of the exit may still need one

    def add(self, part: Work, ended: Callable[[], None]) -> None:
        waiter = lib.py_waiter_create(part._request)
        if waiter == ffi.NULL:
            raise last_error(lib.py_error().status)
        descriptor = lib.py_waiter_descriptor(waiter)
        self._callbacks[descriptor] = waiter, ended
        self._epoll.register(descriptor, select.EPOLLIN)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._stopped:
                    return
                self._epoll.unregister(descriptor)
                waiter, ended = self._callbacks.pop(descriptor)
                lib.py_waiter_release(waiter)
                try:
                    ended()
                except Exception:  # of one operation; other futures still need this thread
                    traceback.print_exc()


_watcher_lock = threading.Lock()
_the_watcher: _Watcher | None = None


def _watcher() -> _Watcher:
    global _the_watcher
    with _watcher_lock:
        if _the_watcher is None:
            _the_watcher = _Watcher()
        return _the_watcher


def _forget() -> None:
    global _the_watcher, _watcher_lock
    _the_watcher, _watcher_lock = None, threading.Lock()  # the thread is the parent's
    _whole.clear()
    _outcomes.clear()


os.register_at_fork(after_in_child=_forget)
