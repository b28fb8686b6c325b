# SPDX-License-Identifier: Apache-2.0
"""The calls of mpi4py: lower-case ones for objects, upper-case ones for arrays.

    from backplane import mpi_style as MPI

    comm = MPI.COMM_WORLD
    total = comm.allreduce(comm.rank)
    comm.Allreduce(MPI.IN_PLACE, array, op=MPI.MAX)

COMM_WORLD is the default group, which its first use makes if there is none. Objects are msgpack instead of pickle.
Where mpi4py takes a buffer, an array, ``[array, datatype]`` or ``[array, count, datatype]`` is passed; the datatype
is that of the array, whatever is named. Receives of objects, and probes, need a backend that probes, such as shm and
zmq, or the layer "matching". Failures raise the errors of `backplane`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce as _fold
from typing import Any, Callable, Union

from backplane._buffers import input_view, output_view, require_same_dtype
from backplane._distributed import get_default_group, init_process_group, is_initialized
from backplane._errors import InvalidError, UnsupportedError
from backplane._group import ProcessGroup
from backplane._group_messages import Message
from backplane._native import ffi
from backplane._objects import pack, unpack
from backplane._types import ANY_SOURCE, ANY_TAG, Received, ReduceOp
from backplane._work import Work, wait_any

COMM_WORLD: Comm
IN_PLACE = object()  # the argument of a collective that works on one array
UNDEFINED = -1  # the colour of a rank that joins no communicator
BOOL, INT, LONG, FLOAT, DOUBLE = "BOOL", "INT", "LONG", "FLOAT", "DOUBLE"
BYTE, INT32_T, INT64_T, UINT64_T, COMPLEX = "BYTE", "INT32_T", "INT64_T", "UINT64_T", "COMPLEX"


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
AnyOp = Union[Op, Callable[[Any, Any], Any]]


class Status:
    """Source, tag and size of a received message."""

    def __init__(self) -> None:
        self._received = Received(ANY_SOURCE, 0, 0)

    def Get_source(self) -> int:
        return self._received.source

    def Get_tag(self) -> int:
        return self._received.tag

    def Get_count(self, datatype: object = None) -> int:
        """The size in bytes, whatever the datatype."""
        return self._received.nbytes

    source = property(Get_source)
    tag = property(Get_tag)
    count = property(Get_count)


class Request:
    """An operation in flight. `wait` returns the object of an irecv.

    An irecv of an object takes its message when it is waited for or tested.
    """

    def __init__(self, work: Work | None, receive: Callable[[bool], Any] | None = None) -> None:
        self._work = work
        self._receive = receive
        self._object: Any = None

    def wait(self, status: Status | None = None) -> Any:
        """Blocks until the operation has ended. Returns the received object, or None."""
        if self._work is not None:
            self._work.wait()
            _fill(status, self._work.received())
        elif self._receive is not None:
            self._object, received = self._receive(True)
            self._receive = None
            _fill(status, received)
        return self._object

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether the operation has ended, and the received object. Does not block."""
        if self._work is not None:
            return (True, self.wait(status)) if self._work.is_completed() else (False, None)
        if self._receive is not None:
            taken = self._receive(False)
            if taken is None:
                return False, None
            (self._object, received), self._receive = taken, None
            _fill(status, received)
        return True, self._object

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

    @staticmethod
    def waitall(requests: Iterable[Request]) -> list[Any]:
        """Waits for all, and returns their objects."""
        return [request.wait() for request in requests]

    @staticmethod
    def Waitall(requests: Iterable[Request]) -> bool:
        Request.waitall(requests)
        return True

    @staticmethod
    def Waitany(requests: Sequence[Request]) -> int:
        """Waits for one of the operations on arrays, and returns its index."""
        works = [request._work for request in requests if request._work is not None]
        if len(works) != len(requests):
            raise UnsupportedError("Waitany waits for operations on arrays; wait for an irecv of an object with `wait`")
        index = wait_any(works)
        requests[index].wait()
        return index


def _fill(status: Status | None, received: Received) -> None:
    if status is not None:
        status._received = received


def _array(given: Any) -> Any:
    """The array of a buffer argument."""
    if not isinstance(given, (list, tuple)):
        return given
    array, *rest = given
    counts = [each for each in rest if isinstance(each, int)]
    return array if not counts else array[: counts[0]]


def _function(op: AnyOp) -> Callable[[Any, Any], Any]:
    return op.function if isinstance(op, Op) else op


def _source(source: int) -> int | None:
    return None if source == ANY_SOURCE else source


