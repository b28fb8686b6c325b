# SPDX-License-Identifier: Apache-2.0
"""The names of the first torch.distributed: those of `backplane`, and `reduce_op`."""

from __future__ import annotations

import backplane
from backplane import *  # noqa: F403

__all__ = [*backplane.__all__, "reduce_op"]

reduce_op = backplane.ReduceOp
