# SPDX-License-Identifier: Apache-2.0
"""Reduce operations, operation kinds and time limits."""

from __future__ import annotations

import datetime
import enum
import math
from typing import NamedTuple, Union

from backplane._errors import InvalidError
from backplane._native import lib

# Seconds, or a timedelta. 0 does not wait; math.inf waits without a limit.
Timeout = Union[float, datetime.timedelta]

ANY_SOURCE = -1
ANY_TAG: int = lib.BP_ANY_TAG


class ReduceOp(enum.IntEnum):
    """How a reduction combines the ranks' elements.

    Integer sums and products wrap. MIN and MAX return NaN if an operand is NaN, and refuse complex numbers. AVG is the
    sum divided by the number of ranks, for integers rounded toward zero. BAND, BOR and BXOR take bool and integers.
    """

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class Kind(enum.IntEnum):
    """The operation kinds of the C API."""

    BARRIER = 0
    BROADCAST = 1
    REDUCE = 2
    ALL_REDUCE = 3
    GATHER = 4
    GATHERV = 5
    SCATTER = 6
    SCATTERV = 7
    ALL_GATHER = 8
    ALL_GATHERV = 9
    REDUCE_SCATTER = 10
    REDUCE_SCATTERV = 11
    ALL_TO_ALL = 12
    ALL_TO_ALLV = 13
    SCAN = 16
    EXSCAN = 17


class Received(NamedTuple):
    """What a receive got."""

    source: int  # the sender's rank
    tag: int
    nbytes: int


def name_wrong_argument(**arguments: object) -> None:
    """After the C API refused a call: raises a TypeError that names the argument that is not an integer, if one is."""
    for name, value in arguments.items():
        if not hasattr(value, "__index__"):
            wanted = "a ReduceOp" if name == "op" else "an integer"
            raise TypeError(f"`{name}` is of type {type(value).__name__}; pass {wanted}") from None


def nanoseconds(timeout: Timeout) -> int:
    """A time limit as the C API takes it. InvalidError if it is negative or not a number."""
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    if math.isnan(seconds) or seconds < 0:
        raise InvalidError(f"the timeout is {timeout}: it must be 0 or more seconds, or math.inf for none")
    if seconds > 9e9:  # INT64_MAX nanoseconds
        return int(lib.BP_NO_TIMEOUT)
    return round(seconds * 1e9)


def nanoseconds_or_inherited(timeout: Timeout | None) -> int:
    """The same; None is the time limit of the group or store."""
    return int(lib.BP_INHERIT_TIMEOUT) if timeout is None else nanoseconds(timeout)
