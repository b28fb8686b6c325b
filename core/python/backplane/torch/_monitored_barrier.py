# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the ranks which did not come, with the texts of torch's gloo.

Rank r sends its arrival to rank 0. When all have come, rank 0 asks each whether it still waits, and then sends the
result. A rank that gives up withdraws its arrival, which would otherwise count in a later barrier; the withdrawal may
still be on its way when rank 0 finds the arrival, and then comes instead of the answer. An arrival has a number, which
rank 0 repeats, because what it sends for a barrier that a rank has given up may still arrive. No rank waits for its
sends.
"""

from __future__ import annotations

import array
import datetime
import random
import time

from backplane._errors import TimedOutError
from backplane._group import ProcessGroup

TAG = (1 << 32) - 1  # which programs cannot use
_FIELDS = 8
_MOST_NAMED = _FIELDS - 2
_GRACE = 0.1  # s, or this fraction of the timeout, by which the result may come after it; half of it for the answers
_WITHDRAWN, _ARRIVED, _WAITS = range(3)  # what rank r says, the second field
_ASKED = -1  # what rank 0 says there, or the number of missing ranks
_numbers = random.SystemRandom()


def monitored_barrier(group: ProcessGroup, timeout: datetime.timedelta, wait_all_ranks: bool) -> None:
    """Blocks until all ranks have called it. TimedOutError names ranks that have not within the timeout.

    On rank 0 that is the first rank that did not come, or, if it is to `wait_all_ranks`, all of them.
    """
    if group.size() == 1:
        return
    if group.rank() == 0:
        _collect(group, timeout.total_seconds(), wait_all_ranks)
    else:
        _arrive(group, timeout.total_seconds())


def _collect(group: ProcessGroup, seconds: float, wait_all_ranks: bool) -> None:
    within = f"{1000 * seconds:g} ms"
    if seconds <= 0:
        raise TimedOutError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier: its timeout is {within}")
    deadline = time.monotonic() + seconds
    numbers: dict[int, int] = {}
    missing: list[int] = []
    for rank in range(1, group.size()):
        # After the first missing rank, those that have come are looked for, to tell them.
        is_decided = bool(missing) and not wait_all_ranks
        number = _arrival_of(group, rank, 0.0 if is_decided else deadline - time.monotonic())
        if number is not None:
            numbers[rank] = number
        elif not is_decided:
            missing.append(rank)
    if not missing:
        for rank, number in numbers.items():
            group.isend(_message(number, _ASKED), rank, TAG)
        until = max(deadline, time.monotonic()) + max(_GRACE, _GRACE * seconds) / 2
        missing = [rank for rank, number in numbers.items() if not _waits(group, rank, number, until)]
    for rank, number in numbers.items():
        group.isend(_message(number, len(missing), *missing[:_MOST_NAMED]), rank, TAG)
    if missing:
        raise TimedOutError(
            f"[Rank 0]: {_ranks(missing, len(missing))} failed to pass monitoredBarrier in {within}: it was not called "
            "there; see what these processes wait for"
        )


def _arrival_of(group: ProcessGroup, rank: int, seconds: float) -> int | None:
    """The number of the rank's arrival, unless it has withdrawn it; None if there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    received = _message()
    number: int | None = None
    while True:
        limit = 0.0 if number is not None else max(0.0, deadline - time.monotonic())
        try:
            group.recv(received, rank, TAG, limit)
        except TimedOutError:
            return number
        if received[1] != _WAITS:  # an answer to an earlier barrier
            number = received[0] if received[1] == _ARRIVED else None


def _waits(group: ProcessGroup, rank: int, number: int, until: float) -> bool:
    """Whether the rank answers that it still waits with this arrival."""
    received = _message()
    try:
        while received[0] != number:
            group.recv(received, rank, TAG, max(0.0, until - time.monotonic()))
    except TimedOutError:
        return False
    return received[1] == _WAITS


def _arrive(group: ProcessGroup, seconds: float) -> None:
    number = _numbers.getrandbits(62) + 1
    deadline = time.monotonic() + max(seconds, 0.0) + max(_GRACE, _GRACE * seconds)
    received = _message()
    group.isend(_message(number, _ARRIVED), 0, TAG)
    try:
        while received[0] != number or received[1] == _ASKED:
            group.recv(received, 0, TAG, max(0.0, deadline - time.monotonic()))
            if received[0] == number and received[1] == _ASKED:
                group.isend(_message(number, _WAITS), 0, TAG)
    except TimedOutError:
        group.isend(_message(number, _WITHDRAWN), 0, TAG)
        raise TimedOutError(_failure(group, f"it did not answer within {1000 * seconds:g} ms")) from None
    if received[1]:
        missing = received[2 : 2 + min(received[1], _MOST_NAMED)].tolist()
        raise TimedOutError(_failure(group, f"{_ranks(missing, received[1])} did not come"))


def _failure(group: ProcessGroup, why: str) -> str:
    return (
        f"[Rank {group.rank()}]: Rank {group.rank()} successfully reached monitoredBarrier, but received errors while "
        f"waiting for send/recv from rank 0: {why}"
    )


def _message(*values: int) -> array.array[int]:
    return array.array("q", [*values, *[0] * (_FIELDS - len(values))])


def _ranks(first: list[int], count: int) -> str:
    text = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
    return f"Rank {text}" if count == 1 else f"Ranks {text}"
