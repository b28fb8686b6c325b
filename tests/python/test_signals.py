# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and other signals in blocked calls."""

from __future__ import annotations

import pathlib

import pytest
from support import BACKENDS, run_ranks


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupts_end_blocked_calls(backend: str, tmp_path: pathlib.Path) -> None:
    assert run_ranks(2, backend, "signals.py", str(tmp_path / "store")).count("passed") == 2
