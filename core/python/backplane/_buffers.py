# SPDX-License-Identifier: Apache-2.0
"""Arrays as buffers of the C API: numpy arrays, and all other objects with the buffer protocol or DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from backplane import _dlpack
from backplane._errors import InvalidError
from backplane._native import ffi, lib

# An object with the buffer protocol or DLPack. Python 3.9 has no type for them.
Array = Any

# The dtypes of the C API by kind, as numpy names kinds, and bytes of an element.
_DTYPES: dict[tuple[str, int], int] = {
    ("b", 1): 0,
    ("i", 1): 1,
    ("u", 1): 2,
    ("i", 2): 3,
    ("u", 2): 4,
    ("i", 4): 5,
    ("u", 4): 6,
    ("i", 8): 7,
    ("u", 8): 8,
    ("f", 2): 9,
    ("f", 4): 11,
    ("f", 8): 12,
    ("c", 8): 15,
    ("c", 16): 16,
}
# Those of ml_dtypes, whose arrays have no buffer protocol of their own.
_ML_DTYPES: dict[str, tuple[int, int]] = {"bfloat16": (10, 2), "float8_e4m3fn": (13, 1), "float8_e5m2": (14, 1)}
# Kinds of the format characters of the buffer protocol.
_KINDS: dict[str, str] = {
    **dict.fromkeys("?", "b"),
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("cBHILQN", "u"),
    **dict.fromkeys("efd", "f"),
    "Zf": "c",
    "Zd": "c",
}
_SUPPORTED = (
    "bool, integers of 8 to 64 bits, float16, float32, float64, complex64, complex128, and bfloat16, float8_e4m3fn and "
    "float8_e5m2 of ml_dtypes"
)

_BYTES = ffi.typeof("char[]")
# dtypes of numpy that were met: the code of the C API and the bytes of an element.
_known: dict[Any, tuple[int, int]] = {}


class View(NamedTuple):
    """An array as the C API sees it. `data` keeps the array alive and its memory where it is."""

    dtype: int
    data: Any
    elements: int


# The constructor of View without its checks of arguments, which take as long as the rest of a view.
_make: Any = tuple.__new__
_UNKNOWN = (AttributeError, KeyError, TypeError, ValueError, BufferError)


def input_view(name: str, array: Array) -> View:
    """An array that is read. TypeError or InvalidError, which name the argument, if it cannot be used in place."""
    try:
        dtype, size = _known[array.dtype]
        data = ffi.from_buffer(_BYTES, array)
        return _make(View, (dtype, data, len(data) // size))  # type: ignore[no-any-return]
    except _UNKNOWN:
        pass  # unknown or refused: the slow way finds out
    return _checked_view(name, array, False)


def output_view(name: str, array: Array) -> View:
    """An array that is written."""
    try:
        dtype, size = _known[array.dtype]
        data = ffi.from_buffer(_BYTES, array, True)
        return _make(View, (dtype, data, len(data) // size))  # type: ignore[no-any-return]
    except _UNKNOWN:
        pass  # unknown or refused: the slow way finds out
    return _checked_view(name, array, True)


def _checked_view(name: str, array: Array, is_written: bool) -> View:
    dtype = getattr(array, "dtype", None)
    if hasattr(dtype, "byteorder") and hasattr(getattr(array, "flags", None), "c_contiguous"):
        if _dlpack.is_exporter(array):  # may be an array of cupy
            _dlpack.require_host_memory(name, array)
        return _numpy_view(name, array, dtype, is_written)
    try:
        view = memoryview(array)
    except (TypeError, BufferError):
        if _dlpack.is_exporter(array):
            return View(*_dlpack.import_array(name, array, is_written))
        _refuse_type(name, array)
    character = view.format.lstrip("@=<") or "B"
    if character[0] in ">!":
        _refuse_big_endian(name, "convert it")
    code = _DTYPES.get((_KINDS.get(character, ""), view.itemsize))
    if code is None:
        raise TypeError(f"`{name}` has elements of format {view.format!r}; supported are {_SUPPORTED}")
    if not view.c_contiguous:
        _refuse_strides(name, view.shape, view.strides, "a contiguous copy")
    if is_written and view.readonly:
        _refuse_read_only(name, "a writable buffer, such as a bytearray")
    # Not of `view`: CPython clears a memoryview in a cycle, such as an error and its frames, while it is exported.
    return View(code, ffi.from_buffer(_BYTES, array, is_written), view.nbytes // view.itemsize)


def _numpy_view(name: str, array: Array, dtype: Any, is_written: bool) -> View:
    if dtype.byteorder == ">":
        _refuse_big_endian(name, f"pass {name}.astype({name}.dtype.newbyteorder('<'))")
    ml_dtype = _ML_DTYPES.get(dtype.name)
    if ml_dtype is None:
        code = _DTYPES.get((dtype.kind, dtype.itemsize))
        if code is None:
            raise TypeError(f"`{name}` has elements of dtype {dtype}; supported are {_SUPPORTED}")
        _known[dtype] = (code, dtype.itemsize)
    if not array.flags.c_contiguous:
        _refuse_strides(name, array.shape, array.strides, f"numpy.ascontiguousarray({name})")
    if is_written and not array.flags.writeable:
        _refuse_read_only(name, f"{name}.copy()")
    if ml_dtype is None:
        try:
            return View(_DTYPES[dtype.kind, dtype.itemsize], ffi.from_buffer(_BYTES, array, is_written), array.size)
        except TypeError:  # such as an array in the memory of a device
            _refuse_type(name, array)
    return View(ml_dtype[0], ffi.from_buffer(_BYTES, array.reshape(-1).view("u1"), is_written), array.size)


def _refuse_type(name: str, array: object) -> NoReturn:
    kind = type(array)
    raise TypeError(f"`{name}` is a {kind.__module__}.{kind.__qualname__}, which has no buffer protocol and no DLPack")


def _refuse_big_endian(name: str, remedy: str) -> NoReturn:
    raise InvalidError(f"`{name}` is big-endian, and elements are exchanged as little-endian; {remedy}")


def _refuse_strides(name: str, shape: object, strides: object, remedy: str) -> NoReturn:
    raise InvalidError(
        f"`{name}` is not C-contiguous (shape {shape}, strides {strides}); pass {remedy}, or what "
        f"backplane.contiguous({name}) gives, which also copies a result back"
    )


def _refuse_read_only(name: str, remedy: str) -> NoReturn:
    raise InvalidError(f"`{name}` is read-only, and the result is written to it; pass {remedy}")


def require_same_dtype(one: str, a: View, other: str, b: View) -> None:
    """InvalidError if the elements of two arguments differ in type."""
    if a.dtype != b.dtype:
        raise InvalidError(f"`{one}` has elements of {dtype_name(a.dtype)}, `{other}` of {dtype_name(b.dtype)}")


def dtype_name(code: int) -> str:
    text: bytes = ffi.string(lib.bp_dtype_name(code))
    return text.decode()


class ViewList(NamedTuple):
    """W arrays of one size, one per rank."""

    dtype: int
    elements: int  # of each array
    buffers: Any  # bp_buffer[W]
    views: list[View]


def view_list(name: str, arrays: Sequence[Array], world_size: int, is_written: bool) -> ViewList:
    """The arrays of a list. InvalidError unless there is one per rank, all of one dtype and size."""
    if len(arrays) != world_size:
        raise InvalidError(f"`{name}` has {len(arrays)} arrays; it must have one per rank, {world_size}")
    view_of = output_view if is_written else input_view
    views = [view_of(f"{name}[{i}]", array) for i, array in enumerate(arrays)]
    first = views[0]
    buffers = ffi.new("bp_buffer[]", world_size)
    for i, view in enumerate(views):
        require_same_dtype(f"{name}[0]", first, f"{name}[{i}]", view)
        if view.elements != first.elements:
            raise InvalidError(
                f"`{name}[{i}]` has {view.elements} elements, `{name}[0]` has {first.elements}; all must have the same "
                "number (all_to_all_single takes different ones)"
            )
        buffers[i].data = ffi.cast("void*", view.data)
        buffers[i].count = view.elements
    return ViewList(first.dtype, first.elements, buffers, views)
