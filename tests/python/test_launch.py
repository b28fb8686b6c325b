# SPDX-License-Identifier: Apache-2.0
"""Ranks that a program launches."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from typing import Any

import backplane
import numpy as np
import pytest
from support import BACKENDS, COMMAND, Interrupt


def total(group: backplane.ProcessGroup, offset: float) -> Any:
    array = np.array([group.rank() + offset])
    group.all_reduce(array)
    return {"rank": group.rank(), "total": array}


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_in_rank_order(backend: str) -> None:
    results = backplane.launch(3, total, (0.5,), backend=backend, timeout=120)
    assert [each["rank"] for each in results] == [0, 1, 2]
    assert [each["total"][0] for each in results] == [4.5] * 3


def nothing(group: backplane.ProcessGroup) -> None:
    if group.rank() == 1:
        sys.exit(0)


def test_ranks_without_results_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert backplane.launch(2, nothing, timeout=120) == [None, None]
    assert "rank 1 returned nothing" in capfd.readouterr().err


def large(group: backplane.ProcessGroup) -> bytes:
    return bytes(3_000_000 + group.rank())


def test_large_results() -> None:
    assert [len(each) for each in backplane.launch(2, large, timeout=120)] == [3_000_000, 3_000_001]


def fail(group: backplane.ProcessGroup, how: str) -> None:
    if group.rank() == 1:
        if how == "raise":
            raise ValueError("no such file")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            sys.exit(7)
        if how == "result":
            return lambda: None  # type: ignore[return-value]  # multiprocessing cannot carry it
    group.barrier()


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raise", backplane.CancelledError, "ValueError: no such file"),
        ("kill", backplane.PeerLostError, "was killed by signal 9"),
        ("exit", backplane.PeerLostError, "exited with code 7"),
    ],
)
def test_the_first_failure_is_named(how: str, kind: type[backplane.BackplaneError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        backplane.launch(3, fail, (how,), backend="shm", timeout=120)
    assert caught.value.peer_rank == 1
    assert "rank 1 (pid " in str(caught.value)


def test_results_that_cannot_be_carried() -> None:
    with pytest.raises(backplane.CancelledError, match="lambda"):
        backplane.launch(2, fail, ("result",), backend="shm", timeout=120)


def hang(group: backplane.ProcessGroup) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def test_a_deadline_ends_the_ranks() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\]"):
        backplane.launch(2, hang, timeout=3, grace=0.1)


def test_an_interrupt_ends_the_ranks() -> None:
    with Interrupt(), pytest.raises(KeyboardInterrupt):
        backplane.launch(2, hang, timeout=120, grace=0.1)


def test_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("PATH", f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}")
    program = f"""if True:
        import backplane
        with backplane.init_process_group() as group:
            group.barrier()
            open({str(tmp_path)!r} + "/" + group.backend + str(group.rank()), "w").close()
    """
    backplane.launch_program(2, [sys.executable, "-c", program], backend="shm", timeout=120)
    assert sorted(os.listdir(tmp_path)) == ["shm0", "shm1"]
    with pytest.raises(backplane.PeerLostError, match="code 7") as caught:
        backplane.launch_program(2, [sys.executable, "-c", "raise SystemExit(7)"])
    assert caught.value.native_code == 7
    with pytest.raises(TimeoutError):
        backplane.launch_program(1, [sys.executable, "-c", "import signal; signal.pause()"], timeout=0.1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="install"):
        backplane.launch_program(1, ["true"])


def test_arguments_are_checked() -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="world_size"):
        backplane.launch(0, hang)
    with pytest.raises(ValueError, match="timeout"):
        backplane.launch(1, hang, timeout=-1)
    assert time.monotonic() - begin < 60
