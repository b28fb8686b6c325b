# SPDX-License-Identifier: Apache-2.0
"""Gradients of data-parallel training: every rank computes them from its own samples, all need their sum or mean.

    from backplane.gradients import GradientReducer

    with GradientReducer(group, "mean") as reducer:
        for layer in reversed(layers):
            reducer.add(layer.name, layer.gradient())  # reduced while the next one is computed
        reducer.finish()                               # each array now has the mean

Arrays are numpy's.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

from backplane._buffers import output_view
from backplane._distributed import get_default_group
from backplane._errors import BackplaneError, CancelledError, InvalidError
from backplane._group import ProcessGroup
from backplane._memory import empty
from backplane._types import ReduceOp, Timeout
from backplane._work import Work

__all__ = ["GradientReducer", "ReducedGradient"]

_numpy: Any = importlib.import_module("numpy")
_METHODS = {"sum": ReduceOp.SUM, "mean": ReduceOp.AVG}


def reduce_op_of(name: str) -> ReduceOp:
    """The operation of a method, "sum" or "mean", in any case."""
    try:
        return _METHODS[name.lower()]
    except KeyError:
        raise InvalidError(f"the reduce method is {name!r}; it must be 'sum' or 'mean'") from None


class _Pack:
    """Gradients of one dtype that are reduced together."""

    def __init__(self, number: int) -> None:
        self.number = number  # in the life of the reducer
        self.parameters: list[str] = []
        self.gradients: list[Any] = []
        self.nbytes = 0
        self.array: Any = None
        self.digests: Any = None
        self.works: tuple[Work, ...] = ()
        self.is_done = False


class ReducedGradient:
    """A gradient that was added to a reducer."""

    def __init__(self, reducer: GradientReducer, pack: _Pack, gradient: Any) -> None:
        self._reducer = reducer
        self._pack = pack
        self._gradient = gradient

    def is_completed(self) -> bool:
        """True if `wait` will not block. Does not block."""
        return self._pack.is_done or (bool(self._pack.works) and all(work.is_completed() for work in self._pack.works))

    def wait(self) -> Any:
        """Blocks until the gradient is reduced, and returns the array that was added, which has the result.

        Raises the reducer's failure. InvalidError if the gradient's pack is still being filled.
        """
        self._reducer._end(self._pack)
        return self._gradient

    get = wait


class GradientReducer:
    """Reduces gradients in packs while the caller computes the next ones.

    All ranks of `group` make one, in the same order as other groups; blocks until they have. The reduction uses a group
    of its own with the same ranks. From `add` on, until the gradient has been waited for, its array must stay
    untouched; the result is written to it. A round is everything that is added up to `finish`. All ranks add the same
    parameters, with the same dtypes and sizes, in the same order. Otherwise the reducer fails on all ranks with
    InvalidError, which names a rank and the pack, no gradient of that pack is changed, and later calls raise the same.
    One thread uses a reducer. It holds the memory of one round.

    Args:
        method: "sum" or "mean". The mean of integers is rounded toward zero.
        pack_bytes: a pack with more bytes than this is sent at once.
        backend: of the reduction; None: the group's.
        timeout: in seconds, of each operation; None: the group's.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        method: str = "sum",
        pack_bytes: int = 10 * 1024 * 1024,
        backend: str | None = None,
        timeout: Timeout | None = None,
    ) -> None:
        self._op = reduce_op_of(method)
        self._pack_bytes = pack_bytes
        chosen = get_default_group() if group is None else group
        if chosen.rank() < 0:
            raise InvalidError(
                f"this rank is not a member of group '{chosen.name}' and has no gradients to reduce in it"
            )
        self._group = (
            chosen.new_group(range(chosen.size()), timeout=timeout)
            if backend is None
            else chosen.with_backend(backend, timeout)
        )
        options = self._group.all_gather_object([method.lower(), pack_bytes])
        for rank, each in enumerate(options):
            if each != options[0]:
                raise InvalidError(
                    f"the gradient reducer has method and pack bytes {each} on rank {rank}, and {options[0]} on rank "
                    "0; all ranks must ask for the same"
                )
        self._filling: dict[str, _Pack] = {}
        self._sent: list[_Pack] = []
        self._round: set[str] = set()
        self._packs = 0
        self._spare: dict[tuple[str, int], list[Any]] = {}
        self._failure: BackplaneError | None = None

    def __enter__(self) -> GradientReducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reducer. Gradients that are not reduced fail with CancelledError."""
        if self._failure is None:
            self._failure = CancelledError("the gradient reducer was closed before this gradient was reduced")
        self._group.destroy()

    def add(self, parameter: str, gradient: Any) -> ReducedGradient:
        """Adds a gradient to the pack of its dtype, and sends the pack if it is full. Does not wait for other ranks.

        InvalidError if the parameter was added already in this round.
        """
        self._raise_failure()
        output_view(f"the gradient of '{parameter}'", gradient)
        if parameter in self._round:
            raise InvalidError(f"the gradient of '{parameter}' was added twice in one round")
        self._round.add(parameter)
        dtype = gradient.dtype.name
        pack = self._filling.get(dtype)
        if pack is None:
            pack = self._filling[dtype] = _Pack(-1)
        pack.parameters.append(f"{parameter} ({dtype} x {gradient.size})")
        pack.gradients.append(gradient)
        pack.nbytes += gradient.nbytes
        if pack.nbytes > self._pack_bytes:
            del self._filling[dtype]
            self._send(pack)
        return ReducedGradient(self, pack, gradient)

    def flush(self) -> None:
        """Sends the packs that are not full, in the order of their dtypes. Does not wait for other ranks."""
        self._raise_failure()
        for dtype in sorted(self._filling):
            self._send(self._filling.pop(dtype))

    def finish(self) -> None:
        """Ends the round: flushes, and blocks until all its gradients are reduced. Raises the reducer's failure."""
        self.flush()
        for pack in list(self._sent):
            self._end(pack)
        self._round.clear()
        self._compare_ends()

    def _send(self, pack: _Pack) -> None:
        pack.number = self._packs
        self._packs += 1
        dtype, count = pack.gradients[0].dtype, sum(gradient.size for gradient in pack.gradients)
        spare = self._spare.get((dtype.name, count))
        pack.array = spare.pop() if spare else empty(count, dtype, self._group)
        _numpy.concatenate([gradient.reshape(-1) for gradient in pack.gradients], out=pack.array)
        pack.digests = _numpy.zeros(self._group.size(), "u8")
        text = "\n".join([str(pack.number), *pack.parameters]).encode()
        digest = _numpy.frombuffer(hashlib.sha256(text).digest()[:8], "u8")
        try:
            compared = self._group.all_gather_into_tensor(pack.digests, digest, async_op=True)
            reduced = self._group.all_reduce(pack.array, self._op, async_op=True)
        except BackplaneError as failure:
            self._failure = failure
            raise
        assert compared is not None
        assert reduced is not None
        pack.works = compared, reduced
        self._sent.append(pack)

    def _end(self, pack: _Pack) -> None:
        """Waits for a pack, and writes its gradients."""
        if pack.is_done:
            return
        self._raise_failure()
        if not pack.works:
            raise InvalidError(
                f"the gradient of {pack.parameters[0]} is in a pack that is not full; call flush or finish before "
                "waiting"
            )
        try:
            pack.works[0].wait()
            self._compare(pack.digests, f"packed other gradients than rank 0 in pack {pack.number}, here {_span(pack)}")
            pack.works[1].wait()
        except BackplaneError as failure:
            self._failure = failure
            raise
        begin = 0
        for gradient in pack.gradients:
            gradient.reshape(-1)[:] = pack.array[begin : begin + gradient.size]
            begin += gradient.size
        pack.is_done = True
        self._sent.remove(pack)
        self._spare.setdefault((pack.array.dtype.name, begin), []).append(pack.array)
        pack.array, pack.works, pack.gradients = None, (), []

    def _compare_ends(self) -> None:
        """A rank that has sent other packs before the end of its round."""
        ends = _numpy.zeros(self._group.size(), "u8")
        try:
            self._group.all_gather_into_tensor(ends, _numpy.array([self._packs], "u8"))
            self._compare(ends, f"ended its round after another number of packs than rank 0, here {self._packs}")
        except BackplaneError as failure:
            self._failure = failure
            raise

    def _compare(self, values: Any, difference: str) -> None:
        for rank, value in enumerate(values):
            if value != values[0]:
                raise InvalidError(
                    f"rank {rank} {difference}; all ranks must add the same gradients in the same order, and then "
                    "finish"
                )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _span(pack: _Pack) -> str:
    first, last = pack.parameters[0], pack.parameters[-1]
    return first if first == last else f"{first} to {last}"
