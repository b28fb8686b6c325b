# SPDX-License-Identifier: Apache-2.0
"""Python objects as msgpack. Never pickle: unpacking must not run code that another process chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backplane._errors import InvalidError, check
from backplane._native import ffi, lib
from backplane._types import Kind, Timeout, nanoseconds_or_inherited


def pack(name: str, value: object) -> bytes:
    """TypeError if the value has parts that msgpack cannot carry."""
    import msgpack

    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"`{name}` cannot be sent: {error}; objects may consist of None, bool, int of 64 bits, float, str, bytes, "
            "list, tuple (received as a list) and dict"
        ) from None
    return packed


def unpack(packed: bytes) -> Any:
    """InvalidError if the bytes are not one object of msgpack."""
    import msgpack

    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=False)
    except TypeError as error:  # keys that were tuples are lists here
        raise InvalidError(
            f"a received object has a dict whose keys cannot be keys here ({error}); its sender must use str, bytes or "
            "numbers, not tuples"
        ) from None
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidError(
            f"a received object is not msgpack ({type(error).__name__}: {error}); its sender must use this package or "
            "backplane/adapters/objects.hpp"
        ) from None


def exchange(group: Any, kind: Kind, root: int, objects: Sequence[bytes] | None, timeout: Timeout | None) -> list[Any]:
    """A collective on objects; see bp_group_exchange_objects. `group`: a handle."""
    given = list(objects) if objects is not None else []
    views = [ffi.from_buffer(packed) for packed in given]
    sizes = ffi.new("uint64_t[]", [len(packed) for packed in given])
    pointers = ffi.new("const void*[]", views)
    out = ffi.new("bp_objects**")
    check(
        lib.bp_group_exchange_objects(
            group, kind, root, pointers, sizes, len(given), nanoseconds_or_inherited(timeout), out, lib.py_fresh_error()
        )
    )
    return take(out[0])


def take(handle: Any) -> list[Any]:
    """The objects of a bp_objects, which is released."""
    try:
        size = ffi.new("uint64_t*")
        packed = []
        for i in range(lib.bp_objects_count(handle)):
            data = lib.bp_objects_get(handle, i, size)
            packed.append(bytes(ffi.buffer(data, size[0])) if size[0] else b"")
    finally:
        lib.bp_objects_release(handle)
    return [unpack(each) for each in packed]
