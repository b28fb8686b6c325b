# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a torch group find each other: rank 0 serves a store, whose address travels through torch's."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from backplane._errors import BackplaneError, PeerLostError, TimedOutError
from backplane._ports import free_port

_LOOPBACK = "127.0.0.1"


def meet(store: Any, rank: int, members: list[int], size: int, timeout: datetime.timedelta) -> str:
    """The init method of the group. `members`: its global ranks; empty if it is the default group.

    torch gives disjoint groups the same store prefix, therefore the keys contain the members. A group may be made
    again over the same store: the ranks count their arrivals, and each round has its own key.
    """
    key = "backplane/" + ",".join(map(str, members))
    try:
        round_number = (store.add(f"{key}/arrived", 1) - 1) // size
        address_key = f"{key}/{round_number}"
        if rank == 0:
            host = own_address(store)
            address = f"tcp://{host}:{free_port(host)}"
            store.set(address_key, address)
            return address
    except BackplaneError:
        raise
    except RuntimeError as error:
        raise PeerLostError(
            f"rank {rank} of a group of {size} cannot use torch's store: the process that serves it may have ended; "
            f"start the ranks with torchrun, whose agent serves it ({error})"
        ) from error
    try:
        store.wait([address_key], timeout)
    except RuntimeError as error:
        raise TimedOutError(
            f"rank {rank} of a group of {size}: rank 0 did not publish the address of its store within "
            f"{timeout.total_seconds():g} s; see whether it has started ({error})"
        ) from error
    return bytes(store.get(address_key)).decode()


def own_address(store: Any) -> str:
    """An address of this process that the other ranks reach: on the route to the host of torch's store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host = store.host if isinstance(store, TCPStore) else os.environ.get("MASTER_ADDR", "")
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return _LOOPBACK
    for target in (host, "192.0.2.1"):  # an address for documentation: only the default route matters
        address = _source_address(target) if target else _LOOPBACK
        if not address.startswith("127."):
            return address
    return _LOOPBACK


def _source_address(host: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK
