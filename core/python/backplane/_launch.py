# SPDX-License-Identifier: Apache-2.0
"""Runs a function, or a program, on several ranks of this machine."""

from __future__ import annotations

import ctypes
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, Callable

from backplane._command import find
from backplane._errors import CancelledError, InvalidError, PeerLostError, ResourceError, TimedOutError
from backplane._store import TCPStore
from backplane._types import Timeout, nanoseconds

_CAUSE_TIME = 2.0  # s in which the cause of a rank's PeerLostError may follow
_jobs = itertools.count(1)
# Variables of another launcher, under which this process runs.
_FOREIGN = ("BACKPLANE_STORE", "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "JSM_JSRUN_PORT")
_PR_SET_PDEATHSIG = 1


class _Rank:
    def __init__(self, process: Any, reports: Any) -> None:
        self.process = process
        self.reports = reports
        self.report: tuple[str, Any] | None = None


def launch(
    world_size: int,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    backend: str | None = None,
    timeout: Timeout | None = None,
    grace: float = 5.0,
) -> list[Any]:
    """Runs ``function(group, *args)`` in `world_size` processes of this machine, and returns the results in rank order.

    `group` is the rank's default group. The processes are spawned by multiprocessing: function, arguments and results
    must be of kinds that it carries, and the program's file must guard its start by ``if __name__ == "__main__"``.
    They end with the thread that called this. A line on stderr names each rank that returned None.

    Args:
        backend: as in `init_process_group`.
        timeout: in seconds, of the whole call; then all ranks are ended. None: without a limit.
        grace: in seconds, from SIGTERM to SIGKILL for ranks that are ended.

    Raises:
        CancelledError: the function raised an exception on `peer_rank`, which the text has with its traceback.
        PeerLostError: `peer_rank` was killed, or exited with a code other than 0.
        TimedOutError: the timeout passed.

    The first failure ends all other ranks.
    """
    if world_size < 1:
        raise InvalidError(f"`world_size` is {world_size}; there must be at least one rank")
    seconds = -1.0 if timeout is None else nanoseconds(timeout) / 1e9
    limit = math.inf if seconds < 0 else time.monotonic() + seconds
    job = f"launch-{os.getpid()}-{next(_jobs)}"
    server = TCPStore("127.0.0.1", 0, is_master=True, job_id=job)
    ranks: list[_Rank] = []
    try:
        context = multiprocessing.get_context("spawn")
        for rank in range(world_size):
            reports, writer = context.Pipe(duplex=False)
            variables = _variables(rank, world_size, server.port, job, backend)
            process = context.Process(
                target=_run_rank, args=(os.getpid(), variables, function, tuple(args), writer), name=f"rank {rank}"
            )
            ranks.append(_Rank(process, reports))  # before the start: a signal may interrupt it
            process.start()
            writer.close()
        _watch(ranks, limit)
    finally:
        _end(ranks, grace)
    results = [each.report[1] if each.report is not None else None for each in ranks]
    for rank, result in enumerate(results):
        if result is None:
            print(f"backplane: launch: rank {rank} returned nothing", file=sys.stderr)
    return results


def launch_program(
    world_size: int, command: Sequence[str], backend: str | None = None, timeout: Timeout | None = None
) -> None:
    """Runs a program in `world_size` processes of this machine with ``backplane run``, and waits for their end.

    Args:
        command: the program and its arguments, such as ``[sys.executable, "train.py"]``.
        backend: as in `init_process_group`.
        timeout: in seconds; then all ranks are killed. None: without a limit.

    Raises:
        PeerLostError: a rank was killed, or exited with a code other than 0, which is in `native_code`; the others were
            ended. The command has named the rank on stderr.
        TimedOutError: the timeout passed.
    """
    program = find()
    if program is None:
        raise ResourceError("launch: the command `backplane` is missing; install the package again")
    options = [] if backend is None else ["--backend", backend]
    limit = None if timeout is None else nanoseconds(timeout) / 1e9
    if limit is not None and limit < 0:
        limit = None
    try:
        done = subprocess.run([program, "run", "-n", str(world_size), *options, *command], timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise TimedOutError(f"launch: the ranks of {command[0]} did not end within {timeout} s") from None
    if done.returncode != 0:
        error = PeerLostError(f"launch: {command[0]} ended with code {done.returncode} on {world_size} ranks")
        error.native_code = done.returncode
        raise error


def _variables(rank: int, world_size: int, port: int, job: str, backend: str | None) -> dict[str, str]:
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "BACKPLANE_STORE_HOSTED": "1",
        "BACKPLANE_JOB_ID": job,
    }
    if backend is not None:
        variables["BACKPLANE_BACKEND"] = backend
    return variables


def _run_rank(
    parent: int, variables: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...], reports: Any
) -> None:
    """Runs in the process of a rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(variables)
    from backplane._distributed import destroy_process_group, init_process_group, is_initialized

    try:
        result = function(init_process_group(), *args)
        if is_initialized():
            destroy_process_group()
        reports.send(("returned", result))
    except Exception as error:
        kind = "lost" if isinstance(error, PeerLostError) else "raised"
        reports.send((kind, traceback.format_exc().strip()))
        sys.exit(1)


def _watch(ranks: list[_Rank], limit: float) -> None:
    """Returns when all ranks have ended well. Raises the first failure, or the cause that follows it."""
    followed: CancelledError | None = None  # a rank noticed the loss of a peer
    running = dict(enumerate(ranks))
    while running:
        left = limit - time.monotonic()
        if left <= 0:
            if followed is not None:
                raise followed
            raise TimedOutError(f"launch: ranks {sorted(running)} did not end in time")
        watched = [each for rank in running.values() for each in (rank.process.sentinel, rank.reports)]
        ready = multiprocessing.connection.wait(
            [each for each in watched if getattr(each, "closed", False) is False],
            None if math.isinf(left) else left,
        )
        for number, rank in list(running.items()):
            has_ended = rank.process.sentinel in ready
            if has_ended or rank.reports in ready:
                _read(rank)
            if not has_ended:
                continue
            del running[number]
            failure = _failure_of(number, rank)
            if failure is None:
                continue
            if not (rank.report is not None and rank.report[0] == "lost"):
                raise failure
            if followed is None:
                followed = failure  # type: ignore[assignment]
                limit = min(limit, time.monotonic() + _CAUSE_TIME)
    if followed is not None:
        raise followed


def _read(rank: _Rank) -> None:
    try:
        if not rank.reports.closed and rank.reports.poll():
            rank.report = rank.reports.recv()
            rank.reports.close()
    except EOFError:
        rank.reports.close()


def _failure_of(number: int, rank: _Rank) -> CancelledError | PeerLostError | None:
    rank.process.join()
    code = rank.process.exitcode
    who = f"launch: rank {number} (pid {rank.process.pid})"
    failure: CancelledError | PeerLostError
    if code < 0:
        failure = PeerLostError(f"{who} was killed by signal {-code} ({signal.strsignal(-code)})")
    elif rank.report is not None and rank.report[0] != "returned":
        failure = CancelledError(f"{who} failed: {rank.report[1]}")
    elif code > 0:
        failure = PeerLostError(f"{who} exited with code {code}")
    else:
        return None
    failure.peer_rank = number
    return failure


def _end(ranks: list[_Rank], grace: float) -> None:
    """Ends the ranks that run, and frees what belongs to all of them."""
    running = [rank.process for rank in ranks if rank.process.is_alive()]
    for process in running:
        process.terminate()
        os.kill(process.pid, signal.SIGCONT)  # a stopped process does not handle SIGTERM
    end = time.monotonic() + grace
    try:
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
    finally:
        for rank in ranks:
            if rank.process.is_alive():
                rank.process.kill()
            if rank.process.pid is not None:
                rank.process.join()
            rank.process.close()
            rank.reports.close()
