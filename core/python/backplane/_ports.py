# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that another process, or a later call, opens."""

from __future__ import annotations

import pathlib
import random
import socket

from backplane._errors import ResourceError

_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody uses at this address of this machine.

    It is one of those that the system gives to no socket by itself, because one of them could get it before the server
    listens.
    """
    first_given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10000, first_given) if first_given > 11000 else range(first_given, 60000)
    for port in random.SystemRandom().sample(ports, _TRIES):
        with socket.socket() as tried:
            try:
                tried.bind((host, port))
            except OSError:
                continue
            return port
    raise ResourceError(f"{_TRIES} ports at {host} are in use, or it is no address of this machine")
