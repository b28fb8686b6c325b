# SPDX-License-Identifier: Apache-2.0
"""Buffer arguments of `backplane.mpi_style`: arrays, and lists with counts and datatypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backplane._buffers import View, input_view, output_view
from backplane._errors import InvalidError, check
from backplane._group import ProcessGroup
from backplane._mpi_types import Datatype
from backplane._native import ffi, lib
from backplane._types import Kind
from backplane._work import Work

IN_PLACE: Any = object()  # the argument of a collective that works on one array
_NONE = View(2, ffi.NULL, 0)


def array_of(given: Any) -> Any:
    """The array of ``array``, ``[array, datatype]`` or ``[array, count, datatype]``."""
    if not isinstance(given, (list, tuple)):
        return given
    array, datatype, rest = _parts(given)
    array = _of_type(array, datatype)
    if len(rest) > 1 or not all(isinstance(each, int) for each in rest):
        raise InvalidError("a buffer of one block is an array, [array, datatype] or [array, count, datatype]")
    return array if not rest else array[: rest[0]]


def _parts(given: Sequence[Any]) -> tuple[Any, Datatype | None, list[Any]]:
    array, *rest = given
    datatype = rest.pop() if rest and isinstance(rest[-1], Datatype) else None
    return array, datatype, [each for each in rest if each is not None]


def _of_type(array: Any, datatype: Datatype | None) -> Any:
    """The array as elements of the datatype. Only bytes may be of another size than its elements."""
    size = getattr(array, "itemsize", None)
    if datatype is None or size in (None, datatype.size):
        return array
    if datatype.size == 1 and datatype.name == "BYTE":
        return memoryview(array).cast("B")
    raise InvalidError(
        f"{datatype.name} has {datatype.size} bytes, an element of the array has {size}; name the datatype of the array"
    )


class Blocks(NamedTuple):
    """An array with a block per rank."""

    view: View
    counts: Sequence[int]  # of each rank, in elements
    displs: Sequence[int]  # where each block begins, in elements

    def block(self, rank: int) -> View:
        """The block of one rank as an array of its own."""
        view = self.view
        size = len(view.data) // view.elements if view.elements else 1
        where = ffi.cast("char*", view.data) + self.displs[rank] * size
        return View(view.dtype, where, self.counts[rank])


def blocks_of(name: str, given: Any, world_size: int, is_written: bool) -> Blocks:
    """The blocks of ``[array, counts, displs, datatype]``, ``[array, (counts, displs), datatype]`` or
    ``[array, counts]``, or of an array that consists of blocks of one size. Without displs, blocks are adjacent.
    """
    array, datatype, rest = _parts(given) if isinstance(given, (list, tuple)) else (given, None, [])
    if len(rest) == 1 and len(rest[0]) == 2 and not isinstance(rest[0][0], int):
        rest = [each for each in rest[0] if each is not None]
        if rest and not hasattr(rest[0], "__len__"):  # an array of numpy of two counts
            rest = [rest]
    view = (output_view if is_written else input_view)(name, _of_type(array, datatype))
    if rest:
        counts = [int(count) for count in rest[0]]
    elif view.elements % world_size == 0:
        counts = [view.elements // world_size] * world_size
    else:
        raise InvalidError(f"`{name}` has {view.elements} elements, and no blocks of one size for {world_size} ranks")
    adjacent = [sum(counts[:rank]) for rank in range(len(counts))]
    displs = [int(displ) for displ in rest[1]] if len(rest) > 1 else adjacent
    if len(counts) != world_size or len(displs) != world_size or min(counts + displs) < 0:
        raise InvalidError(
            f"`{name}` has counts {counts} and displs {displs}; one of each per rank, {world_size}, is needed"
        )
    if max(displ + count for displ, count in zip(displs, counts)) > view.elements:
        raise InvalidError(f"`{name}` has {view.elements} elements; counts {counts} and displs {displs} exceed it")
    return Blocks(view, counts, displs)


def run_blocks(
    group: ProcessGroup,
    kind: Kind,
    given: View | Blocks | None,
    output: View | Blocks | None,
    op: int = 0,
    root: int = 0,
    is_async: bool = False,
) -> Work | None:
    """A collective whose blocks may differ in size. None: this rank has no input, or no output."""
    sides = [each for each in (given, output) if each is not None]
    views = [each.view if isinstance(each, Blocks) else each for each in sides]
    if len({view.dtype for view in views}) > 1:
        raise InvalidError("`sendbuf` and `recvbuf` have elements of different dtypes")
    of, *of_blocks = _arguments(given)
    to, *to_blocks = _arguments(output)
    work = Work(group, *views) if is_async else None
    request = ffi.NULL if work is None else work._slot
    arguments = of.data, of.elements, *of_blocks, to.data, to.elements, *to_blocks, lib.BP_INHERIT_TIMEOUT, request
    check(lib.py_run_blocks(group._handle, kind, views[0].dtype, op, root, *arguments))
    return work


def _arguments(side: View | Blocks | None) -> tuple[View, Any, Any]:
    if isinstance(side, Blocks):
        return side.view, side.counts, side.displs
    return _NONE if side is None else side, ffi.NULL, ffi.NULL
