# SPDX-License-Identifier: Apache-2.0
"""Tensors as buffers of the C API."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backplane._buffers import View, ViewList, require_same_dtype
from backplane._errors import InvalidError, UnsupportedError
from backplane._native import ffi

_NAMES = {
    "bool": 0,
    "int8": 1,
    "uint8": 2,
    "int16": 3,
    "uint16": 4,
    "int32": 5,
    "uint32": 6,
    "int64": 7,
    "uint64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
    "float8_e4m3fn": 13,
    "float8_e5m2": 14,
    "complex64": 15,
    "complex128": 16,
}
# Older versions of torch lack some of them.
DTYPES: dict[torch.dtype, int] = {getattr(torch, name): code for name, code in _NAMES.items() if hasattr(torch, name)}


class Tensors:
    """The tensors of one operation: keeps them alive, and copies those that cannot be used in place.

    A tensor that is not contiguous is exchanged as a contiguous copy. `copy_back` copies results to such outputs.
    """

    __slots__ = ("_copies", "kept")

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def copy_back(self) -> None:
        copies, self._copies = self._copies, []
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)

    def copy_later(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Has `copy_back` copy `copy` to `tensor`."""
        self._copies.append((tensor, copy))

    def input(self, tensor: torch.Tensor) -> View:
        return self._view(tensor, False)

    def output(self, tensor: torch.Tensor) -> View:
        """A tensor that is written, or read and written."""
        return self._view(tensor, True)

    def list(self, name: str, tensors: Sequence[torch.Tensor], world_size: int, is_written: bool) -> ViewList:
        """One tensor per rank, all of one dtype and number of elements."""
        if len(tensors) != world_size:
            raise InvalidError(f"`{name}` has {len(tensors)} tensors; it must have one per rank, {world_size}")
        views = [self._view(tensor, is_written) for tensor in tensors]
        buffers = ffi.new("bp_buffer[]", world_size)
        for i, view in enumerate(views):
            require_same_dtype(f"{name}[0]", views[0], f"{name}[{i}]", view)
            if view.elements != views[0].elements:
                raise InvalidError(
                    f"`{name}[{i}]` has {view.elements} elements, `{name}[0]` has {views[0].elements}; all must have "
                    "the same number (all_to_all takes different ones)"
                )
            buffers[i].data = view.data
            buffers[i].count = view.elements
        return ViewList(views[0].dtype, views[0].elements, buffers, views)

    def _view(self, tensor: torch.Tensor, is_written: bool) -> View:
        code = DTYPES.get(tensor.dtype)
        if code is None or not tensor.is_cpu or tensor.layout is not torch.strided:
            _refuse(tensor)
        if not is_dense(tensor):
            copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if is_written:
                self._copies.append((tensor, copy))
            tensor = copy
        self.kept.append(tensor)
        return View(code, ffi.cast("void*", tensor.data_ptr()), tensor.numel())  # type: ignore[arg-type]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory, in this process, has its elements in order."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _refuse(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"a tensor has the layout {tensor.layout}; the backend takes dense tensors: to_dense()")
    if not tensor.is_cpu:
        raise UnsupportedError(f"a tensor is on {tensor.device}; the backend takes tensors in host memory: use .cpu()")
    raise UnsupportedError(f"a tensor has the dtype {tensor.dtype}, which cannot be exchanged; convert it")
