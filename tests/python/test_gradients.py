# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from support import BACKENDS, run_ranks


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_memory(backend: str) -> None:
    assert run_ranks(3, backend, "gradients.py").count("passed") == 3
