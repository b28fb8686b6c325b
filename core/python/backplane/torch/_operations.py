# SPDX-License-Identifier: Apache-2.0
"""The operations of torch.distributed on a group of Backplane."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d

from backplane._buffers import View, ViewList, require_same_dtype
from backplane._errors import InvalidError, UnsupportedError, check
from backplane._group import ProcessGroup
from backplane._group_collectives import _block_counts
from backplane._native import ffi, lib
from backplane._types import Kind, ReduceOp, nanoseconds
from backplane.torch._monitored_barrier import TAG, monitored_barrier
from backplane.torch._tensors import Tensors
from backplane.torch._torch_work import TorchWork

_NONE = View(2, ffi.NULL, 0)
_KINDS: Any = _distributed_c10d.ReduceOp.RedOpType
_REDUCE_OPS: dict[Any, int] = {getattr(_KINDS, op.name): int(op) for op in ReduceOp if hasattr(_KINDS, op.name)}
_INHERIT: int = lib.BP_INHERIT_TIMEOUT
_GLOBALS = globals()
_ZERO = datetime.timedelta(0)


class Operations:
    """The operations of a group. torch calls them on lists of tensors and with objects of options."""

    def attach(self, group: ProcessGroup, rank: int, size: int, timeout: datetime.timedelta) -> None:
        """Called by the constructor, after that of torch's class."""
        self.group = group  # the backplane.ProcessGroup: abort, trace, shrink
        self._handle = group._handle
        self._size = size
        self._rank = rank
        self._timeout = timeout
        self._sequence = 0

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
        self.group.destroy()

    def abort(self) -> None:
        self.group.abort()

    # ---- Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        return self._all_reduce([_one("tensors", tensors)], opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> TorchWork:
        return self._all_reduce(list(tensors), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> TorchWork:
        tensor = _one("tensors", tensors)
        held = Tensors()
        view = held.input(tensor) if self._rank == _root(opts) else held.output(tensor)
        return self._run(Kind.BROADCAST, held, _NONE, view, 0, _root(opts), opts, [tensor])

    def reduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        tensor = _one("tensors", tensors)
        held, (op, factor) = Tensors(), _reduction(opts)
        of = held.input(_scaled(tensor, factor))
        to = held.output(tensor) if self._rank == _root(opts) else _NONE
        return self._run(Kind.REDUCE, held, of, to, op, _root(opts), opts, [tensor])

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        outputs, tensor = _one_list("output_tensors", output_tensors), _one("input_tensors", input_tensors)
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
        work = TorchWork(held, [tensor for outputs in output_lists for tensor in outputs], _is_waited_for(opts))
        for i, tensor in enumerate(input_list):
            to = held.list("output_lists", [outputs[i] for outputs in output_lists], self._size, True)
            self._submit_list(work, Kind.ALL_GATHER, held.input(tensor), _NONE, None, to, 0, 0, opts)
        return work.submitted()

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        held = Tensors()
        work = TorchWork(held, list(outputs), _is_waited_for(opts))
        for output, tensor in zip(outputs, inputs):
            self._submit(work, Kind.ALL_GATHER, held.input(tensor), held.output(output), 0, 0, opts)
        return work.submitted()

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor, root = _one("input_tensors", input_tensors), _root(opts)
        held, to = Tensors(), None
        outputs: list[torch.Tensor] = []
        if self._rank == root:
            outputs = _one_list("output_tensors", output_tensors)
            to = held.list("output_tensors", outputs, self._size, True)
        return self._run_list(Kind.GATHER, held, held.input(tensor), _NONE, None, to, 0, root, opts, outputs)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor, root = _one("output_tensors", output_tensors), _root(opts)
        held, of = Tensors(), None
        if self._rank == root:
            of = held.list("input_tensors", _one_list("input_tensors", input_tensors), self._size, False)
        return self._run_list(Kind.SCATTER, held, _NONE, held.output(tensor), of, None, 0, root, opts, [tensor])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        tensor = _one("output_tensors", output_tensors)
        held, (op, factor) = Tensors(), _reduction(opts)
        inputs = [_scaled(each, factor) for each in _one_list("input_tensors", input_tensors)]
        of = held.list("input_tensors", inputs, self._size, False)
        return self._run_list(Kind.REDUCE_SCATTER, held, _NONE, held.output(tensor), of, None, op, 0, opts, [tensor])

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TorchWork:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        held, (op, factor) = Tensors(), _reduction(opts)
        work = TorchWork(held, list(outputs), _is_waited_for(opts))
        for output, tensor in zip(outputs, inputs):
            of = held.input(_scaled(tensor, factor))
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
        return self._run(Kind.BARRIER, Tensors(), _NONE, _NONE, 0, 0, opts, [])

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self.group, self._timeout if timeout is None else timeout, wait_all_ranks)

    # ---- Messages

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> TorchWork:
        held = Tensors()
        view = held.input(_one("tensors", tensors))
        work = TorchWork(held, [], _is_waited_for(None))
        check(lib.py_send(self._handle, *view, dstRank, _tag(tag), _INHERIT, work.slot()))
        return work.submitted()

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> TorchWork:
        tensor = _one("tensors", tensors)
        held = Tensors()
        view = held.output(tensor)
        work = TorchWork(held, [tensor], False)  # a request has the source
        check(lib.py_recv(self._handle, *view, srcRank, _tag(tag), _INHERIT, ffi.NULL, work.slot()))
        return work.submitted()

    def recv_anysource(self, tensors: Any, tag: int = 0) -> TorchWork:
        return self.recv(tensors, -1, tag)

    # ---- Implementation

    def _all_reduce(self, tensors: list[torch.Tensor], opts: Any) -> TorchWork:
        held, (op, factor) = Tensors(), _reduction(opts)
        work = TorchWork(held, tensors, _is_waited_for(opts))
        for tensor in tensors:
            to = held.output(tensor)
            of = to if factor is None else held.input(_scaled(tensor, factor))
            self._submit(work, Kind.ALL_REDUCE, of, to, op, 0, opts)
        return work.submitted()

    def _run(
        self, kind: int, held: Tensors, of: View, to: View, op: int, root: int, opts: Any, results: list[torch.Tensor]
    ) -> TorchWork:
        work = TorchWork(held, results, _is_waited_for(opts))
        self._submit(work, kind, of, to, op, root, opts)
        return work.submitted()

    def _submit(self, work: TorchWork, kind: int, of: View, to: View, op: int, root: int, opts: Any) -> None:
        if of is not _NONE and to is not _NONE:
            require_same_dtype("input", of, "output", to)
        self._sequence += 1
        dtype = to.dtype if of is _NONE else of.dtype
        arguments = *of[1:], *to[1:], _limit(opts)
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
        work = TorchWork(held, results, _is_waited_for(opts))
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
        arguments = *of[1:], *to[1:], *pointers, _limit(opts)
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
        work = TorchWork(held, results, _is_waited_for(opts))
        self._sequence += 1
        arguments = of.dtype, *of[1:], in_counts, *to[1:], out_counts, _limit(opts)
        check(lib.py_run_v(self._handle, *arguments, work.slot()))
        return work.submitted()


