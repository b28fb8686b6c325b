# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of the extension module backplane._native: generate.py OUTPUT."""

import pathlib
import sys

import cffi


def main(output: str) -> None:
    folder = pathlib.Path(__file__).resolve().parent
    builder = cffi.FFI()
    for name in ("declarations.cdef", "dlpack.cdef", "rpc.cdef"):
        builder.cdef((folder / name).read_text())
    headers = ("dlpack.h", "glue.h", "rpc_glue.h")
    source = "".join(f'#include "{name}"\n' for name in headers)
    builder.set_source("backplane._native", source, py_limited_api=True)
    builder.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1])
