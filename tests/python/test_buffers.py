# SPDX-License-Identifier: Apache-2.0
"""Arguments, in a group of one rank in this process."""

from __future__ import annotations

import array
import ctypes
import datetime
import gc
import math
import sys
import weakref
from typing import Any

import backplane
import numpy as np
import pytest


def test_strided_arrays_are_refused(group: backplane.ProcessGroup) -> None:
    whole = np.zeros((4, 6))
    for strided in (whole[:, ::2], whole.T, whole[::-1]):
        with pytest.raises(
            backplane.InvalidError, match=r"`tensor` is not C-contiguous .*ascontiguousarray.*backplane\.contiguous"
        ):
            group.all_reduce(strided)
    with pytest.raises(ValueError, match="`tensor_list\\[0\\]` is not C-contiguous"):
        group.all_gather([whole[:, 0]], np.zeros(4))
    with pytest.raises(ValueError, match="`tensor` is not C-contiguous"):
        group.all_reduce(memoryview(bytearray(8))[::2])
    group.all_reduce(whole[1:3])


def test_read_only_outputs_are_refused(group: backplane.ProcessGroup) -> None:
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(backplane.InvalidError, match=r"`tensor` is read-only.*tensor.copy\(\)"):
        group.all_reduce(fixed)
    with pytest.raises(ValueError, match=r"`tensor` is read-only.*bytearray"):
        group.recv(b"123", 0)
    output = np.ones(3)
    group.all_gather_into_tensor(output, fixed)
    assert not output.any()


def test_other_elements_are_refused(group: backplane.ProcessGroup) -> None:
    with pytest.raises(backplane.InvalidError, match=r"`tensor` is big-endian.*newbyteorder"):
        group.all_reduce(np.zeros(3, ">f4"))
    with pytest.raises(TypeError, match="`tensor` has elements of dtype <U1; supported are bool"):
        group.all_reduce(np.array(["a"]))
    for dtype in ("longdouble", "M8[s]", "O", "f4,i4"):
        with pytest.raises(TypeError, match="`tensor` has elements of dtype"):
            group.all_reduce(np.zeros(2, dtype))
    with pytest.raises(ValueError, match="`tensor` is big-endian"):
        group.all_reduce((ctypes.c_double.__ctype_be__ * 2)())
    for other in ([1.0], 3, None):
        with pytest.raises(TypeError, match=r"`tensor` is a builtins.*has no buffer protocol"):
            group.all_reduce(other)


class LikeNumpys:
    """As arrays of other libraries: a dtype of numpy, and no buffer protocol."""

    dtype = np.dtype("f8")


class OnADevice(LikeNumpys):
    flags = np.zeros(1).flags
    size = 1


@pytest.mark.parametrize("other", [LikeNumpys(), OnADevice()])
def test_arrays_of_other_libraries_are_refused(group: backplane.ProcessGroup, other: Any) -> None:
    with pytest.raises(TypeError, match=r"`tensor` is a test_buffers\..*has no buffer protocol"):
        group.all_reduce(other)


def test_what_has_the_buffer_protocol_is_accepted(group: backplane.ProcessGroup) -> None:
    for data in (array.array("d", [1, 2]), (ctypes.c_int32 * 3)(1, 2, 3), bytearray(b"ab"), memoryview(bytearray(4))):
        before = bytes(data)
        group.all_reduce(data)
        assert bytes(data) == before
    group.all_reduce(np.zeros((3, 0)))
    group.all_reduce(np.ones(()))


def test_types_of_ml_dtypes(group: backplane.ProcessGroup) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        given = np.array([[1, 2], [3, 4]], dtype)
        output = np.zeros((1, 2, 2), dtype)
        group.all_gather_into_tensor(output, given)
        np.testing.assert_array_equal(output[0].astype("f4"), given.astype("f4"))
        group.all_reduce(given)
        with pytest.raises(ValueError, match="not C-contiguous"):
            group.all_reduce(given.T)


