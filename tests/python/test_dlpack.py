# SPDX-License-Identifier: Apache-2.0
"""Arrays that export DLPack, and copies of arrays that cannot be used in place."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import backplane
import numpy as np
import pytest


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


make_capsule = ctypes.pythonapi.PyCapsule_New
make_capsule.restype = ctypes.py_object
make_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """An array of another library: bytes of `memory` that DLPack describes by `code` and `bits`."""

    def __init__(self, memory: Any, code: int, bits: int, flags: int = 0, device: int = 1, **others: Any) -> None:
        self.memory = memory
        self.device = device
        count = memory.nbytes * 8 // bits
        self.shape = (ctypes.c_int64 * 1)(others.get("count", count))
        self.strides = (ctypes.c_int64 * 1)(others.get("stride", 1))
        where = memory.ctypes.data - others.get("offset", 0)
        tensor = Tensor(
            where, device, 0, 1, code, bits, others.get("lanes", 1), self.shape, self.strides, others.get("offset", 0)
        )
        self.managed = Versioned(others.get("major", 1), 0, None, None, flags, tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        assert max_version == (1, 0)
        return make_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


@pytest.mark.parametrize(
    ("code", "bits", "dtype", "result"),
    [(0, 8, "i1", 3), (0, 64, "i8", 3), (1, 32, "u4", 3), (2, 16, "f2", 3), (2, 64, "f8", 3), (5, 64, "c8", 3),
     (6, 8, "?", True)],
)  # fmt: skip
def test_elements(group: backplane.ProcessGroup, code: int, bits: int, dtype: str, result: Any) -> None:
    given, output = np.full(4, 3, dtype), np.zeros(4, dtype)
    group.all_gather_into_tensor(Exporter(output, code, bits, offset=16), Exporter(given, code, bits))
    assert (output == result).all()
    group.all_gather_into_tensor(output, Exporter(given, code, bits))  # the dtypes agree
    with pytest.raises(backplane.InvalidError, match="`input` has elements of"):
        group.all_gather_into_tensor(np.zeros(4, "f4"), Exporter(given, code, bits))


@pytest.mark.parametrize(("code", "bits", "name"), [(4, 16, "bf16"), (10, 8, "f8"), (12, 8, "f8")])
def test_short_floats(group: backplane.ProcessGroup, code: int, bits: int, name: str) -> None:
    given = np.arange(8, dtype="u1")
    output = np.zeros(8, "u1")
    group.all_gather_into_tensor(Exporter(output, code, bits), Exporter(given, code, bits))
    assert (output == given).all()
    with pytest.raises(backplane.InvalidError, match=f"`input` has elements of {name}"):
        group.all_gather_into_tensor(output, Exporter(given, code, bits))


def test_refused_exports(group: backplane.ProcessGroup) -> None:
    memory = np.zeros(4)
    with pytest.raises(backplane.UnsupportedError, match=r"`tensor` is in the memory of a device \(CUDA 0\).*host"):
        group.all_reduce(Exporter(memory, 2, 64, device=2))
    with pytest.raises(backplane.InvalidError, match="`tensor` is read-only"):
        group.all_reduce(Exporter(memory, 2, 64, flags=1))
    with pytest.raises(backplane.InvalidError, match="`tensor` is exported as a copy"):
        group.all_reduce(Exporter(memory, 2, 64, flags=2))
    with pytest.raises(backplane.InvalidError, match=r"`tensor` is not C-contiguous .*\(2,\)"):
        group.all_reduce(Exporter(memory, 2, 64, count=2, stride=2))
    with pytest.raises(TypeError, match="`tensor` has elements of DLPack type int of 4 bits"):
        group.all_reduce(Exporter(memory, 0, 4))
    with pytest.raises(TypeError, match="float of 64 bits x 2"):
        group.all_reduce(Exporter(memory, 2, 64, lanes=2))
    with pytest.raises(TypeError, match="is exported by DLPack 2"):
        group.all_reduce(Exporter(memory, 2, 64, major=2))
    group.all_gather_into_tensor(memory, Exporter(np.ones(4), 2, 64, flags=1))
    assert (memory == 1).all()
    group.all_reduce(Exporter(memory, 2, 64, device=3))  # host memory that is pinned for CUDA


class Broken:
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> Any:
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


def test_exporters_that_fail(group: backplane.ProcessGroup) -> None:
    with pytest.raises(TypeError, match="`tensor` cannot be exported by DLPack: it requires a gradient"):
        group.all_reduce(Broken(BufferError("it requires a gradient")))
    with pytest.raises(TypeError, match="`tensor`: its __dlpack__ returned a int"):
        group.all_reduce(Broken(5))


class Numpys:
    """An array of a library from before DLPack 1.0, which numpy exports, without the buffer protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


def test_memory_is_kept_until_the_operation_has_ended(group: backplane.ProcessGroup) -> None:
    array = np.zeros(3)
    seen = weakref.ref(array)
    group.all_reduce(Numpys(array))
    work = group.irecv(Numpys(array), 0, tag=1)
    del array
    gc.collect()
    assert seen() is not None
    group.send(np.full(3, 5.0), 0, tag=1)
    work.wait()
    received: Any = seen()
    assert (received == 5).all()
    del received, work
    group.barrier()
    group.isend(np.zeros(1), 0, tag=2)  # looks at those that were dropped
    gc.collect()
    assert seen() is None


def test_tensors_of_torch(group: backplane.ProcessGroup) -> None:
    torch = pytest.importorskip("torch")
    tensor, output = torch.arange(6.0).reshape(2, 3), torch.zeros(2, 3)
    group.all_gather([output], tensor)
    assert (output == tensor).all()
    short = torch.ones(3, dtype=torch.bfloat16)
    group.all_reduce(short)
    shared = backplane.empty(3, "f4", group)
    torch.from_dlpack(shared)[:] = 2
    group.all_reduce(shared)
    assert (shared == 2).all()
    with pytest.raises(backplane.InvalidError, match="not C-contiguous"):
        group.all_reduce(tensor.T)


def test_copies_of_strided_arrays(group: backplane.ProcessGroup) -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    with backplane.contiguous(matrix[:, 1]) as column:
        work = group.irecv(column, 0, tag=1)
        group.send(np.array([7.0, 8, 9]), 0, tag=1)
        work.wait()
    assert matrix.tolist() == [[0, 7, 2, 3], [4, 8, 6, 7], [8, 9, 10, 11]]
    with backplane.contiguous(matrix) as itself:
        assert itself is matrix
    with pytest.raises(KeyError), backplane.contiguous(matrix[:, 0]) as column:
        column[:] = 0
        raise KeyError
    assert matrix[:, 0].tolist() == [0, 4, 8]
    matrix.flags.writeable = False
    with backplane.contiguous(matrix.T) as copy:
        group.all_reduce(copy)
    big = np.ones(2, ">i4")
    with backplane.contiguous(big) as native:
        native += 1
        group.all_reduce(native)
    assert big.tolist() == [2, 2]
    data = bytearray(b"abcd")
    with backplane.contiguous(memoryview(data)[::2]) as letters:
        letters[:] = ord("x")
    assert data == b"xbxd"
    with pytest.raises(TypeError, match=r"`array` is a builtins\.list"), backplane.contiguous([1]):
        pass
