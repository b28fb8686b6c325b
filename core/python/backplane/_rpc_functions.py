# SPDX-License-Identifier: Apache-2.0
"""Functions that other workers may call, and the values that this worker owns."""

from __future__ import annotations

import inspect
import itertools
import os
import threading
import traceback
from typing import Any, Callable, TypeVar, overload

from backplane._errors import BackplaneError, InvalidError, Status, check
from backplane._native import ffi, lib
from backplane._rpc_content import pack_result, unpack_arguments
from backplane._store import c_string

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
_functions: list[Callable[..., Any]] = []
_names: dict[Any, str] = {}
# The values that this worker owns, by their numbers in the C API, and the references in their last messages.
_values: dict[int, Any] = {}
_sent_refs: dict[int, Any] = {}
_numbers = itertools.count(1)
_make_reference: Callable[[Any], Any] = lambda handle: handle  # noqa: E731 - replaced by the module of RRef
_TEXT_BYTES = 700  # of an error; the C API truncates at 1023, and puts worker and function in front
_package = os.path.dirname(os.path.abspath(__file__))


@overload
def register(function: F) -> F: ...


@overload
def register(function: str) -> Callable[[F], F]: ...


def register(function: Any) -> Any:
    """Makes a function or a class callable by all workers. A decorator::

        @rpc.register
        def add(a, b): ...


        @rpc.register("counters.Counter")
        class Counter: ...

    The name is that of the function, or the one given, and must be unique in the process. Functions are registered
    before `init_rpc`, on each worker that is called. They run on threads of the worker, several at a time, and may
    block and call other workers. Of a registered class, workers may create objects, and call the public methods of
    objects to which they have an RRef.
    """
    if isinstance(function, str):
        return lambda named: register_function(function, named)
    return register_function(function.__name__, function)


def register_function(name: str, function: F) -> F:
    """Registers a function or class under a name. InvalidError if the name is taken."""
    if not callable(function):
        raise TypeError(f"`function` is a {type(function).__name__}; a function or a class can be registered")
    with _lock:
        number = len(_functions)
        check(lib.py_rpc_register(c_string("name", name), number))
        _functions.append(function)
        _names[function] = name
    return function


def name_of(function: Any) -> str:
    """The name of a function to call. InvalidError for a function that is not registered here."""
    if isinstance(function, str):
        return function
    try:
        return _names[function]
    except (KeyError, TypeError):
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidError(
            f"function '{name}' is not registered; decorate it with @rpc.register on every worker that is called, or "
            "pass the name under which the callee registered it"
        ) from None


def keep(value: Any) -> int:
    """Keeps a value until the C API destroys it, and returns its number."""
    number = next(_numbers)
    _values[number] = value
    return number


def kept(number: int) -> Any:
    return _values[number]


def drop(number: int) -> None:
    _values.pop(number, None)
    _sent_refs.pop(number, None)


def call_method(reference: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
    """A method of a referenced object of a registered class. Registered for the proxies of RRef."""
    value = reference.local_value()
    kind = type(value)
    if kind not in _names or not inspect.isclass(kind):
        raise InvalidError(
            f"a {kind.__module__}.{kind.__qualname__} has no methods for other workers; decorate the class with "
            "@rpc.register"
        )
    if method.startswith("_") or not callable(getattr(kind, method, None)):
        raise InvalidError(f"'{_names[kind]}' has no public method '{method}'")
    return getattr(value, method)(*arguments, **keywords)


def _report(error: BaseException, out: Any) -> int:
    """Fills in *out: the exception, and where it was raised, innermost frame first, on one line."""
    status = Status.INTERNAL
    if isinstance(error, BackplaneError):
        status = error.status
    elif isinstance(error, (TypeError, ValueError)):
        status = Status.INVALID
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if os.path.dirname(os.path.abspath(frame.filename)) != _package
    ]
    if frames:
        text = f"{text[:_TEXT_BYTES]}; traceback, last call first: {'; '.join(frames)}"
    line = " ".join(text.split()).replace("\0", " ")
    return int(lib.bp_error_set(out, int(status), 0, -1, line.encode("utf-8", "replace")))


def _refused(*_: object) -> None:
    """An exception outside of `_report`, such as one for lack of memory: the caller gets the status alone."""


@ffi.def_extern(error=int(Status.INTERNAL), onerror=_refused)  # type: ignore[untyped-decorator]
def py_rpc_run(function: int, arguments: Any, value: Any, out: Any) -> int:
    try:
        payload = ffi.gc(lib.bp_rpc_payload_retain(arguments), lib.bp_rpc_payload_release)
        given, keywords = unpack_arguments(payload, _make_reference)
        del payload
        value[0] = keep(_functions[function](*given, **keywords))
    except BaseException as error:
        return _report(error, out)
    return int(Status.OK)


@ffi.def_extern(error=int(Status.INTERNAL), onerror=_refused)  # type: ignore[untyped-decorator]
def py_rpc_encode(number: int, content: Any, out: Any) -> int:
    try:
        packed = pack_result(_values[number])
        if packed.ref_count:
            _sent_refs[number] = packed.kept
        return int(lib.py_content_fill(content, *packed.arguments(), out))
    except BaseException as error:
        return _report(error, out)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def py_rpc_destroy(number: int) -> None:
    drop(number)


register_function("backplane.method", call_method)
