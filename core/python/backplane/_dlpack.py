# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries in host memory, by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

from backplane._errors import InvalidError, UnsupportedError
from backplane._native import ffi

_HOST_MEMORY = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
# dtypes of the C API by type code and bits: int, uint, float, bfloat, complex, bool, float8_e4m3fn, float8_e5m2.
_DTYPES = {
    **{(0, bits): code for bits, code in ((8, 1), (16, 3), (32, 5), (64, 7))},
    **{(1, bits): code for bits, code in ((8, 2), (16, 4), (32, 6), (64, 8))},
    **{(2, bits): code for bits, code in ((16, 9), (32, 11), (64, 12))},
    (4, 16): 10,
    (5, 64): 15,
    (5, 128): 16,
    (6, 8): 0,
    (10, 8): 13,
    (12, 8): 14,
}
_NAMES = {0: "int", 1: "uint", 2: "float", 3: "opaque handle", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY, _IS_COPIED = 1, 2

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Keeping:
    """Keeps a capsule, whose end releases the array, until the memory is no longer used."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __call__(self, _: Any) -> None:
        self._capsule = None


def is_exporter(array: object) -> bool:
    return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")


def require_host_memory(name: str, array: Any) -> None:
    """UnsupportedError if the array is in the memory of a device."""
    kind, number = array.__dlpack_device__()
    if int(kind) not in _HOST_MEMORY:
        device = _DEVICES.get(int(kind), f"of DLPack type {int(kind)}")
        raise UnsupportedError(
            f"`{name}` is in the memory of a device ({device} {number}); the package exchanges arrays in host memory: "
            "copy it to the host, and a result back"
        )


def import_array(name: str, array: Any, is_written: bool) -> tuple[int, Any, int]:
    """The dtype of the C API, the memory and the number of elements of an array that exports DLPack."""
    require_host_memory(name, array)
    capsule, tensor, flags = _export(name, array)
    if is_written and flags & _READ_ONLY:
        raise InvalidError(f"`{name}` is read-only, and the result is written to it; pass a writable copy")
    if is_written and flags & _IS_COPIED:
        raise InvalidError(f"`{name}` is exported as a copy, which would get the result; pass an array in host memory")
    code, bits = tensor.dtype_code, tensor.dtype_bits
    dtype = _DTYPES.get((code, bits)) if tensor.dtype_lanes == 1 else None
    if dtype is None:
        lanes = f" x {tensor.dtype_lanes}" if tensor.dtype_lanes != 1 else ""
        raise TypeError(
            f"`{name}` has elements of DLPack type {_NAMES.get(code, code)} of {bits} bits{lanes}; supported are bool, "
            "integers of 8 to 64 bits, float16, float32, float64, complex64, complex128, bfloat16, float8_e4m3fn and "
            "float8_e5m2"
        )
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    elements = 1
    for extent in shape:
        elements *= extent
    if tensor.strides != ffi.NULL and elements:
        _require_contiguous(name, shape, [tensor.strides[i] for i in range(tensor.ndim)])
    if not elements:
        return dtype, ffi.from_buffer("char[]", b""), 0
    address = ffi.cast("char*", tensor.data) + tensor.byte_offset
    memory = ffi.buffer(ffi.gc(address, _Keeping(capsule)), elements * bits // 8)
    return dtype, ffi.from_buffer("char[]", memory), elements


def _export(name: str, array: Any) -> tuple[object, Any, int]:
    """The capsule, its tensor and its flags."""
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError:  # an exporter from before DLPack 1.0
            capsule = array.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"`{name}` cannot be exported by DLPack: {error}") from error
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = ffi.cast("py_dl_versioned*", _pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise TypeError(f"`{name}` is exported by DLPack {managed.major}; this package reads version 1")
        return capsule, managed.tensor, int(managed.flags)
    if _is_valid(capsule, b"dltensor"):
        return capsule, ffi.cast("py_dl_managed*", _pointer(capsule, b"dltensor")).tensor, 0
    raise TypeError(f"`{name}`: its __dlpack__ returned a {type(capsule).__name__}, which is no capsule of DLPack")


def _require_contiguous(name: str, shape: list[int], strides: list[int]) -> None:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            raise InvalidError(
                f"`{name}` is not C-contiguous (shape {tuple(shape)}, strides in elements {tuple(strides)}); pass a "
                "contiguous copy, and copy a result back"
            )
        expected *= extent
