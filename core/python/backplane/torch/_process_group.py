# SPDX-License-Identifier: Apache-2.0
"""The classes of torch.distributed over a group of Backplane."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._C import _distributed_c10d

from backplane._distributed import create_group
from backplane._errors import InvalidError, UnsupportedError
from backplane._group import ProcessGroup
from backplane._ports import free_port
from backplane.torch import Options
from backplane.torch._meeting import meet, own_address
from backplane.torch._operations import Operations
from backplane.torch._torch_work import ENDED, TorchWork

# torch's classes, whose methods and their types differ between versions of torch
_ProcessGroup: Any = _distributed_c10d.ProcessGroup
_Backend: Any = getattr(_distributed_c10d, "Backend", object)
# From 2.14 on, C++ calls the methods of a Backend in Python.
_HAS_PYTHON_BACKENDS = hasattr(_Backend, "all_gather_single")
_SHRINK_ABORT = 1  # the flag of torch.distributed.shrink_group


class Origin(NamedTuple):
    """What a group was made of, and what groups made from it inherit."""

    store: Any
    timeout: datetime.timedelta
    plugin: str  # empty: that of the environment
    members: list[int]  # global ranks; empty: the default group
    name: str  # torch's

    def start(self, rank: int, size: int) -> ProcessGroup:
        """Blocks until all members have called it."""
        init_method = meet(self.store, rank, self.members, size, self.timeout)
        shown = ",".join(map(str, self.members[:8])) + ",..." * (len(self.members) > 8)
        name = f"ranks {shown}" if shown else "world"
        return create_group(self.plugin or None, init_method, self.timeout, size, rank, group_name=name)

    def of_some(self, ranks: Sequence[int], store: Any, timeout: datetime.timedelta, name: str) -> Origin:
        """That of a group of these ranks of the group."""
        members = [self.members[rank] if self.members else rank for rank in ranks]
        return Origin(store, timeout, self.plugin, members, name)


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
    plugin = pg_options.backend if isinstance(pg_options, Options) else pg_options
    members = list(options.global_ranks_in_group)
    origin = Origin(options.store, options.timeout, plugin or "", members, options.group_id)
    rank, size = options.group_rank, options.group_size
    if getattr(options, "enable_reconfigure", False) and not others:
        return TorchProcessGroup(None, rank, size, origin)
    return (TorchBackend if others else TorchProcessGroup)(origin.start(rank, size), rank, size, origin)


def _other_backends() -> set[str]:
    """The backends besides this one in the group that torch makes, as in "cpu:backplane,cuda:nccl"."""
    caller: Any = sys._getframe(1)
    while caller is not None and caller.f_code.co_name != "_new_process_group_helper":
        caller = caller.f_back
    config = caller and caller.f_locals.get("backend_config")  # torch 1.13 has none
    return set(config.get_device_backend_map().values()) - {"backplane"} if config else set()


class TorchProcessGroup(Operations, _ProcessGroup):  # type: ignore[misc]
    """A group of torch, all of whose tensors are exchanged by Backplane.

    Without a `group`, it has one from its first `reconfigure` on.
    """

    def __init__(self, group: ProcessGroup | None, rank: int, size: int, origin: Origin) -> None:
        self._origin = origin
        self._name = ""
        self._handle_of_peer = ""
        if not _HAS_PYTHON_BACKENDS:
            _ProcessGroup.__init__(self, rank, size)
            self.attach(group, rank, size, origin.timeout)
            return
        _ProcessGroup.__init__(self, origin.store, rank, size)
        self.attach(group, rank, size, origin.timeout)
        self._backend = TorchBackend(group, rank, size, origin)  # for the questions that torch asks the backends
        kind = _ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cpu"), kind, self._backend)
        self._set_default_backend(kind)

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    if _HAS_PYTHON_BACKENDS:  # C++ asks for them, as `reconfigure` changes them
        getRank = Operations.rank
        getSize = Operations.size

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> TorchProcessGroup | None:
        """A group of these ranks of the group, in their order; None on other ranks. Blocks until they have called it.

        `opts` of torch's class are those that a split of this group's Backend takes.
        """
        ranks = list(new_ranks)
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{','.join(map(str, ranks))}"
        store = _distributed_c10d.PrefixStore(f"{name}/", self._origin.store)
        origin = self._origin.of_some(ranks, store, timeout or self._timeout, name)
        if isinstance(opts, Options):
            origin = origin._replace(plugin=opts.backend)
        rank, size = ranks.index(self._rank), len(ranks)
        group = TorchProcessGroup(origin.start(rank, size), rank, size, origin)
        group._set_group_name(name)
        group._set_group_desc(group_desc or "undefined")
        return group

    # ---- The peers of a group may change

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def get_reconfigure_handle(self) -> str:
        """A new address of this process, at which the others meet if it becomes rank 0."""
        host = own_address(self._origin.store)
        self._handle_of_peer = f"tcp://{host}:{free_port(host)}"
        return self._handle_of_peer

    def reconfigure(self, opts: Any) -> TorchWork:
        """Replaces the peers by those with these handles, each of which calls it. Blocks until all have.

        A list has the handles in the order of ranks; a set is sorted. The timeout of `opts`, if there is one, becomes
        that of the group. Operations in flight fail.
        """
        handles = sorted(opts.handles) if isinstance(opts.handles, (set, frozenset)) else list(opts.handles)
        if self._handle_of_peer not in handles or len(set(handles)) < len(handles):
            raise InvalidError(
                f"reconfigure: `handles` are {handles}; they must differ, and contain {self._handle_of_peer!r}, the "
                "last result of get_reconfigure_handle in this process"
            )
        if opts.hints:
            raise InvalidError(f"reconfigure: `hints` are {dict(opts.hints)}; the backend takes none")
        self.shutdown()
        timeout = self._timeout if opts.timeout is None else opts.timeout
        rank, size = handles.index(self._handle_of_peer), len(handles)
        name = f"reconfigured {opts.uuid}"
        group = create_group(self._origin.plugin or None, handles[0], timeout, size, rank, group_name=name)
        self.attach(group, rank, size, timeout)
        self._backend.attach(group, rank, size, timeout)
        return ENDED


class TorchBackend(Operations, _Backend):  # type: ignore[misc]
    """The part of a group of torch for tensors in host memory; other backends serve other devices.

    From its operations' results, torch 2.14 and 2.15 forward only `wait` and `get_future`: a receive does not tell
    its source, and `is_completed` stays False.
    """

    def __init__(self, group: ProcessGroup | None, rank: int, size: int, origin: Origin) -> None:
        _Backend.__init__(self, rank, size)
        self.attach(group, rank, size, origin.timeout)
        self._origin = origin
        self._options = _Backend.Options("backplane", origin.timeout)
        self._options.global_ranks_in_group = origin.members
        self._options.group_name = origin.name

    @property
    def options(self) -> Any:
        return self._options

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        super().monitored_barrier(getattr(timeout, "timeout", timeout), wait_all_ranks)  # C++ passes options

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return True

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> TorchBackend | None:
        """The part of a group of these ranks of the group, in their order. Blocks until they have called it."""
        if self._rank not in ranks:
            return None
        timeout, name = (self._timeout, "") if opts is None else (opts._timeout, opts.group_name)
        return self._part(list(ranks), store, timeout, name)

    def perform_nocolor_split(self, device: Any) -> None:
        """Called by ranks that are not members; does nothing, because the members do not need them."""

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> TorchBackend:
        """The part of a group without these ranks. Blocks until the others have called it.

        The ranks may have died. They meet through torch's store, whose process must live: with torchrun, the agent.
        """
        if shrink_flags & _SHRINK_ABORT:
            self.group.abort("torch.distributed.shrink_group was called with SHRINK_ABORT")
        ranks = [rank for rank in range(self._size) if rank not in ranks_to_exclude]
        timeout = self._timeout if opts_override is None else opts_override._timeout
        store = _distributed_c10d.PrefixStore("shrink/", self._origin.store)
        return self._part(ranks, store, timeout, f"{self._origin.name}:shrunk")

    def _part(self, ranks: list[int], store: Any, timeout: datetime.timedelta, name: str) -> TorchBackend:
        origin = self._origin.of_some(ranks, store, timeout, name)
        rank, size = ranks.index(self._rank), len(ranks)
        return TorchBackend(origin.start(rank, size), rank, size, origin)
