# SPDX-License-Identifier: Apache-2.0
"""The operations of torch.distributed on a group of Backplane."""

from __future__ import annotations

import datetime
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from backplane._buffers import View, ViewList, require_same_dtype
from backplane._errors import InvalidError, TimedOutError, _raised_by_handlers, check
from backplane._group import ProcessGroup
from backplane._group_collectives import _block_counts
from backplane._native import ffi, lib
from backplane._types import Kind
from backplane.torch._monitored_barrier import monitored_barrier
from backplane.torch._options import INHERIT, OPS_BY_ID, checked_tag, limit, one, one_list, reduction, root_of, scaled
from backplane.torch._tensors import DTYPES, Tensors, is_dense
from backplane.torch._torch_work import ENDED, FORGETS, TorchWork

_NONE = View(2, ffi.NULL, 0)
_GLOBALS = globals()
_GLOBALS_OF_TORCH = vars(torch.distributed.distributed_c10d)
_CODE = inspect.unwrap(torch.distributed.all_reduce).__code__
_ALL_REDUCE = None if "timeout" in _CODE.co_names else _CODE  # no known version sets one in its options


class Operations:
    """The operations of a group. torch calls them on lists of tensors and with objects of options."""

    group: ProcessGroup  # abort, trace, shrink
    _handle: Any

    def attach(self, group: ProcessGroup | None, rank: int, size: int, timeout: datetime.timedelta) -> None:
        """Called by the constructor, after that of torch's class. None: there is no group yet."""
        if group is not None:
            self.group = group
            self._handle = group._handle
        self._size = size
        self._rank = rank
        self._timeout = timeout
        self._sequence = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("group", "_handle"):
            raise InvalidError(
                "the group has no peers yet, because it was made with enable_reconfigure; call "
                "torch.distributed._reconfigure with the handles of all peers first"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- What torch asks about the group

    def getBackendName(self) -> str:
        return "backplane"

    def name(self) -> str:
        return "backplane"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_splitting(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def shutdown(self) -> None:
        if "group" in vars(self):
            self.group.destroy()

    def abort(self) -> None:
        self.group.abort()

    # ---- Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        # One dense tensor, which torch.distributed.all_reduce waits for at once: a call in C without objects. The
        # operation is that function's argument, because that of `opts` takes longer than all the rest.
        caller = sys._getframe(1)
        if caller.f_code is _ALL_REDUCE and len(tensors) == 1:
            given, tensor = caller.f_locals, tensors[0]
            dtype, op = DTYPES.get(tensor.dtype), OPS_BY_ID.get(id(given.get("op")))
            if given.get("async_op") is False and dtype is not None and op is not None and is_dense(tensor):
                self._sequence += 1
                status = lib.py_all_reduce_at(self._handle, dtype, op, tensor.data_ptr(), tensor.numel())
                if status or _raised_by_handlers:
                    check(status)
                return ENDED
        return self._all_reduce([one("tensors", tensors)], opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> TorchWork:
        return self._all_reduce(list(tensors), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> TorchWork:
        tensor = one("tensors", tensors)
        held = Tensors()
        view = held.input(tensor) if self._rank == root_of(opts) else held.output(tensor)
        return self._run(Kind.BROADCAST, held, _NONE, view, 0, root_of(opts), opts, [tensor])

    def reduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        tensor = one("tensors", tensors)
        held, (op, factor) = Tensors(), reduction(opts)
        of = held.input(scaled(tensor, factor))
        to = held.output(tensor) if self._rank == root_of(opts) else _NONE
        return self._run(Kind.REDUCE, held, of, to, op, root_of(opts), opts, [tensor])

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        outputs, tensor = one_list("output_tensors", output_tensors), one("input_tensors", input_tensors)
        held = Tensors()
        to = held.list("output_tensors", outputs, self._size, True)
        return self._run_list(Kind.ALL_GATHER, held, held.input(tensor), _NONE, None, to, 0, 0, opts, outputs)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TorchWork:
        held = Tensors()
        return self._run(Kind.ALL_GATHER, held, held.input(input), held.output(output), 0, 0, opts, [output])

    all_gather_single = _allgather_base  # these are the names from torch 2.14 on

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> TorchWork:
        """`output_lists[r]` has the tensors of rank r, one for each of `input_list`."""
        for i, outputs in enumerate(output_lists):
            if len(outputs) != len(input_list):
                raise InvalidError(f"`output_lists[{i}]` has {len(outputs)} tensors, `input_list` {len(input_list)}")
        held = Tensors()
        work = _work(held, [tensor for outputs in output_lists for tensor in outputs], opts)
        for i, tensor in enumerate(input_list):
            to = held.list("output_lists", [outputs[i] for outputs in output_lists], self._size, True)
            self._submit_list(work, Kind.ALL_GATHER, held.input(tensor), _NONE, None, to, 0, 0, opts)
        return work.submitted()

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        held = Tensors()
        work = _work(held, list(outputs), opts)
        for output, tensor in zip(outputs, inputs):
            self._submit(work, Kind.ALL_GATHER, held.input(tensor), held.output(output), 0, 0, opts)
        return work.submitted()

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor, root = one("input_tensors", input_tensors), root_of(opts)
        held, to = Tensors(), None
        outputs: list[torch.Tensor] = []
        if self._rank == root:
            outputs = one_list("output_tensors", output_tensors)
            to = held.list("output_tensors", outputs, self._size, True)
        return self._run_list(Kind.GATHER, held, held.input(tensor), _NONE, None, to, 0, root, opts, outputs)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor, root = one("output_tensors", output_tensors), root_of(opts)
        held, of = Tensors(), None
        if self._rank == root:
            of = held.list("input_tensors", one_list("input_tensors", input_tensors), self._size, False)
        return self._run_list(Kind.SCATTER, held, _NONE, held.output(tensor), of, None, 0, root, opts, [tensor])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor = one("output_tensors", output_tensors)
        held, (op, factor) = Tensors(), reduction(opts)
        inputs = [scaled(each, factor) for each in one_list("input_tensors", input_tensors)]
        of = held.list("input_tensors", inputs, self._size, False)
        return self._run_list(Kind.REDUCE_SCATTER, held, _NONE, held.output(tensor), of, None, op, 0, opts, [tensor])

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TorchWork:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        held, (op, factor) = Tensors(), reduction(opts)
        work = _work(held, list(outputs), opts)
        for output, tensor in zip(outputs, inputs):
            of = held.input(scaled(tensor, factor))
            self._submit(work, Kind.REDUCE_SCATTER, of, held.output(output), op, 0, opts)
        return work.submitted()

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> TorchWork:
        """Split sizes are lengths along the first dimension; without any, all blocks have one size."""
        held = Tensors()
        to, of = held.output(output), held.input(input)
        if not output_split_sizes and not input_split_sizes:
            return self._run(Kind.ALL_TO_ALL, held, of, to, 0, 0, opts, [output])
        in_counts = _block_counts("input", input, of, input_split_sizes or None, self._size)
        out_counts = _block_counts("output", output, to, output_split_sizes or None, self._size)
        return self._run_v(held, of, in_counts, to, out_counts, opts, [output])

    all_to_all_single = alltoall_base

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        """One tensor per rank, of any sizes."""
        for name, tensors in (("output_tensors", output_tensors), ("input_tensors", input_tensors)):
            if len(tensors) != self._size:
                raise InvalidError(f"`{name}` has {len(tensors)} tensors; it must have one per rank, {self._size}")
        given = torch.cat([tensor.detach().reshape(-1) for tensor in input_tensors])
        blocks = torch.empty(sum(tensor.numel() for tensor in output_tensors), dtype=output_tensors[0].dtype)
        in_counts = [tensor.numel() for tensor in input_tensors]
        out_counts = [tensor.numel() for tensor in output_tensors]
        held = Tensors()
        of, to = held.input(given), held.output(blocks)
        begin = 0
        for tensor in output_tensors:
            held.copy_later(tensor, blocks[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()
        return self._run_v(held, of, in_counts, to, out_counts, opts, list(output_tensors))

    def barrier(self, opts: Any = None) -> TorchWork:
        try:
            return self._run(Kind.BARRIER, Tensors(), _NONE, _NONE, 0, 0, opts, [])
        except TimedOutError as error:  # torch's tests, and programs that search texts, look for " timeout "
            error.args = (f"{error}; the timeout of a group is an argument of init_process_group and new_group",)
            raise

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self.group, self._timeout if timeout is None else timeout, wait_all_ranks)

    # ---- Messages

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> TorchWork:
        held = Tensors()
        view = held.input(one("tensors", tensors))
        work = _work(held, [], None)
        check(lib.py_send(self._handle, *view, dstRank, checked_tag(tag), INHERIT, work.slot()))
        return work.submitted()

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> TorchWork:
        tensor = one("tensors", tensors)
        held = Tensors()
        view = held.output(tensor)
        work = _work(held, [tensor], None, is_waited_for=False)  # a request has the source
        check(lib.py_recv(self._handle, *view, srcRank, checked_tag(tag), INHERIT, ffi.NULL, work.slot()))
        return work.submitted()

    def recv_anysource(self, tensors: Any, tag: int = 0) -> TorchWork:
        return self.recv(tensors, -1, tag)

    # ---- Implementation

    def _all_reduce(self, tensors: list[torch.Tensor], opts: Any) -> TorchWork:
        held, (op, factor) = Tensors(), reduction(opts)
        work = _work(held, tensors, opts)
        for tensor in tensors:
            to = held.output(tensor)
            of = to if factor is None else held.input(scaled(tensor, factor))
            self._submit(work, Kind.ALL_REDUCE, of, to, op, 0, opts)
        return work.submitted()

    def _run(
        self, kind: int, held: Tensors, of: View, to: View, op: int, root: int, opts: Any, results: list[torch.Tensor]
    ) -> TorchWork:
        work = _work(held, results, opts)
        self._submit(work, kind, of, to, op, root, opts)
        return work.submitted()

    def _submit(self, work: TorchWork, kind: int, of: View, to: View, op: int, root: int, opts: Any) -> None:
        if of is not _NONE and to is not _NONE:
            require_same_dtype("input", of, "output", to)
        self._sequence += 1
        dtype = to.dtype if of is _NONE else of.dtype
        arguments = *of[1:], *to[1:], limit(opts)
        check(lib.py_run(self._handle, kind, dtype, op, root, *arguments, work.slot()))

    def _run_list(
        self,
        kind: int,
        held: Tensors,
        of: View,
        to: View,
        inputs: ViewList | None,
        outputs: ViewList | None,
        op: int,
        root: int,
        opts: Any,
        results: list[torch.Tensor],
    ) -> TorchWork:
        work = _work(held, results, opts)
        self._submit_list(work, kind, of, to, inputs, outputs, op, root, opts)
        return work.submitted()

    def _submit_list(
        self,
        work: TorchWork,
        kind: int,
        of: View,
        to: View,
        inputs: ViewList | None,
        outputs: ViewList | None,
        op: int,
        root: int,
        opts: Any,
    ) -> None:
        given = [view for view in (of, to) if view is not _NONE]
        given += [each.views[0] for each in (inputs, outputs) if each is not None]
        for view in given:
            require_same_dtype("input", given[0], "output", view)
        self._sequence += 1
        pointers: list[Any] = [ffi.NULL if each is None else each.buffers for each in (inputs, outputs)]
        arguments = *of[1:], *to[1:], *pointers, limit(opts)
        check(lib.py_run_list(self._handle, kind, given[0].dtype, op, root, *arguments, work.slot()))

    def _run_v(
        self,
        held: Tensors,
        of: View,
        in_counts: list[int],
        to: View,
        out_counts: list[int],
        opts: Any,
        results: list[torch.Tensor],
    ) -> TorchWork:
        require_same_dtype("input", of, "output", to)
        work = _work(held, results, opts)
        self._sequence += 1
        arguments = of.dtype, *of[1:], in_counts, *to[1:], out_counts, limit(opts)
        check(lib.py_run_v(self._handle, *arguments, work.slot()))
        return work.submitted()


def _work(held: Tensors, results: list[torch.Tensor], opts: Any, is_waited_for: bool | None = None) -> TorchWork:
    """The result of an operation. It is performed if the caller waits for it at once, which takes half the time."""
    is_async = getattr(opts, "asyncOp", None)
    if is_async is not None:
        is_waited_for = not is_async
        if not FORGETS:
            return TorchWork(held, results, is_waited_for)
    caller: Any = sys._getframe(1)
    while caller is not None and caller.f_globals is _GLOBALS:
        caller = caller.f_back
    if caller is None or caller.f_globals is not _GLOBALS_OF_TORCH:  # C++
        return TorchWork(held, results, bool(is_waited_for), is_for_cpp=True)
    if is_waited_for is None:
        is_waited_for = caller.f_locals.get("async_op", caller.f_code.co_name != "send") is False
    return TorchWork(held, results, is_waited_for)
