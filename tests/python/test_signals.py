# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and other signals in blocked calls."""

from __future__ import annotations

import gc
import pathlib
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import backplane
import numpy as np
import pytest
from support import BACKENDS, Interrupt, run_ranks


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupts_end_blocked_calls(backend: str, tmp_path: pathlib.Path) -> None:
    assert run_ranks(2, backend, "signals.py", str(tmp_path / "store")).count("passed") == 2


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Iterator[backplane.ProcessGroup]:
    store = backplane.FileStore(str(tmp_path / "store"))
    before = signal.getsignal(signal.SIGUSR1)
    with backplane.create_group("self", store=store, rank=0, world_size=1) as made:
        yield made
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_call_frees_its_array(group: backplane.ProcessGroup) -> None:
    def on_signal(*_: object) -> None:
        raise LookupError("from the handler")

    def interrupted() -> weakref.ref[Any]:
        array = np.zeros(3)
        with Interrupt(signal.SIGUSR1):
            try:
                group.recv(array, 0, timeout=60)
            except LookupError:
                return weakref.ref(array)
        raise AssertionError("the call was not interrupted")

    signal.signal(signal.SIGUSR1, on_signal)
    gc.disable()  # no cycle of references holds it
    try:
        assert interrupted()() is None
    finally:
        gc.enable()


def test_a_handler_cannot_destroy_the_group_of_the_call(group: backplane.ProcessGroup) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: group.destroy())
    with Interrupt(signal.SIGUSR1), pytest.raises(backplane.InvalidError, match="destroy: a signal handler"):
        group.recv(np.zeros(1), 0, timeout=60)
    group.barrier()
