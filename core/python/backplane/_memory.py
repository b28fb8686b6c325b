# SPDX-License-Identifier: Apache-2.0
"""Arrays that collectives use in place."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from backplane._distributed import get_default_group
from backplane._errors import InvalidError, check
from backplane._group import ProcessGroup
from backplane._native import ffi, lib


class _Releasing:
    """The end of an array's memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __call__(self, _: Any) -> None:
        lib.bp_memory_release(self._memory)


def empty(shape: int | Sequence[int], dtype: Any = "float64", group: ProcessGroup | None = None) -> Any:
    """A numpy array in memory of the group's backend, with undefined contents.

    Operations of the group use it without a copy through memory of their own, which makes an all_reduce of `shm`
    faster. Ranks may pass such arrays or others. Where the backend has no memory of its own, the array is in ordinary
    memory. Does not wait for other ranks. The array, and views of it, stay valid after the group has ended; a child
    made by fork does not have the memory. Other libraries share it by DLPack, as with ``torch.from_dlpack(array)``.

    Args:
        shape, dtype: as for numpy.empty.
        group: None: the default group.

    Raises:
        InvalidError: the shape is negative, or the dtype has objects.
        ResourceError: there is not enough memory.
    """
    numpy: Any = importlib.import_module("numpy")
    kind = numpy.dtype(dtype)
    extents = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(extent < 0 for extent in extents):
        raise InvalidError(f"the shape {extents} has a negative extent")
    if kind.hasobject:
        raise InvalidError(f"elements of dtype {kind} are Python objects, which cannot be in memory of a backend")
    chosen = get_default_group() if group is None else group
    count = math.prod(extents)
    if count * kind.itemsize == 0:
        return numpy.empty(extents, kind)
    memory = ffi.new("bp_memory**")
    nbytes = count * kind.itemsize
    if nbytes >= 1 << 63:
        raise InvalidError(
            f"an array of shape {extents} and dtype {kind} has {nbytes} bytes, more than memory can have"
        )
    check(lib.bp_group_allocate(chosen._handle, nbytes, lib.BP_HOST, 0, memory, lib.py_fresh_error()))
    data = ffi.gc(ffi.cast("char*", lib.bp_memory_data(memory[0])), _Releasing(memory[0]), nbytes)
    return numpy.frombuffer(ffi.buffer(data, nbytes), kind).reshape(extents)


@contextlib.contextmanager
def contiguous(array: Any) -> Iterator[Any]:
    """A context with a C-contiguous, little-endian copy of an array, which is copied back at the end of the block::

        with backplane.contiguous(matrix[:, 0]) as column:
            group.all_reduce(column)

    Gives the array itself if operations can use it in place. Nothing is copied back if the array is read-only, or if
    the block raises. Asynchronous operations must have ended before the block ends.

    Args:
        array: a numpy array, or an object with the buffer protocol.

    Raises:
        TypeError: the array is of another type.
    """
    numpy: Any = importlib.import_module("numpy")
    try:
        whole = array if isinstance(array, numpy.ndarray) else numpy.asarray(memoryview(array))
    except TypeError:
        kind = type(array)
        raise TypeError(
            f"contiguous: `array` is a {kind.__module__}.{kind.__qualname__}, which has no buffer protocol; use a "
            "contiguous copy of its own library"
        ) from None
    is_native = whole.dtype.byteorder != ">"
    if is_native and whole.flags.c_contiguous:
        yield array
        return
    copy = whole.astype(whole.dtype if is_native else whole.dtype.newbyteorder("<"), order="C")
    yield copy
    if whole.flags.writeable:
        whole[...] = copy
