# SPDX-License-Identifier: Apache-2.0
"""Functions with a name of torch.distributed take its arguments: the same names, in the same order."""

from __future__ import annotations

import inspect

import backplane
import pytest

# Arguments of torch that the package does not take, because they concern devices or options of torch's backends.
MISSING = {"pg_options", "device", "device_ids", "device_id", "group_dst", "group_src", "group_desc", "use_batch"}


def names(function: object) -> list[str]:
    """The arguments that a call may pass without a name."""
    assert callable(function)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind in kinds]


def test_signatures_are_those_of_torch() -> None:
    distributed = pytest.importorskip("torch.distributed")
    compared = 0
    for name in backplane.__all__:
        ours, theirs = getattr(backplane, name), getattr(distributed, name, None)
        if not inspect.isfunction(ours) or not inspect.isfunction(theirs):
            continue
        compared += 1
        wanted = names(theirs)
        while wanted and wanted[-1] in MISSING:
            wanted.pop()
        mine = names(ours)
        assert mine[: len(wanted)] == wanted[: len(mine)], name
        absent = set(wanted) - set(inspect.signature(ours).parameters) - MISSING
        assert not absent, f"{name} lacks {absent}"
        for argument in mine[len(wanted) :]:
            assert name in ("new_group",), f"{name}: torch has no argument {argument} in this position"
    assert compared > 20
