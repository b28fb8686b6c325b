# SPDX-License-Identifier: Apache-2.0
"""The operations of a group on Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backplane._errors import InvalidError, check
from backplane._native import ffi, lib
from backplane._objects import exchange, pack, take
from backplane._types import ANY_SOURCE, Kind, Timeout, nanoseconds_or_inherited


class ObjectOperations:
    """Objects of any size, which may differ between ranks.

    They travel as msgpack: None, bool, int of 64 bits, float, str, bytes, list, tuple (received as a list) and dict.
    Others raise TypeError before anything is sent. All calls block.
    """

    _handle: Any
    _world_size: int

    def rank(self) -> int:
        raise NotImplementedError

    def broadcast_object(self, obj: Any, src: int = 0, timeout: Timeout | None = None) -> Any:
        """Returns a copy of the object of rank `src`, on that rank, too. `obj` is not read elsewhere."""
        given = [pack("obj", obj)] if self.rank() == src else None
        return exchange(self._handle, Kind.BROADCAST, src, given, timeout)[0]

    def gather_object(self, obj: Any, dst: int = 0, timeout: Timeout | None = None) -> list[Any] | None:
        """Returns the objects of all ranks, in rank order, on rank `dst`; None elsewhere."""
        objects = exchange(self._handle, Kind.GATHER, dst, [pack("obj", obj)], timeout)
        return objects if self.rank() == dst else None

    def all_gather_object(self, obj: Any, timeout: Timeout | None = None) -> list[Any]:
        """Returns the objects of all ranks, in rank order."""
        return exchange(self._handle, Kind.ALL_GATHER, 0, [pack("obj", obj)], timeout)

    def scatter_object(self, objects: Sequence[Any] | None = None, src: int = 0, timeout: Timeout | None = None) -> Any:
        """Returns ``objects[r]`` of rank `src` on rank r. `objects`, one per rank, is not read elsewhere."""
        given = None
        if self.rank() == src:
            if objects is None or len(objects) != self._world_size:
                raise InvalidError(f"`objects` must have one object per rank, {self._world_size}, on rank {src}")
            given = [pack(f"objects[{i}]", each) for i, each in enumerate(objects)]
        return exchange(self._handle, Kind.SCATTER, src, given, timeout)[0]

    def send_object(self, obj: Any, dst: int, tag: int = 0, timeout: Timeout | None = None) -> None:
        """Sends an object to rank `dst`. Tags of objects are separate from those of arrays."""
        packed = pack("obj", obj)
        limit = nanoseconds_or_inherited(timeout)
        check(lib.bp_group_send_object(self._handle, packed, len(packed), dst, _tag(tag), limit, lib.py_fresh_error()))

    def recv_object(self, src: int | None = None, tag: int = 0, timeout: Timeout | None = None) -> tuple[Any, int]:
        """Receives an object from rank `src`, or from any rank. Returns the object and its sender's rank."""
        out, source = ffi.new("bp_objects**"), ffi.new("int32_t*")
        peer = ANY_SOURCE if src is None else src
        limit = nanoseconds_or_inherited(timeout)
        check(lib.bp_group_recv_object(self._handle, peer, _tag(tag), limit, out, source, lib.py_fresh_error()))
        return take(out[0])[0], int(source[0])


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 32:
        raise InvalidError(f"the tag is {tag}; tags of objects are 0 to 2**32 - 1")
    return tag
