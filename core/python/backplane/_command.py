# SPDX-License-Identifier: Apache-2.0
"""The command `backplane`, which is in the package."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import NoReturn

from backplane import _native

# Beside the extension module: in an editable installation, the sources are elsewhere.
_PROGRAM = pathlib.Path(_native.__file__).resolve().parent / "bin" / "backplane"


def find() -> str | None:
    """The command of this package; in a build tree, which has none, that of PATH. None: there is none."""
    return str(_PROGRAM) if _PROGRAM.is_file() else shutil.which("backplane")


def main() -> NoReturn:
    program = _PROGRAM
    if not program.is_file():
        sys.exit(f"backplane: {program} is missing; install the package again")
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
