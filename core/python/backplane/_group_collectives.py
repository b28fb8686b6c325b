# SPDX-License-Identifier: Apache-2.0
"""The collectives of a group on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backplane._buffers import (
    _BYTES,
    _UNKNOWN,
    Array,
    View,
    ViewList,
    _known,
    dtype_name,
    input_view,
    output_view,
    require_same_dtype,
    view_list,
)
from backplane._errors import InvalidError, _raised_by_handlers, check
from backplane._native import ffi, lib
from backplane._types import Kind, ReduceOp, Timeout, name_wrong_argument, nanoseconds_or_inherited
from backplane._work import Work

_NONE = View(2, ffi.NULL, 0)  # no array
_NO_REQUEST = ffi.NULL
_from_buffer = ffi.from_buffer
_all_reduce = lib.py_all_reduce


class CollectiveOperations:
    """Collectives on arrays. All ranks call them in the same order, with arrays of the same dtype and size."""

    _handle: Any
    _world_size: int

    def rank(self) -> int:
        raise NotImplementedError

    def barrier(self, async_op: bool = False, timeout: Timeout | None = None) -> Work | None:
        """Blocks until all ranks have called it."""
        return self._run(Kind.BARRIER, _NONE, _NONE, 0, 0, async_op, timeout)

    def broadcast(self, tensor: Array, src: int, async_op: bool = False, timeout: Timeout | None = None) -> Work | None:
        """Copies the array of rank `src` to the arrays of all ranks."""
        view = input_view("tensor", tensor) if self.rank() == src else output_view("tensor", tensor)
        return self._run(Kind.BROADCAST, _NONE, view, 0, src, async_op, timeout)

    def all_reduce(
        self, tensor: Array, op: ReduceOp = ReduceOp.SUM, async_op: bool = False, timeout: Timeout | None = None
    ) -> Work | None:
        """Reduces the arrays of all ranks into the array of each rank, in place. All ranks get the same bits."""
        if async_op or timeout is not None:
            view = output_view("tensor", tensor)
            return self._run(Kind.ALL_REDUCE, view, view, op, 0, async_op, timeout)
        # output_view and check without their calls, which take a third of a small operation.
        try:
            dtype, size = _known[tensor.dtype]
            data = _from_buffer(_BYTES, tensor, True)
            count = len(data) // size
        except _UNKNOWN:
            dtype, data, count = output_view("tensor", tensor)
        try:
            status = _all_reduce(self._handle, dtype, op, data, count)
        except TypeError:
            name_wrong_argument(op=op)
            raise
        if status or _raised_by_handlers:
            check(status)
        return None

    def reduce(
        self,
        tensor: Array,
        dst: int,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Reduces the arrays of all ranks into the array of rank `dst`. The other arrays are not changed."""
        if self.rank() != dst:
            return self._run(Kind.REDUCE, input_view("tensor", tensor), _NONE, op, dst, async_op, timeout)
        view = output_view("tensor", tensor)
        return self._run(Kind.REDUCE, view, view, op, dst, async_op, timeout)

    def scan(
        self, tensor: Array, op: ReduceOp = ReduceOp.SUM, async_op: bool = False, timeout: Timeout | None = None
    ) -> Work | None:
        """Reduces, in place on rank r, the arrays of ranks 0 to r."""
        view = output_view("tensor", tensor)
        return self._run(Kind.SCAN, view, view, op, 0, async_op, timeout)

    def exscan(
        self, tensor: Array, op: ReduceOp = ReduceOp.SUM, async_op: bool = False, timeout: Timeout | None = None
    ) -> Work | None:
        """Reduces, in place on rank r, the arrays of ranks 0 to r - 1. The array of rank 0 is not changed."""
        view = output_view("tensor", tensor)
        return self._run(Kind.EXSCAN, view, view, op, 0, async_op, timeout)

    def all_gather_into_tensor(
        self, output_tensor: Array, input_tensor: Array, async_op: bool = False, timeout: Timeout | None = None
    ) -> Work | None:
        """Gathers all ranks' `input_tensor` of N elements in `output_tensor` of W*N elements, in rank order.

        `input_tensor` may be this rank's own block of `output_tensor`.
        """
        return self._run_two(Kind.ALL_GATHER, output_tensor, input_tensor, 0, async_op, timeout)

    def all_gather(
        self,
        tensor_list: Sequence[Array],
        tensor: Array,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Copies the `tensor` of rank r to `tensor_list[r]` of all ranks. W arrays, each of the size of `tensor`."""
        one = input_view("tensor", tensor)
        return self._run_list(
            Kind.ALL_GATHER, one, _NONE, None, self._list("tensor_list", tensor_list, True), 0, 0, async_op, timeout
        )

    def gather(
        self,
        tensor: Array,
        gather_list: Sequence[Array] | None = None,
        dst: int = 0,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Copies the `tensor` of rank r to `gather_list[r]` of rank `dst`. The other ranks pass no list."""
        one = input_view("tensor", tensor)
        return self._run_list(
            Kind.GATHER,
            one,
            _NONE,
            None,
            self._list_at(dst, "gather_list", gather_list, True),
            0,
            dst,
            async_op,
            timeout,
        )

    def scatter(
        self,
        tensor: Array,
        scatter_list: Sequence[Array] | None = None,
        src: int = 0,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Copies `scatter_list[r]` of rank `src` to the `tensor` of rank r. The other ranks pass no list."""
        one = output_view("tensor", tensor)
        return self._run_list(
            Kind.SCATTER,
            _NONE,
            one,
            self._list_at(src, "scatter_list", scatter_list, False),
            None,
            0,
            src,
            async_op,
            timeout,
        )

    def reduce_scatter_tensor(
        self,
        output: Array,
        input: Array,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Reduces the ranks' `input` of W*N elements; rank r gets block r, of N elements, in `output`.

        `output` may be this rank's own block of `input`.
        """
        return self._run_two(Kind.REDUCE_SCATTER, output, input, op, async_op, timeout)

    def reduce_scatter(
        self,
        output: Array,
        input_list: Sequence[Array],
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Reduces the ranks' `input_list[r]` into the `output` of rank r."""
        one = output_view("output", output)
        return self._run_list(
            Kind.REDUCE_SCATTER, _NONE, one, self._list("input_list", input_list, False), None, op, 0, async_op, timeout
        )

    def all_to_all_single(
        self,
        output: Array,
        input: Array,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Sends block r of `input` to rank r, whose block of this rank's number in `output` receives it.

        Without split sizes, all blocks have the same size, and the arrays W*N elements. Split sizes are lengths of
        blocks along the first dimension, one for each rank, as in torch.distributed. `output` may be `input` if there
        are no split sizes.
        """
        if output_split_sizes is None and input_split_sizes is None:
            return self._run_two(Kind.ALL_TO_ALL, output, input, 0, async_op, timeout)
        to, of = output_view("output", output), input_view("input", input)
        require_same_dtype("input", of, "output", to)
        in_counts = _block_counts("input", input, of, input_split_sizes, self._world_size)
        out_counts = _block_counts("output", output, to, output_split_sizes, self._world_size)
        limit = nanoseconds_or_inherited(timeout)
        work = Work(self, of, to) if async_op else None
        request = _NO_REQUEST if work is None else work._slot
        check(
            lib.py_run_v(
                self._handle,
                of.dtype,
                of.data,
                of.elements,
                in_counts,
                to.data,
                to.elements,
                out_counts,
                limit,
                request,
            )
        )
        return work

    def all_to_all(
        self,
        output_tensor_list: Sequence[Array],
        input_tensor_list: Sequence[Array],
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Work | None:
        """Copies `input_tensor_list[r]` to rank r, into `output_tensor_list` at this rank. All of one size."""
        inputs = self._list("input_tensor_list", input_tensor_list, False)
        outputs = self._list("output_tensor_list", output_tensor_list, True)
        return self._run_list(Kind.ALL_TO_ALL, _NONE, _NONE, inputs, outputs, 0, 0, async_op, timeout)

    # ---- Implementation

    def _run(
        self, kind: int, of: View, to: View, op: int, root: int, async_op: bool, timeout: Timeout | None
    ) -> Work | None:
        dtype = of.dtype if of is not _NONE else to.dtype
        limit = nanoseconds_or_inherited(timeout)
        work = Work(self, of, to) if async_op else None
        request = _NO_REQUEST if work is None else work._slot
        arguments = of.data, of.elements, to.data, to.elements, limit, request
        try:
            check(lib.py_run(self._handle, kind, dtype, op, root, *arguments))
        except TypeError:
            name_wrong_argument(op=op, src_or_dst=root)
            raise
        return work

    def _run_two(
        self, kind: int, output: Array, given: Array, op: int, async_op: bool, timeout: Timeout | None
    ) -> Work | None:
        to, of = output_view("output", output), input_view("input", given)
        require_same_dtype("input", of, "output", to)
        return self._run(kind, of, to, op, 0, async_op, timeout)

    def _run_list(
        self,
        kind: int,
        of: View,
        to: View,
        inputs: ViewList | None,
        outputs: ViewList | None,
        op: int,
        root: int,
        async_op: bool,
        timeout: Timeout | None,
    ) -> Work | None:
        """An operation with a list of arrays for its input, its output, or both."""
        dtypes = {view.dtype for view in (of, to) if view is not _NONE}
        dtypes |= {each.dtype for each in (inputs, outputs) if each is not None}
        if len(dtypes) > 1:
            names = " and ".join(sorted(dtype_name(dtype) for dtype in dtypes))
            raise InvalidError(f"the arrays of one call must have the same dtype, these have {names}")
        pointers: list[Any] = [ffi.NULL if each is None else each.buffers for each in (inputs, outputs)]
        work = Work(self, of, to, inputs, outputs) if async_op else None
        request = _NO_REQUEST if work is None else work._slot
        limit = nanoseconds_or_inherited(timeout)
        arguments = *of[1:], *to[1:], *pointers, limit, request
        try:
            check(lib.py_run_list(self._handle, kind, dtypes.pop(), op, root, *arguments))
        except TypeError:
            name_wrong_argument(op=op, src_or_dst=root)
            raise
        return work

    def _list(self, name: str, arrays: Sequence[Array], is_written: bool) -> ViewList:
        return view_list(name, arrays, self._world_size, is_written)

    def _list_at(self, root: int, name: str, arrays: Sequence[Array] | None, is_written: bool) -> ViewList | None:
        """The list of a rooted operation, which only the root needs."""
        if self.rank() != root:
            return None
        if arrays is None:
            raise InvalidError(f"`{name}` must have one array per rank on rank {root}, the root")
        return self._list(name, arrays, is_written)


def _block_counts(name: str, array: Array, view: View, sizes: Sequence[int] | None, world_size: int) -> list[int]:
    """Elements of each rank's block; `sizes` are lengths along the first dimension."""
    described: Any = array if hasattr(array, "shape") else memoryview(array)
    shape: tuple[int, ...] = described.shape
    rows = shape[0] if shape else 1
    if sizes is None:
        if rows % world_size != 0:
            raise InvalidError(f"`{name}` has {rows} rows, which {world_size} ranks cannot share; pass split sizes")
        sizes = [rows // world_size] * world_size
    if len(sizes) != world_size or sum(sizes) != rows or min(sizes) < 0:
        raise InvalidError(
            f"the split sizes of `{name}` are {list(sizes)}; they must be {world_size} lengths that add up to {rows}"
        )
    row = view.elements // rows if rows else 0
    return [size * row for size in sizes]
