# SPDX-License-Identifier: Apache-2.0
"""Backplane as a backend of torch.distributed, for tensors in host memory::

    torch.distributed.init_process_group("backplane")

torch 2.5 and newer find the backend by an entry point. Older versions need ``import backplane.torch`` first. The
environment variable BACKPLANE_BACKEND, or `Options` as `pg_options`, chooses the plugin; the default is "auto".
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch.distributed

__all__ = ["Options", "autoload"]


@dataclass
class Options:
    """The `pg_options` of init_process_group and new_group."""

    backend: str = ""  # as in backplane.init_process_group: "shm", "gloo?iface=eth0"; empty: the environment's


def _create(options: Any, pg_options: Any) -> Any:
    from backplane.torch._process_group import create  # imports nothing heavy until a group is made

    return create(options, pg_options)


def autoload() -> None:
    """Registers the backend. The entry point of torch; importing this module does the same."""
    if not torch.distributed.is_available() or hasattr(torch.distributed.Backend, "BACKPLANE"):
        return
    register: Any = torch.distributed.Backend.register_backend
    devices = {"devices": ["cpu"]} if "devices" in inspect.signature(register).parameters else {}
    register("backplane", _create, extended_api=True, **devices)


autoload()