def _one(name: str, tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidError(f"`{name}` has {len(tensors)} tensors; pass one")
    found: torch.Tensor = tensors[0]
    return found


def _one_list(name: str, lists: Any) -> list[torch.Tensor]:
    """The list of tensors, one per rank, that torch hands over in a list."""
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise InvalidError(f"`{name}` has {len(lists)} lists of tensors; pass one")
    return list(lists[0])


def _is_waited_for(opts: Any) -> bool:
    """Whether the caller waits for the operation at once, so that it may block. It then takes half the time."""
    is_async = getattr(opts, "asyncOp", None)
    if is_async is not None:
        return not is_async
    # Versions of torch below 2.8 do not tell: the caller is the function of torch.distributed, or C++.
    caller: Any = sys._getframe(1)
    while caller is not None and caller.f_globals is _GLOBALS:
        caller = caller.f_back
    if caller is None or caller.f_globals.get("__name__") != "torch.distributed.distributed_c10d":
        return False
    return caller.f_locals.get("async_op", caller.f_code.co_name != "send") is False


def _limit(opts: Any) -> int:
    timeout = getattr(opts, "timeout", None)
    return _INHERIT if timeout is None or timeout < _ZERO else nanoseconds(timeout)


def _root(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def _reduction(opts: Any) -> tuple[int, Any]:
    """The reduce operation, and the factor of PREMUL_SUM, the operation that has one."""
    if opts is None:
        return ReduceOp.SUM, None
    op = getattr(opts, "reduceOp", opts)
    kind = getattr(op, "op", op)
    code = _REDUCE_OPS.get(kind)
    if code is not None:
        return code, None
    if kind.name != "PREMUL_SUM":
        raise UnsupportedError(f"the backend has no reduce operation {kind.name}")
    state = op.__getstate__()
    if not state:
        raise UnsupportedError(f"torch {torch.__version__} does not tell the factor of PREMUL_SUM; multiply, and sum")
    return ReduceOp.SUM, state[1]


def _scaled(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    return tensor if factor is None else tensor.detach() * factor


def _tag(tag: int) -> int:
    if not 0 <= tag < TAG:
        raise InvalidError(f"the tag is {tag}; tags are 0 to 2**32 - 2")
    return tag