def test_arguments_that_disagree_are_refused(group: backplane.ProcessGroup) -> None:
    with pytest.raises(ValueError, match="`input` has elements of f32, `output` of f64"):
        group.reduce_scatter_tensor(np.zeros(2), np.zeros(2, "f4"))
    with pytest.raises(ValueError, match="must have the same dtype, these have f32 and f64"):
        group.all_gather([np.zeros(2)], np.zeros(2, "f4"))
    with pytest.raises(ValueError, match="`tensor_list` has 2 arrays; it must have one per rank, 1"):
        group.all_gather([np.zeros(2)] * 2, np.zeros(2))
    with pytest.raises(ValueError, match="`gather_list` must have one array per rank on rank 0"):
        group.gather(np.zeros(2))
    with pytest.raises(ValueError, match="add up to 4"):
        group.all_to_all_single(np.zeros(4), np.zeros(4), [4], [3])
    with pytest.raises(ValueError, match="all_gather"):
        group.all_gather_into_tensor(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="rank 7"):
        group.global_rank(7)
    with pytest.raises(ValueError, match="tags are 0 to"):
        group.send(np.zeros(1), 0, tag=-1)
    with pytest.raises(TypeError, match="`op` is of type str; pass a ReduceOp"):
        group.all_reduce(np.zeros(2), "sum")
    with pytest.raises(TypeError, match="`src_or_dst` is of type NoneType"):
        group.broadcast(np.zeros(2), None)
    with pytest.raises(TypeError, match="`op` is of type float"):
        group.reduce_scatter(np.zeros(2), [np.zeros(2)], 0.5)
    with pytest.raises(ValueError, match="tags of objects are 0 to"):
        group.send_object(None, 0, tag=-1)
    with pytest.raises(ValueError, match="not tuples"):
        group.all_gather_object({(1, 2): 3})


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_invalid_timeouts_are_refused(group: backplane.ProcessGroup, timeout: float) -> None:
    with pytest.raises(ValueError, match="the timeout is"):
        group.barrier(timeout=timeout)


@pytest.mark.parametrize("timeout", [0.05, datetime.timedelta(milliseconds=50)])
def test_timeouts_end_calls(group: backplane.ProcessGroup, timeout: Any) -> None:
    with pytest.raises(TimeoutError) as caught:
        group.recv(np.zeros(1), 0, timeout=timeout)
    error = caught.value
    assert isinstance(error, backplane.TimedOutError)
    assert error.status == backplane.Status.TIMEOUT
    assert error.group == "world"
    group.barrier(timeout=math.inf)


def test_arrays_are_released(group: backplane.ProcessGroup) -> None:
    data = np.zeros(3)
    work = group.all_reduce(data, async_op=True)
    assert work is not None
    work.wait()
    seen = weakref.ref(data)
    references = sys.getrefcount(data)
    del work
    assert sys.getrefcount(data) < references
    group.all_reduce(data)
    del data
    gc.collect()
    assert seen() is None


def test_an_error_that_is_kept_keeps_its_array(group: backplane.ProcessGroup) -> None:
    def fail() -> None:
        try:
            group.recv(array.array("q", [0]), 0, timeout=0.01)
        except TimeoutError as error:
            kept = error  # a cycle: the error, its traceback, this frame
            assert kept.__traceback__ is not None

    fail()
    gc.collect()


def test_arrays_in_flight_are_kept(group: backplane.ProcessGroup) -> None:
    data = np.zeros(3)
    seen = weakref.ref(data)
    group.irecv(data, 0, tag=1)
    del data
    gc.collect()
    assert seen() is not None
    group.send(np.ones(3), 0, tag=1)
    group.isend(np.ones(3), 0, tag=2)  # looks at those that were dropped
    gc.collect()
    assert seen() is None


def test_many_dropped_operations_are_released(group: backplane.ProcessGroup) -> None:
    given = [np.zeros(1) for _ in range(100)]
    seen = [weakref.ref(each) for each in given]
    for tag in range(100):
        group.irecv(given.pop(), 0, tag=tag)
    assert all(each() is not None for each in seen)
    group.destroy()
    assert not any(each() is not None for each in seen)


def test_errors_are_of_their_kinds() -> None:
    kinds = {
        backplane.InvalidError: ValueError,
        backplane.UnsupportedError: NotImplementedError,
        backplane.TimedOutError: TimeoutError,
        backplane.PeerLostError: ConnectionError,
        backplane.ResourceError: OSError,
        backplane.CancelledError: RuntimeError,
        backplane.InternalError: RuntimeError,
    }
    for kind, base in kinds.items():
        assert issubclass(kind, base)
        assert issubclass(kind, backplane.BackplaneError)
        assert str(kind("why")) == "why"
        assert kind.__module__ == "backplane"