class Comm:
    """A communicator: a process group, in `group`."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def Get_rank(self) -> int:
        return self.group.rank()

    def Get_size(self) -> int:
        return self.group.size()

    rank = property(Get_rank)
    size = property(Get_size)

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of the ranks of one colour; None for a rank that passes UNDEFINED."""
        group = self.group.split(color, key)
        return Comm(group) if group.rank() >= 0 else None

    def Dup(self) -> Comm:
        """A communicator of the same ranks, whose messages are separate."""
        return Comm(self.group.new_group(range(self.size)))

    def Free(self) -> None:
        self.group.destroy()

    def Abort(self, errorcode: int = 1) -> None:
        """Makes all operations fail, on all ranks. Unlike that of MPI, ends no process."""
        self.group.abort(f"rank {self.rank} aborted with code {errorcode}")

    def barrier(self) -> None:
        self.group.barrier()

    Barrier = barrier

    # ---- Objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.group.send(pack("obj", obj), dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request(self.group.isend(pack("obj", obj), dest, tag))

    def _take(self, message: Message) -> tuple[Any, Received]:
        packed = bytearray(message.nbytes)
        received = message.recv(packed)
        return unpack(bytes(packed)), received

    def recv(self, buf: None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        obj, received = self._take(self.group.probe(_source(source), tag))
        _fill(status, received)
        return obj

    def irecv(self, buf: None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        def receive(blocking: bool) -> Any:
            peer = _source(source)
            message = self.group.probe(peer, tag) if blocking else self.group.iprobe(peer, tag)
            return None if message is None else self._take(message)

        return Request(None, receive)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        sending = self.isend(sendobj, dest, sendtag)
        received = self.recv(None, source, recvtag, status)
        sending.wait()
        return received

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        return self.group.broadcast_object(obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        return self.group.gather_object(sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        return self.group.all_gather_object(sendobj)

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        return self.group.scatter_object(sendobj, root)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Object r of each rank goes to rank r. Every rank receives all objects, and drops those of others."""
        if len(sendobj) != self.size:
            raise InvalidError(f"`sendobj` has {len(sendobj)} objects; it must have one per rank, {self.size}")
        return [each[self.rank] for each in self.group.all_gather_object(list(sendobj))]

    def reduce(self, sendobj: Any, op: AnyOp = SUM, root: int = 0) -> Any:
        objects = self.group.gather_object(sendobj, root)
        return None if objects is None else _fold(_function(op), objects)

    def allreduce(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        return _fold(_function(op), self.group.all_gather_object(sendobj))

    def scan(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        return _fold(_function(op), self.group.all_gather_object(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        before = self.group.all_gather_object(sendobj)[: self.rank]
        return _fold(_function(op), before) if before else None

    # ---- Arrays

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.group.send(_array(buf), dest, tag)

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        _fill(status, self.group.recv(_array(buf), _source(source), tag))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request(self.group.isend(_array(buf), dest, tag))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request(self.group.irecv(_array(buf), _source(source), tag))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        sent, got = _array(sendbuf), _array(recvbuf)
        _fill(status, self.group.sendrecv(sent, dest, got, _source(source), sendtag, recvtag))

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Message:
        """Waits for a message and takes it, as MPI's Mprobe: only ``Message.recv`` receives it."""
        return self.group.probe(_source(source), tag)

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Message | None:
        """The same for a message that has arrived, as Improbe. None if there is none."""
        return self.group.iprobe(_source(source), tag)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self.group.broadcast(_array(buf), root)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        return Request(self.group.broadcast(_array(buf), root, async_op=True))

    def Ibarrier(self) -> Request:
        return Request(self.group.barrier(async_op=True))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.group.all_reduce(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        return Request(self.group.all_reduce(self._reduced(sendbuf, recvbuf), op.on_arrays(), async_op=True))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """`recvbuf` is not used on other ranks than `root`, where `sendbuf` may be IN_PLACE."""
        array = self._reduced(sendbuf, recvbuf) if self.rank == root else _array(sendbuf)
        self.group.reduce(array, root, op.on_arrays())

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.group.scan(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """`recvbuf` of rank 0 is undefined."""
        self.group.exscan(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        out = _array(recvbuf)
        given = list(self._blocks(out))[self.rank] if sendbuf is IN_PLACE else _array(sendbuf)
        self.group.all_gather_into_tensor(out, given)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        out = None if self.rank != root else list(self._blocks(recvbuf))
        self.group.gather(_array(sendbuf), out, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        given = None if self.rank != root else list(self._blocks(sendbuf))
        self.group.scatter(_array(recvbuf), given, root)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        out = _array(recvbuf)
        self.group.all_to_all_single(out, out if sendbuf is IN_PLACE else _array(sendbuf))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.group.reduce_scatter_tensor(_array(recvbuf), _array(sendbuf), op.on_arrays())

    def _reduced(self, sendbuf: Any, recvbuf: Any) -> Any:
        out = _array(recvbuf)
        if sendbuf is not IN_PLACE:
            to, given = output_view("recvbuf", out), input_view("sendbuf", _array(sendbuf))
            require_same_dtype("sendbuf", given, "recvbuf", to)
            if given.elements != to.elements:
                raise InvalidError(f"`sendbuf` has {given.elements} elements, `recvbuf` has {to.elements}")
            ffi.memmove(to.data, given.data, len(given.data))
        return out

    def _blocks(self, buffer: Any) -> Iterable[Any]:
        array = _array(buffer)
        flat = array.reshape(-1) if hasattr(array, "reshape") else array
        if len(flat) % self.size != 0:
            raise InvalidError(f"an array of {len(flat)} elements has no blocks of one size for {self.size} ranks")
        each = len(flat) // self.size
        return (flat[r * each : (r + 1) * each] for r in range(self.size))


def __getattr__(name: str) -> Any:
    if name == "COMM_WORLD":
        return Comm(get_default_group() if is_initialized() else init_process_group())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
