# SPDX-License-Identifier: Apache-2.0
"""The classes of torch.distributed over a group of Backplane."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._C import _distributed_c10d

from backplane._distributed import create_group
from backplane._errors import UnsupportedError
from backplane._group import ProcessGroup
from backplane.torch import Options
from backplane.torch._meeting import meet
from backplane.torch._operations import Operations

# torch's classes, whose methods and their types differ between versions of torch
_ProcessGroup: Any = _distributed_c10d.ProcessGroup
_Backend: Any = getattr(_distributed_c10d, "Backend", object)
# From 2.14 on, C++ calls the methods of a Backend in Python.
_HAS_PYTHON_BACKENDS = hasattr(_Backend, "all_gather_single")


def create(options: Any, pg_options: Any) -> Any:
    """Creates the group that torch describes in `options`. Blocks until all its ranks have called it.

    It is a ProcessGroup, or a Backend if another backend serves other devices of torch's group.
    """
    if pg_options is not None and not isinstance(pg_options, (str, Options)):
        kind = type(pg_options)
        raise TypeError(f"`pg_options` is a {kind.__module__}.{kind.__qualname__}; pass backplane.torch.Options")
    others = _other_backends()
    if others and not _HAS_PYTHON_BACKENDS:
        raise UnsupportedError(
            f"torch {torch.__version__} cannot combine the backend backplane with {', '.join(sorted(others))} in one "
            'group; use torch 2.14 or newer, or one group for each: "backplane", then new_group(backend=...)'
        )
    backend = pg_options.backend if isinstance(pg_options, Options) else pg_options
    members = list(options.global_ranks_in_group)
    rank, size = options.group_rank, options.group_size
    init_method = meet(options.store, rank, members, size, options.timeout)
    name = "world" if not members else "ranks " + ",".join(map(str, members[:8])) + ",..." * (len(members) > 8)
    group = create_group(backend or None, init_method, options.timeout, size, rank, group_name=name)
    return (TorchBackend if others else TorchProcessGroup)(group, rank, size, options)


def _other_backends() -> set[str]:
    """The backends besides this one in the group that torch makes, as in "cpu:backplane,cuda:nccl"."""
    caller: Any = sys._getframe(1)
    while caller is not None and caller.f_code.co_name != "_new_process_group_helper":
        caller = caller.f_back
    config = caller and caller.f_locals.get("backend_config")  # torch 1.13 has none
    return set(config.get_device_backend_map().values()) - {"backplane"} if config else set()


class TorchProcessGroup(Operations, _ProcessGroup):  # type: ignore[misc]
    """A group of torch, all of whose tensors are exchanged by Backplane."""

    def __init__(self, group: ProcessGroup, rank: int, size: int, options: Any) -> None:
        _ProcessGroup.__init__(self, rank, size)
        self.attach(group, rank, size, options.timeout)
        self._name = ""
        if _HAS_PYTHON_BACKENDS:  # for the questions that torch asks the backends of a group
            self._backend = TorchBackend(group, rank, size, options)
            kind = _ProcessGroup.BackendType.CUSTOM
            self._register_backend(torch.device("cpu"), kind, self._backend)
            self._set_default_backend(kind)

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name


class TorchBackend(Operations, _Backend):  # type: ignore[misc]
    """The part of a group of torch for tensors in host memory; other backends serve other devices.

    From its operations' results, torch 2.14 and 2.15 forward only `wait` and `get_future`: a receive does not tell
    its source, and `is_completed` stays False.
    """

    def __init__(self, group: ProcessGroup, rank: int, size: int, options: Any) -> None:
        _Backend.__init__(self, rank, size)
        self.attach(group, rank, size, options.timeout)
        self._options = _Backend.Options("backplane", options.timeout)
        self._options.global_ranks_in_group = options.global_ranks_in_group
        self._options.group_name = options.group_id

    @property
    def options(self) -> Any:
        return self._options

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        super().monitored_barrier(getattr(timeout, "timeout", timeout), wait_all_ranks)  # C++ passes options
