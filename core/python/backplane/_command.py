# SPDX-License-Identifier: Apache-2.0
"""The command `backplane`, which is in the package."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def main() -> NoReturn:
    program = pathlib.Path(__file__).resolve().parent / "bin" / "backplane"
    if not program.is_file():
        sys.exit(f"backplane: {program} is missing; install the package again")
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
