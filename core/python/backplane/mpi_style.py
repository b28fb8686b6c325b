# SPDX-License-Identifier: Apache-2.0
"""The calls of mpi4py: lower-case ones for objects, upper-case ones for arrays.

    from backplane import mpi_style as MPI

    comm = MPI.COMM_WORLD
    total = comm.allreduce(comm.rank)
    comm.Allreduce(MPI.IN_PLACE, array, op=MPI.MAX)

COMM_WORLD is the default group, which its first use makes if there is none. Objects are msgpack instead of pickle.
Where mpi4py takes a buffer, an array, ``[array, datatype]`` or ``[array, count, datatype]`` is passed. Where it takes
blocks that differ in size, ``[array, counts]``, ``[array, counts, displs, datatype]`` or ``[array, (counts, displs),
datatype]`` is passed. Counts and displs are in elements; the datatype is that of the array, or BYTE. Receives of
objects, and probes, need a backend that probes, such as shm and zmq, or the layer "matching". Failures raise the errors
of `backplane`.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from backplane._buffers import View, input_view, output_view, require_same_dtype
from backplane._distributed import get_default_group, init_process_group, is_initialized
from backplane._errors import InvalidError
from backplane._group import ProcessGroup
from backplane._mpi_buffers import IN_PLACE, Blocks, array_of, blocks_of, run_blocks
from backplane._mpi_objects import ObjectCalls, peer
from backplane._mpi_types import BAND as BAND
from backplane._mpi_types import BOR as BOR
from backplane._mpi_types import BXOR as BXOR
from backplane._mpi_types import LAND as LAND
from backplane._mpi_types import LOR as LOR
from backplane._mpi_types import LXOR as LXOR
from backplane._mpi_types import MAX as MAX
from backplane._mpi_types import MAXLOC as MAXLOC
from backplane._mpi_types import MIN as MIN
from backplane._mpi_types import MINLOC as MINLOC
from backplane._mpi_types import NOTHING, fill
from backplane._mpi_types import PROC_NULL as PROC_NULL
from backplane._mpi_types import PROD as PROD
from backplane._mpi_types import SUM as SUM
from backplane._mpi_types import UNDEFINED as UNDEFINED
from backplane._mpi_types import Datatype as Datatype
from backplane._mpi_types import Message as Message
from backplane._mpi_types import Op as Op
from backplane._mpi_types import Request as Request
from backplane._mpi_types import Status as Status
from backplane._native import ffi
from backplane._types import ANY_SOURCE, ANY_TAG, Kind
from backplane._work import Work

COMM_WORLD: Comm
BOOL, C_BOOL = Datatype("BOOL", 1), Datatype("C_BOOL", 1)
BYTE, CHAR = Datatype("BYTE", 1), Datatype("CHAR", 1)
SIGNED_CHAR, UNSIGNED_CHAR = Datatype("SIGNED_CHAR", 1), Datatype("UNSIGNED_CHAR", 1)
SHORT, UNSIGNED_SHORT = Datatype("SHORT", 2), Datatype("UNSIGNED_SHORT", 2)
INT, UNSIGNED = Datatype("INT", 4), Datatype("UNSIGNED", 4)
LONG, UNSIGNED_LONG = Datatype("LONG", 8), Datatype("UNSIGNED_LONG", 8)
LONG_LONG, UNSIGNED_LONG_LONG = Datatype("LONG_LONG", 8), Datatype("UNSIGNED_LONG_LONG", 8)
FLOAT, DOUBLE = Datatype("FLOAT", 4), Datatype("DOUBLE", 8)
INT8_T, UINT8_T = Datatype("INT8_T", 1), Datatype("UINT8_T", 1)
INT16_T, UINT16_T = Datatype("INT16_T", 2), Datatype("UINT16_T", 2)
INT32_T, UINT32_T = Datatype("INT32_T", 4), Datatype("UINT32_T", 4)
INT64_T, UINT64_T = Datatype("INT64_T", 8), Datatype("UINT64_T", 8)
COMPLEX, DOUBLE_COMPLEX = Datatype("COMPLEX", 8), Datatype("DOUBLE_COMPLEX", 16)
C_FLOAT_COMPLEX, C_DOUBLE_COMPLEX = Datatype("C_FLOAT_COMPLEX", 8), Datatype("C_DOUBLE_COMPLEX", 16)


def Wtime() -> float:
    """Seconds since a fixed moment."""
    return time.monotonic()


def Get_processor_name() -> str:
    return socket.gethostname()


class Comm(ObjectCalls):
    """A communicator: a process group, in `group`."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self._probed = []

    def Get_rank(self) -> int:
        return self.group.rank()

    def Get_size(self) -> int:
        return self.group.size()

    def Get_name(self) -> str:
        return self.group.name

    @property
    def name(self) -> str:
        return self.group.name

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of the ranks of one colour; None for a rank that passes UNDEFINED."""
        group = self.group.split(color, key)
        return Comm(group) if group.rank() >= 0 else None

    def Dup(self) -> Comm:
        """A communicator of the same ranks, whose messages are separate."""
        return Comm(self.group.new_group(range(self.size)))

    Clone = Dup

    def Free(self) -> None:
        self.group.destroy()

    def Abort(self, errorcode: int = 1) -> None:
        """Makes all operations fail, on all ranks. Unlike that of MPI, ends no process."""
        self.group.abort(f"rank {self.rank} aborted with code {errorcode}")

    def barrier(self) -> None:
        self.group.barrier()

    Barrier = barrier

    # ---- Messages

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if dest != PROC_NULL:
            self.group.send(array_of(buf), dest, tag)

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        if source == PROC_NULL:
            return fill(status, NOTHING)
        array = array_of(buf)
        probed = self._take_probed(source, tag)
        fill(status, self.group.recv(array, peer(source), tag) if probed is None else probed.recv(array))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request(None if dest == PROC_NULL else self.group.isend(array_of(buf), dest, tag))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        if source == PROC_NULL:
            return Request(None, received=NOTHING)
        array = array_of(buf)
        probed = self._take_probed(source, tag)
        if probed is not None:
            return Request(None, received=probed.recv(array))
        return Request(self.group.irecv(array, peer(source), tag))

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
        if PROC_NULL in (dest, source):
            sending = self.Isend(sendbuf, dest, sendtag)
            self.Recv(recvbuf, source, recvtag, status)
            sending.wait()
            return
        sent, got = array_of(sendbuf), array_of(recvbuf)
        probed = self._take_probed(source, recvtag)
        if probed is None:
            fill(status, self.group.sendrecv(sent, dest, got, peer(source), sendtag, recvtag))
            return
        work = self.group.isend(sent, dest, sendtag)
        fill(status, probed.recv(got))
        work.wait()

    # ---- Collectives

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self.group.broadcast(array_of(buf), root)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        return Request(self.group.broadcast(array_of(buf), root, async_op=True))

    def Ibarrier(self) -> Request:
        return Request(self.group.barrier(async_op=True))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.group.all_reduce(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        return Request(self.group.all_reduce(self._reduced(sendbuf, recvbuf), op.on_arrays(), async_op=True))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """`recvbuf` is not used on other ranks than `root`, where `sendbuf` may be IN_PLACE."""
        array = self._reduced(sendbuf, recvbuf) if self.rank == root else array_of(sendbuf)
        self.group.reduce(array, root, op.on_arrays())

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.group.scan(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """`recvbuf` of rank 0 is undefined."""
        self.group.exscan(self._reduced(sendbuf, recvbuf), op.on_arrays())

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """`recvbuf` has a block per rank. IN_PLACE sends this rank's block of it."""
        self._allgather(sendbuf, recvbuf, False)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        return Request(self._allgather(sendbuf, recvbuf, True))

    Allgatherv, Iallgatherv = Allgather, Iallgather

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """`recvbuf` has a block per rank on `root`, where IN_PLACE sends its own; it is not used elsewhere."""
        out = self._blocks("recvbuf", recvbuf, True) if self.rank == root else None
        run_blocks(self.group, Kind.GATHERV, self._own("sendbuf", sendbuf, out), out, root=root)

    Gatherv = Gather

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """`sendbuf` has a block per rank on `root`, whose `recvbuf` may be IN_PLACE; it is not used elsewhere."""
        given = self._blocks("sendbuf", sendbuf, False) if self.rank == root else None
        run_blocks(self.group, Kind.SCATTERV, given, self._own("recvbuf", recvbuf, given, True), root=root)

    Scatterv = Scatter

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        out = array_of(recvbuf)
        self.group.all_to_all_single(out, out if sendbuf is IN_PLACE else array_of(sendbuf))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Block r of `sendbuf` goes to rank r. IN_PLACE is not possible."""
        if sendbuf is IN_PLACE:
            raise InvalidError("Alltoallv: `sendbuf` must not be IN_PLACE; pass a copy of `recvbuf`")
        given, out = self._blocks("sendbuf", sendbuf, False), self._blocks("recvbuf", recvbuf, True)
        run_blocks(self.group, Kind.ALL_TO_ALLV, given, out)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Reduces `sendbuf`, which has a block per rank, of one size; rank r gets block r in `recvbuf`."""
        self._reduce_scatter(sendbuf, recvbuf, None, op)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM) -> None:
        """The same with blocks of `recvcounts` elements; None: `recvbuf` of each rank tells its block's size."""
        if recvcounts is None:
            mine = output_view("recvbuf", array_of(recvbuf)).elements
            recvcounts = self.group.all_gather_object(mine)
        self._reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    # ---- Implementation

    def _allgather(self, sendbuf: Any, recvbuf: Any, is_async: bool) -> Work | None:
        out = self._blocks("recvbuf", recvbuf, True)
        return run_blocks(self.group, Kind.ALL_GATHERV, self._own("sendbuf", sendbuf, out), out, is_async=is_async)

    def _reduce_scatter(self, sendbuf: Any, recvbuf: Any, counts: Any, op: Op) -> None:
        if sendbuf is IN_PLACE:
            raise InvalidError("Reduce_scatter: `sendbuf` must not be IN_PLACE; pass a copy of `recvbuf`")
        array = array_of(sendbuf)
        given = self._blocks("sendbuf", array if counts is None else [array, counts], False)
        out = output_view("recvbuf", array_of(recvbuf))
        run_blocks(self.group, Kind.REDUCE_SCATTERV, given, out, op.on_arrays())

    def _blocks(self, name: str, buffer: Any, is_written: bool) -> Blocks:
        return blocks_of(name, buffer, self.size, is_written)

    def _own(self, name: str, buffer: Any, blocks: Blocks | None, is_written: bool = False) -> View:
        """The array of one block; IN_PLACE: this rank's own of `blocks`."""
        if buffer is not IN_PLACE:
            return (output_view if is_written else input_view)(name, array_of(buffer))
        if blocks is None:
            raise InvalidError(f"`{name}` is IN_PLACE on rank {self.rank}, which is not the root; pass an array")
        return blocks.block(self.rank)

    def _reduced(self, sendbuf: Any, recvbuf: Any) -> Any:
        out = array_of(recvbuf)
        if sendbuf is not IN_PLACE:
            to, given = output_view("recvbuf", out), input_view("sendbuf", array_of(sendbuf))
            require_same_dtype("sendbuf", given, "recvbuf", to)
            if given.elements != to.elements:
                raise InvalidError(f"`sendbuf` has {given.elements} elements, `recvbuf` has {to.elements}")
            ffi.memmove(to.data, given.data, len(given.data))
        return out


_world: Comm | None = None


def __getattr__(name: str) -> Any:
    global _world
    if name != "COMM_WORLD":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    group = get_default_group() if is_initialized() else init_process_group()
    if _world is None or _world.group is not group:
        _world = Comm(group)
    return _world
