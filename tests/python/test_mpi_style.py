# SPDX-License-Identifier: Apache-2.0
"""The calls of mpi4py, wait_any and probes."""

from __future__ import annotations

import pytest
from support import BACKENDS, run_ranks


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_calls_of_mpi4py(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "gloo":  # receives of any tag and probes
        monkeypatch.setenv("BACKPLANE_LAYERS", "matching")
    assert run_ranks(3, backend, "mpi_calls.py").count("passed") == 3


def test_backends_without_probes_say_so() -> None:
    program = """
    import backplane
    from support import raised

    group = backplane.init_process_group()
    error = raised(NotImplementedError, group.probe)
    assert isinstance(error, backplane.UnsupportedError) and "prob" in str(error), error
    raised(NotImplementedError, group.iprobe)
    group.barrier()
    print("passed")
    """
    if "gloo" not in BACKENDS:
        pytest.skip("the backend gloo is not built")
    assert run_ranks(2, "gloo", program).count("passed") == 2
