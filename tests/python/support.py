# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks for the tests of the package.

CTest sets BACKPLANE_TEST_COMMAND to the command, BACKPLANE_TEST_BACKENDS to the backends that are built,
BACKPLANE_TEST_BUILD to the build tree, and PYTHONPATH to the package in it.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Sequence
from typing import Any, Callable

COMMAND = os.environ["BACKPLANE_TEST_COMMAND"]
BACKENDS = os.environ["BACKPLANE_TEST_BACKENDS"].split(",")
LIMIT = 120.0  # s; of a job, on a machine with other work


def run_ranks(
    count: int, backend: str, program: str, *arguments: str, options: Sequence[str] = (), code: int = 0
) -> str:
    """Runs the program, source text or a file of this folder, on `count` ranks, and returns their output.

    `options`: further ones of `backplane run`. `code`: its expected exit code.
    """
    source = [program] if program.endswith(".py") else ["-c", textwrap.dedent(program)]
    done = subprocess.run(
        [COMMAND, "run", "-n", str(count), "--backend", backend, *options, sys.executable, *source, *arguments],
        cwd=pathlib.Path(__file__).parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == code, f"{backend}, {count} ranks: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


class Interrupt:
    """Sends signals, SIGINT by default, to this process, once the main thread has had time to block.

    Not while the main thread runs: on a busy machine it may not have reached the call yet, nor the handler of the
    exception.
    """

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers or (signal.SIGINT,)
        self._sent = 0.0
        self._thread = threading.Timer(0.3, self._send)

    def _send(self) -> None:
        state = pathlib.Path(f"/proc/self/task/{threading.main_thread().native_id}/stat")
        for _ in range(1000):
            if state.read_text().rpartition(")")[2].split()[0] != "R":
                break
            time.sleep(0.01)
        self._sent = time.monotonic()
        for number in self._numbers:
            os.kill(os.getpid(), number)

    def __enter__(self) -> Interrupt:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: types.TracebackType | None) -> None:
        self._thread.join()

    def seconds_since(self) -> float:
        return time.monotonic() - self._sent


def raised(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    call: Callable[..., Any],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """The exception of this kind that the call raises. For programs of ranks, which do not use pytest."""
    try:
        call(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"{call.__name__} raised no {kind}")
