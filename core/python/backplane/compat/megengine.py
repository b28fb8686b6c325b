# SPDX-License-Identifier: Apache-2.0
"""The names of megengine.distributed.helper, for numpy's arrays."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from backplane._buffers import input_view
from backplane._distributed import get_default_group, is_initialized
from backplane._errors import CancelledError, InvalidError
from backplane._group import ProcessGroup
from backplane.gradients import GradientReducer, ReducedGradient, reduce_op_of

__all__ = [
    "AllreduceCallback",
    "bcast_list_",
    "get_offsets",
    "is_distributed",
    "pack_allreduce_split",
    "param_pack_concat",
    "param_pack_split",
    "synchronized",
]

_numpy: Any = importlib.import_module("numpy")
F = TypeVar("F", bound=Callable[..., Any])


class AllreduceCallback:
    """``callback(parameter, gradient)`` returns a future, whose `get` returns the reduced array.

    `flush` at the end of a backward pass reduces what is left; MegEngine's gradient manager calls it by itself.
    """

    def __init__(self, reduce_method: str, group: ProcessGroup | None = None, backend: str | None = None) -> None:
        self._reducer = GradientReducer(group, reduce_method, backend=backend)
        self._added = 0

    def __call__(self, param: object, grad: Any) -> ReducedGradient:
        """`param`: its name, or an object with the attribute `name`; others are numbered."""
        name = param if isinstance(param, str) else getattr(param, "name", None)
        if not isinstance(name, str) or not name:
            name = f"parameter {self._added}"
        self._added += 1
        return self._reducer.add(name, grad)

    def flush(self) -> None:
        """Blocks until all gradients are reduced."""
        self._reducer.finish()
        self._added = 0

    def close(self) -> None:
        """Ends the reducer."""
        self._reducer.close()


def get_offsets(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Positions in a pack of arrays of these shapes, in elements: [begin0, end0, begin1, end1, ...]."""
    offsets, end = [], 0
    for shape in shapes:
        offsets += [end, end + math.prod(shape)]
        end = offsets[-1]
    return offsets


def param_pack_concat(inps: Sequence[Any], offsets: object, offsets_val: Sequence[int]) -> Any:
    """One array of the elements of all. `offsets` is not used; `offsets_val`: those of `get_offsets`."""
    sizes = [end - begin for begin, end in zip(offsets_val[::2], offsets_val[1::2])]
    if sizes != [array.size for array in inps]:
        raise InvalidError(f"the arrays have {[array.size for array in inps]} elements, the offsets {sizes}")
    return _numpy.concatenate([_numpy.reshape(array, -1) for array in inps])


def param_pack_split(inp: Any, offsets: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[Any]:
    """The arrays of a pack, as views. A scalar has the shape (1,)."""
    pairs = zip(offsets[::2], offsets[1::2])
    return [inp[begin:end].reshape(tuple(shape) or (1,)) for (begin, end), shape in zip(pairs, shapes)]


def pack_allreduce_split(
    pack_list: Sequence[Any], shapes: Sequence[Sequence[int]], group: ProcessGroup | None, reduce_method: str
) -> list[Any]:
    """Reduces arrays of one dtype in one operation, and returns the results. "sum" or "mean"."""
    offsets = get_offsets(shapes)
    pack = param_pack_concat(pack_list, None, offsets)
    (get_default_group() if group is None else group).all_reduce(pack, reduce_op_of(reduce_method))
    return param_pack_split(pack, offsets, shapes)


def bcast_list_(inps: Sequence[Any], group: ProcessGroup | None = None, root: int = 0) -> None:
    """Broadcasts each array of a list from rank `root`, in place. All ranks pass arrays of the same sizes."""
    chosen = get_default_group() if group is None else group
    for array in inps:
        input_view("inps", array)
        chosen.broadcast(array, root)


def is_distributed() -> bool:
    """True if there is a default group."""
    return is_initialized()


def synchronized(func: F) -> F:
    """A decorator: the function returns once it has returned on all ranks, if there is a default group."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        failure, result = None, None
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            failure = error
        if is_initialized():
            ends = get_default_group().all_gather_object(None if failure is None else f"{failure!r}")
            for rank, end in enumerate(ends):
                if end is not None and failure is None:
                    failure = CancelledError(f"rank {rank} did not finish a synchronized function: {end}")
                    failure.peer_rank = rank
        if failure is not None:
            raise failure
        return result

    return wrapper  # type: ignore[return-value]
