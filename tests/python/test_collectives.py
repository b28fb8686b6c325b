# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import re

import pytest
from support import BACKENDS, run_ranks


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_collectives_equal_numpys(backend: str, count: int) -> None:
    assert run_ranks(count, backend, "collectives.py").count("passed") == count


@pytest.mark.parametrize("backend", BACKENDS)
def test_messages(backend: str) -> None:
    assert run_ranks(2, backend, "messages.py").count("passed") == 2


@pytest.mark.parametrize("document", ["README.md", "share/doc/python.md"])
def test_the_documents_programs_run(document: str) -> None:
    text = (pathlib.Path(__file__).parents[2] / document).read_text()
    fenced = re.search("```python\n(.*?)```", text, re.DOTALL)
    indented = re.search("    import backplane, numpy\n(    .*\n)*", text)
    program = fenced[1] if fenced else indented[0] if indented else ""
    assert "all_reduce" in program
    run_ranks(2, "shm", program)
