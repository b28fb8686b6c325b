# SPDX-License-Identifier: Apache-2.0
"""What RPC messages carry: msgpack, arrays beside it, and references. Never pickle.

The values of a message follow each other, as those of C++ workers do. Three extension types of msgpack are used:

    1  keyword arguments: a dict, behind the other values
    2  an array: its dtype, its shape and the number of the buffer that holds its elements
    3  a reference: its number in the message
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backplane._buffers import _DTYPES, _ML_DTYPES, input_view
from backplane._errors import InvalidError
from backplane._native import ffi, lib

KEYWORDS, ARRAY, REFERENCE = 1, 2, 3
_NUMPY_NAMES = {code: f"{kind}{size}" for (kind, size), code in _DTYPES.items()}
_ML_NAMES = {code: name for name, (code, _) in _ML_DTYPES.items()}
_PARTS = (
    "values may consist of None, bool, int of 64 bits, float, str, bytes, list, tuple (received as a list), dict, "
    "numpy arrays and RRefs"
)


class Content(NamedTuple):
    """A message to send, as the functions of rpc_glue.h take it. It keeps alive what the pointers refer to."""

    payload: bytes
    buffers: Any  # bp_buffer[]
    buffer_count: int
    refs: Any  # bp_rref*[]
    ref_count: int
    kept: tuple[Any, ...]

    def arguments(self) -> tuple[Any, ...]:
        return self.payload, len(self.payload), self.buffers, self.buffer_count, self.refs, self.ref_count


class _Packer:
    def __init__(self) -> None:
        import msgpack

        self._msgpack = msgpack
        self._packer = msgpack.Packer(use_bin_type=True, default=self._extension)
        self._views: list[Any] = []
        self._refs: list[Any] = []

    def pack(self, name: str, value: Any) -> bytes:
        try:
            packed: bytes = self._packer.pack(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{name} cannot be sent: {error}; {_PARTS}") from None
        return packed

    def keywords(self, values: Mapping[str, Any]) -> bytes:
        pairs = [self._packer.pack(len(values))]
        for name, value in values.items():
            pairs += [self._packer.pack(name), self.pack(f"argument `{name}`", value)]
        packed: bytes = self._packer.pack(self._msgpack.ExtType(KEYWORDS, b"".join(pairs)))
        return packed

    def _extension(self, value: Any) -> Any:
        if isinstance(getattr(value, "_rref", None), ffi.CData):
            self._refs.append(value)
            return self._msgpack.ExtType(REFERENCE, self._msgpack.packb(len(self._refs) - 1))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
            return value.item()
        if numpy is not None and isinstance(value, numpy.ndarray):
            view = input_view("array", numpy.ascontiguousarray(value))
            self._views.append(view)
            described = [view.dtype, list(value.shape), len(self._views) - 1]
            return self._msgpack.ExtType(ARRAY, self._msgpack.packb(described))
        kind = type(value)
        raise TypeError(f"msgpack has no {kind.__module__}.{kind.__qualname__}")

    def content(self, payload: bytes) -> Content:
        buffers = ffi.new("bp_buffer[]", max(1, len(self._views)))
        for i, view in enumerate(self._views):
            buffers[i].data = ffi.cast("void*", view.data)
            buffers[i].count = len(view.data)
        refs = ffi.new("bp_rref*[]", [each._rref for each in self._refs] or 1)
        return Content(payload, buffers, len(self._views), refs, len(self._refs), (self._views, self._refs))


def pack_arguments(arguments: Sequence[Any], keywords: Mapping[str, Any] | None) -> Content:
    """TypeError, which names the argument, if it has parts that cannot be sent."""
    packer = _Packer()
    parts = [packer.pack(f"argument {i + 1}", value) for i, value in enumerate(arguments)]
    if keywords:
        parts.append(packer.keywords(keywords))
    return packer.content(b"".join(parts))


def pack_result(value: Any) -> Content:
    """None is an empty message, as the result of a C++ function that returns void."""
    packer = _Packer()
    return packer.content(b"" if value is None else packer.pack("the result", value))


class _Received:
    """A payload, which lives as long as the arrays in it."""

    def __init__(self, payload: Any, make_reference: Any) -> None:
        self._payload = payload
        self._make_reference = make_reference

    def extension(self, code: int, data: bytes) -> Any:
        import msgpack

        if code == KEYWORDS:
            items = list(self._values(data))
            if len(items) != 1 + 2 * items[0]:
                raise ValueError("malformed keyword arguments")
            return _Keywords(zip(items[1::2], items[2::2]))
        if code == ARRAY:
            dtype, shape, index = msgpack.unpackb(data)
            return self._array(dtype, shape, index)
        if code == REFERENCE:
            handle = lib.bp_rpc_payload_ref(self._payload, msgpack.unpackb(data))
            if handle == ffi.NULL:
                raise ValueError("no reference was sent")
            return self._make_reference(handle)
        raise ValueError(f"extension type {code} is unknown")

    def _array(self, code: int, shape: Sequence[int], index: int) -> Any:
        try:
            numpy: Any = importlib.import_module("numpy")
            if code in _ML_NAMES:
                dtype = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), _ML_NAMES[code]))
            else:
                dtype = numpy.dtype(_NUMPY_NAMES[code])
        except ImportError as error:
            raise ValueError(f"an array was sent, and {error.name} is missing here; install it") from None
        size = ffi.new("uint64_t*")
        data = lib.py_payload_host_buffer(self._payload, index, size)
        if data == ffi.NULL:
            raise ValueError("the elements of an array are missing")
        if size[0] == 0:
            return numpy.empty(shape, dtype)
        # The cdata that numpy keeps has the payload in its deleter.
        keeping = ffi.gc(ffi.cast("char*", data), _Keeping(self._payload))
        return numpy.frombuffer(ffi.buffer(keeping, size[0]), dtype).reshape(shape)

    def _values(self, data: Any) -> Any:
        import msgpack

        unpacker = msgpack.Unpacker(
            raw=False, strict_map_key=False, ext_hook=self.extension, max_buffer_size=max(1, len(data))
        )
        unpacker.feed(data)
        while unpacker.tell() < len(data):
            yield unpacker.unpack()

    def values(self) -> list[Any]:
        import msgpack

        size = ffi.new("uint64_t*")
        data = lib.bp_rpc_payload_data(self._payload, size)
        try:
            return list(self._values(ffi.buffer(data, size[0]) if size[0] else b""))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.UnpackException) as error:
            raise InvalidError(
                f"the values that were sent cannot be decoded ({type(error).__name__}: {error}); they must be msgpack, "
                "as this package and rpc.hpp send it, without the arrays of C++"
            ) from None


class _Keeping:
    """The end of an array's memory: drops the payload with itself."""

    __slots__ = ("_payload",)

    def __init__(self, payload: Any) -> None:
        self._payload = payload

    def __call__(self, _: Any) -> None:
        self._payload = None


class _Keywords(dict):  # type: ignore[type-arg]
    pass


def unpack_arguments(payload: Any, make_reference: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments. `payload`: a handle that is released with its last user."""
    values = _Received(payload, make_reference).values()
    keywords = values.pop() if values and isinstance(values[-1], _Keywords) else {}
    return values, keywords


def unpack_result(payload: Any, make_reference: Any) -> Any:
    values = _Received(payload, make_reference).values()
    if len(values) > 1 or (lib.bp_rpc_payload_buffers(payload) > 0 and not values):
        raise InvalidError("the result is not one value of msgpack; functions of C++ must not return arrays to Python")
    return values[0] if values else None
