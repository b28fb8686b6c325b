# SPDX-License-Identifier: Apache-2.0
"""The arguments and objects of options that torch hands to the operations of a group."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch._C import _distributed_c10d

from backplane._errors import InvalidError, UnsupportedError
from backplane._native import lib
from backplane._types import ReduceOp, nanoseconds
from backplane.torch._monitored_barrier import TAG

_ReduceOp: Any = _distributed_c10d.ReduceOp
_KINDS: Any = _ReduceOp.RedOpType
_REDUCE_OPS: dict[Any, int] = {getattr(_KINDS, op.name): int(op) for op in ReduceOp if hasattr(_KINDS, op.name)}
# torch.distributed.ReduceOp.SUM and others by their identity, because their hash takes longer than a small operation.
# They are kept, so that no other object has their identity.
_OBJECTS = {op: getattr(_ReduceOp, op.name) for op in ReduceOp if hasattr(_ReduceOp, op.name)}
OPS_BY_ID: dict[int, int] = {id(each): int(op) for op, each in _OBJECTS.items()}
INHERIT: int = lib.BP_INHERIT_TIMEOUT
_ZERO = datetime.timedelta(0)


def one(name: str, tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidError(f"`{name}` has {len(tensors)} tensors; pass one")
    found: torch.Tensor = tensors[0]
    return found


def one_list(name: str, lists: Any) -> list[torch.Tensor]:
    """The list of tensors, one per rank, that torch hands over in a list."""
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise InvalidError(f"`{name}` has {len(lists)} lists of tensors; pass one")
    return list(lists[0])


def limit(opts: Any) -> int:
    timeout = getattr(opts, "timeout", None)
    return INHERIT if timeout is None or timeout < _ZERO else nanoseconds(timeout)


def root_of(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def reduction(opts: Any) -> tuple[int, Any]:
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


def scaled(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    return tensor if factor is None else tensor.detach() * factor


def checked_tag(tag: int) -> int:
    if not 0 <= tag < TAG:
        raise InvalidError(f"the tag is {tag}; tags are 0 to 2**32 - 2")
    return tag
