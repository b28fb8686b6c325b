# SPDX-License-Identifier: Apache-2.0
"""Statuses, exceptions, and the way from a status of the C API to an exception."""

from __future__ import annotations

import atexit
import builtins
import enum
import os
import threading
from typing import Any

from backplane._native import ffi, lib


class Status(enum.IntEnum):
    """The kinds of failure. Each says who caused it."""

    OK = 0
    INVALID = 1
    UNSUPPORTED = 2
    TIMEOUT = 3
    CANCELLED = 4
    PEER_LOST = 5
    RESOURCE = 6
    AGAIN = 7
    INTERNAL = 8


class BackplaneError(RuntimeError):
    """A failure of Backplane. ``str(error)`` is one sentence: what failed, where, why, what to do.

    Attributes:
        status: the kind of failure; each kind has a subclass.
        peer_rank: the rank, in the group, that the failure concerns; None if it is unknown.
        group: the name of the process group; empty if there is none.
        native_code: the code of the operating system or of an underlying library; 0 if there is none.
    """

    status: Status = Status.INTERNAL
    peer_rank: int | None = None
    group: str = ""
    native_code: int = 0


class InvalidError(BackplaneError, ValueError):
    """An argument, an option or the order of calls is wrong. Nothing was done."""

    status = Status.INVALID


class UnsupportedError(BackplaneError, NotImplementedError):
    """This backend, machine or build cannot do it. Nothing was done."""

    status = Status.UNSUPPORTED


class TimedOutError(BackplaneError, builtins.TimeoutError):
    """The deadline passed."""

    status = Status.TIMEOUT


class CancelledError(BackplaneError):
    """This or another rank cancelled, aborted or destroyed what the call worked on."""

    status = Status.CANCELLED


class PeerLostError(BackplaneError, ConnectionError):
    """The process, host or connection of another rank was lost; ``peer_rank`` names the rank if it is known."""

    status = Status.PEER_LOST


class ResourceError(BackplaneError, OSError):
    """The machine lacks memory, descriptors, ports, disk space or permissions."""

    status = Status.RESOURCE


class InternalError(BackplaneError):
    """A fault of a plugin or of the library, or an unexpected result of an underlying library."""

    status = Status.INTERNAL


_CLASSES: dict[int, type[BackplaneError]] = {
    kind.status: kind
    for kind in (
        InvalidError,
        UnsupportedError,
        TimedOutError,
        CancelledError,
        PeerLostError,
        ResourceError,
        InternalError,
    )
}

# What signal handlers raised while the main thread was in the library.
_raised_by_handlers: list[BaseException] = []


def last_error(status: int) -> BackplaneError:
    """The exception for the failure that this thread's last call reported."""
    report = lib.py_error()
    error = _CLASSES.get(status, InternalError)(_text(report.text))
    error.native_code = report.native_code
    error.peer_rank = None if report.peer_rank < 0 else report.peer_rank
    error.group = _text(report.group)
    return error


def check(status: int) -> None:
    """Raises the failure of a call; and what a signal handler raised during it, even if the call succeeded."""
    if status or _raised_by_handlers:
        _raise(status)


def _raise(status: int) -> None:
    if threading.current_thread() is threading.main_thread():
        raised = _raised_by_handlers[:1]
        _raised_by_handlers.clear()  # a second Ctrl-C meant the same call
        if lib.py_take_interruption() and not raised:
            raised = [KeyboardInterrupt()]  # the second of two signals interrupted _remember
        if raised:
            raise raised.pop() from None  # a local that kept it would keep this frame and its callers' arrays
    if status:
        raise last_error(status)


def _text(characters: Any) -> str:
    text: bytes = ffi.string(characters)
    return text.decode("utf-8", "replace")


def _remember(_kind: Any, raised: BaseException | None, _traceback: Any) -> None:
    _raised_by_handlers.append(raised if raised is not None else KeyboardInterrupt())


# Entering a Python function on the main thread runs the handlers of signals that have arrived.
@ffi.def_extern(error=1, onerror=_remember)  # type: ignore[untyped-decorator]
def py_handle_signals() -> int:
    return 0


def _enable() -> None:
    _raised_by_handlers.clear()
    lib.py_interrupt_hook(threading.main_thread().ident)


def _disable() -> None:
    lib.py_interrupt_hook(0)


_enable()
atexit.register(_disable)  # the interpreter that ends runs no more handlers
os.register_at_fork(after_in_child=_enable)  # the thread that forked is the main thread of the child
