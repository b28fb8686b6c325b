# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
from collections.abc import Iterator

import backplane
import pytest


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Iterator[backplane.ProcessGroup]:
    """A group of one rank in this process."""
    store = backplane.FileStore(str(tmp_path / "store"))
    with backplane.create_group("self", store=store, rank=0, world_size=1) as made:
        yield made
