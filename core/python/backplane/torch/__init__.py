# SPDX-License-Identifier: Apache-2.0
"""Backplane as a backend of torch.distributed, for tensors in host memory::

    torch.distributed.init_process_group("backplane")

torch 2.5 and newer find the backend by an entry point. Older versions need ``import backplane.torch`` first. The
environment variable BACKPLANE_BACKEND, or `Options` as `pg_options`, chooses the plugin; the default is "auto".
"""

from __future__ import annotations

import datetime
import inspect
import os
import pathlib
from dataclasses import dataclass
from typing import Any

# Functions import torch, not this module: the import of torch calls the entry point, `autoload`, which must exist.
__all__ = ["Options", "autoload", "dump_flight_recorder", "monitored_barrier"]


@dataclass
class Options:
    """The `pg_options` of init_process_group and new_group."""

    backend: str = ""  # as in backplane.init_process_group: "shm", "gloo?iface=eth0"; empty: the environment's


def monitored_barrier(
    group: Any = None, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """The monitored_barrier of torch.distributed for groups of this backend, which older versions refuse.

    Blocks until all ranks of the group have called it. Within `timeout`, by default the group's, rank 0 raises
    TimedOutError with the first rank that has not, or, if it is to `wait_all_ranks`, all of them. The other ranks raise
    it at most a tenth of the timeout, or 0.1 s, later. The group remains usable. Not for several threads at a time.
    """
    import torch.distributed

    from backplane.torch._operations import Operations

    chosen: Any = torch.distributed.group.WORLD if group is None else group
    if chosen is torch.distributed.GroupMember.NON_GROUP_MEMBER:
        return
    if timeout is None and not isinstance(chosen, Operations):  # torch's own class, which passes on -1 ms
        timeout = chosen._get_backend(torch.device("cpu")).options._timeout
    chosen.monitored_barrier(timeout, wait_all_ranks)


def _create(options: Any, pg_options: Any) -> Any:
    from backplane.torch._process_group import create  # imports nothing heavy until a group is made

    return create(options, pg_options)


def dump_flight_recorder(directory: str | os.PathLike[str], prefix: str = "rank_") -> pathlib.Path:
    """Writes the last collectives of this process's groups for torch's analyzer, and returns the file.

    Each rank calls it, at any time, also after a failure; it does not communicate. The file is `prefix` and the
    process's global rank, in `directory`, which must exist. ``torchfrtrace --prefix rank_ DIRECTORY`` reads the files
    of all ranks, where torch's package contains torch.distributed.flight_recorder. A failed operation is shown as
    started; the timeout and stack of an operation are not recorded. Messages are left out.
    """
    from backplane.torch._flight_recorder import dump

    return dump(directory, prefix)


def autoload() -> None:
    """Registers the backend. The entry point of torch; importing this module does the same."""
    import torch.distributed

    if not torch.distributed.is_available() or hasattr(torch.distributed.Backend, "BACKPLANE"):
        return
    register: Any = torch.distributed.Backend.register_backend
    devices = {"devices": ["cpu"]} if "devices" in inspect.signature(register).parameters else {}
    register("backplane", _create, extended_api=True, **devices)


autoload()
