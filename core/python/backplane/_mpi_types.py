# SPDX-License-Identifier: Apache-2.0
"""Operations, datatypes, statuses, requests and messages of `backplane.mpi_style`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Union

from backplane import _group_messages
from backplane._errors import InvalidError, UnsupportedError
from backplane._objects import unpack
from backplane._types import ANY_SOURCE, ANY_TAG, Received, ReduceOp
from backplane._work import Work, wait_any

PROC_NULL = -2  # the rank of nobody: messages to it and from it are empty, and end at once
UNDEFINED = -32766  # the colour of a rank that joins no communicator, and a count that is no whole number


class Datatype:
    """The type of an element, and its size in bytes."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def Get_size(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<backplane.mpi_style.{self.name}>"


class Op:
    """How a reduction combines values: a function of two objects, and the operation on arrays if there is one."""

    def __init__(self, name: str, function: Callable[[Any, Any], Any], reduce_op: ReduceOp | None) -> None:
        self.name = name
        self.function = function
        self.reduce_op = reduce_op

    @classmethod
    def Create(cls, function: Callable[[Any, Any], Any], commute: bool = False) -> Op:
        """An operation of the program, for objects. It is applied in rank order."""
        return cls("an operation of the program", function, None)

    def Free(self) -> None:
        """Does nothing, as an operation holds nothing."""

    def on_arrays(self) -> ReduceOp:
        if self.reduce_op is None:
            raise UnsupportedError(f"{self.name} works on objects only; use a lower-case call")
        return self.reduce_op


SUM = Op("SUM", operator.add, ReduceOp.SUM)
PROD = Op("PROD", operator.mul, ReduceOp.PRODUCT)
MIN = Op("MIN", min, ReduceOp.MIN)
MAX = Op("MAX", max, ReduceOp.MAX)
BAND = Op("BAND", operator.and_, ReduceOp.BAND)
BOR = Op("BOR", operator.or_, ReduceOp.BOR)
BXOR = Op("BXOR", operator.xor, ReduceOp.BXOR)
LAND = Op("LAND", lambda a, b: bool(a) and bool(b), None)
LOR = Op("LOR", lambda a, b: bool(a) or bool(b), None)
LXOR = Op("LXOR", lambda a, b: bool(a) != bool(b), None)
MINLOC = Op("MINLOC", lambda a, b: min(a, b), None)
MAXLOC = Op("MAXLOC", lambda a, b: b if b[0] > a[0] or (b[0] == a[0] and b[1] < a[1]) else a, None)
AnyOp = Union[Op, Callable[[Any, Any], Any]]


NOTHING = Received(PROC_NULL, ANY_TAG, 0)  # what a receive from PROC_NULL gets


class Status:
    """Source, tag and size of a received message."""

    def __init__(self) -> None:
        self._received = Received(ANY_SOURCE, 0, 0)

    def Get_source(self) -> int:
        return self._received.source

    def Get_tag(self) -> int:
        return self._received.tag

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """The number of elements of the datatype; None: of bytes. UNDEFINED if they do not fill the message."""
        size = 1 if datatype is None else datatype.size
        count, rest = divmod(self._received.nbytes, size)
        return UNDEFINED if rest else count

    Get_elements = Get_count
    source = property(Get_source)
    tag = property(Get_tag)
    count = property(Get_count)


def fill(status: Status | None, received: Received) -> None:
    if status is not None:
        status._received = received


class Message:
    """A message that a matched probe took. One receive gets it; dropped, it is lost. None: it is from PROC_NULL."""

    def __init__(self, taken: _group_messages.Message | None) -> None:
        self._taken = taken

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receives into an array."""
        fill(status, NOTHING if self._taken is None else self._taken.recv(buf))

    def recv(self, status: Status | None = None) -> Any:
        """Receives an object, and returns it."""
        if self._taken is None:
            fill(status, NOTHING)
            return None
        obj, received = take_object(self._taken)
        fill(status, received)
        return obj


def take_object(message: _group_messages.Message) -> tuple[Any, Received]:
    packed = bytearray(message.nbytes)
    received = message.recv(packed)
    return unpack(bytes(packed)), received


class Request:
    """An operation in flight. `wait` returns the object of an irecv.

    An irecv of an object takes its message when it is waited for or tested.
    """

    def __init__(
        self, work: Work | None, receive: Callable[[bool], Any] | None = None, received: Received | None = None
    ) -> None:
        self._work = work
        self._receive = receive
        self._received = received
        self._object: Any = None

    def wait(self, status: Status | None = None) -> Any:
        """Blocks until the operation has ended. Returns the received object, or None."""
        if self._work is not None:
            self._work.wait()
            fill(status, self._work.received())
        elif self._receive is not None:
            self._object, self._received = self._receive(True)
            self._receive = None
        if self._received is not None:
            fill(status, self._received)
        return self._object

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether the operation has ended, and the received object. Does not block."""
        if self._work is not None and not self._work.is_completed():
            return False, None
        if self._receive is not None:
            taken = self._receive(False)
            if taken is None:
                return False, None
            (self._object, self._received), self._receive = taken, None
        return True, self.wait(status)

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    def Cancel(self) -> None:
        """Asks the operation to end with CancelledError."""
        if self._work is not None:
            self._work.cancel()
        self._receive = None

    cancel = Cancel

    @staticmethod
    def waitall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> list[Any]:
        """Waits for all, and returns their objects."""
        waited = list(requests)
        if statuses is not None and len(statuses) != len(waited):
            raise InvalidError(f"`statuses` has {len(statuses)} items; it must have one per request, {len(waited)}")
        return [request.wait(statuses[i] if statuses is not None else None) for i, request in enumerate(waited)]

    @staticmethod
    def Waitall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> bool:
        Request.waitall(requests, statuses)
        return True

    @staticmethod
    def Waitany(requests: Sequence[Request], status: Status | None = None) -> int:
        """Waits for one of the operations on arrays, and returns its index."""
        for index, request in enumerate(requests):
            if request._work is None and request._receive is None:  # a message that a probe took
                request.wait(status)
                return index
        works = [request._work for request in requests if request._work is not None]
        if len(works) != len(requests):
            raise UnsupportedError("Waitany waits for operations on arrays; wait for an irecv of an object with `wait`")
        index = wait_any(works)
        requests[index].wait(status)
        return index
