# SPDX-License-Identifier: Apache-2.0
"""A rank's program: the calls of mpi4py, wait_any and probes, on three ranks."""

from __future__ import annotations

import operator

import backplane
import numpy as np
from backplane import mpi_style as MPI
from support import raised

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size
assert (comm.rank, comm.size) == (rank, size) == (backplane.get_rank(), 3)


def objects() -> None:
    assert comm.bcast({"root": rank}, root=1) == {"root": 1}
    assert comm.gather(rank, root=2) == ([0, 1, 2] if rank == 2 else None)
    assert comm.allgather("x" * rank) == ["", "x", "xx"]
    assert comm.scatter([[0], [1], [2]] if rank == 0 else None) == [rank]
    assert comm.alltoall([10 * rank + to for to in range(size)]) == [10 * of + rank for of in range(size)]
    assert comm.reduce(rank + 1, op=MPI.PROD, root=0) == (6 if rank == 0 else None)
    assert comm.allreduce([rank]) == [0, 1, 2]
    assert comm.allreduce(rank, MPI.MAX) == 2
    assert comm.allreduce(rank, max) == 2
    assert comm.allreduce(rank > 0, MPI.LAND) is False
    assert comm.allreduce(rank > 0, MPI.LOR) is True
    assert comm.allreduce(str(rank), MPI.Op.Create(operator.concat)) == "012"
    assert comm.scan(rank) == sum(range(rank + 1))
    assert comm.exscan(rank) == (sum(range(rank)) if rank else None)


def object_messages() -> None:
    status = MPI.Status()
    assert comm.sendrecv({"of": rank}, dest=right, source=left, status=status) == {"of": left}
    assert (status.source, status.tag) == (left, 0)
    assert status.Get_count() > 0
    if rank == 0:
        comm.send(["first"], dest=1, tag=11)
        comm.send(["second"], dest=1, tag=12)
    elif rank == 1:
        assert comm.recv(source=0, tag=12) == ["second"]
        assert comm.recv(status=status) == ["first"]
        assert status.Get_tag() == 11
    receiving = comm.irecv(source=left, tag=3)
    comm.isend(rank, dest=right, tag=3).wait()
    assert receiving.wait() == left
    assert receiving.test() == (True, left)
    receiving = comm.irecv(source=left, tag=4)
    comm.Barrier()
    assert receiving.test() == (False, None)
    comm.Barrier()
    sending = comm.isend("late", dest=right, tag=4)
    while not receiving.test()[0]:
        pass
    assert MPI.Request.waitall([receiving, sending]) == ["late", None]


def arrays() -> None:
    array, out = np.arange(4.0) + rank, np.zeros(4)
    comm.Allreduce(array, out)
    np.testing.assert_array_equal(out, 3 * np.arange(4.0) + 3)
    np.testing.assert_array_equal(array, np.arange(4.0) + rank)
    comm.Allreduce(MPI.IN_PLACE, array, op=MPI.MAX)
    np.testing.assert_array_equal(array, np.arange(4.0) + 2)
    comm.Bcast([out, MPI.DOUBLE], root=0)
    partial = np.full(4, rank)
    comm.Bcast([partial, 2, MPI.LONG], root=2)
    np.testing.assert_array_equal(partial, [2, 2, rank, rank])
    given = np.full(2, rank + 1j)
    total = np.zeros(2, complex) if rank == 1 else None
    comm.Reduce(given, total, root=1)
    assert total is None or (total == 3 + 3j).all()
    assert (given == rank + 1j).all()
    prefix = np.zeros(1, int)
    comm.Scan(np.array([rank + 1]), prefix)
    assert prefix[0] == (rank + 1) * (rank + 2) // 2
    comm.Exscan(np.array([rank + 1]), prefix)
    assert rank == 0 or prefix[0] == rank * (rank + 1) // 2
    everyones = np.zeros((3, 2), int)
    comm.Allgather(np.full(2, rank), everyones)
    assert everyones.tolist() == [[0, 0], [1, 1], [2, 2]]
    everyones = np.zeros(3, int)
    everyones[rank] = rank + 5
    comm.Allgather(MPI.IN_PLACE, everyones)
    assert everyones.tolist() == [5, 6, 7]
    gathered = np.zeros(3, int)
    comm.Gather(np.array([rank]), gathered if rank == 0 else None)
    assert rank != 0 or gathered.tolist() == [0, 1, 2]
    mine = np.zeros(2)
    comm.Scatter(np.arange(6.0) if rank == 1 else None, mine, root=1)
    assert mine.tolist() == [2 * rank, 2 * rank + 1]
    swapped = np.zeros(3, int)
    comm.Alltoall(np.arange(3) + 10 * rank, swapped)
    assert swapped.tolist() == [rank, 10 + rank, 20 + rank]
    block = np.zeros(1)
    comm.Reduce_scatter_block(np.arange(3.0), block)
    assert block[0] == 3 * rank
    comm.Ibarrier().Wait()
    out = np.full(2, rank)
    comm.Ibcast(out, root=1).wait()
    assert out.tolist() == [1, 1]
    comm.Iallreduce(MPI.IN_PLACE, out).Wait()
    assert out.tolist() == [3, 3]
    raised(NotImplementedError, comm.Allreduce, MPI.IN_PLACE, out, op=MPI.LAND)
    raised(ValueError, comm.Allreduce, np.zeros(3), np.zeros(2))
    raised(ValueError, comm.Allreduce, np.zeros(2, "f4"), np.zeros(2))
    comm.Barrier()


def array_messages() -> None:
    status, got = MPI.Status(), np.zeros(2)
    comm.Sendrecv(np.full(2, float(rank)), right, 0, got, left, status=status)
    assert got[0] == left
    assert status.Get_source() == left
    requests = [comm.Irecv(got, left, 7), comm.Isend([np.full(2, 5.0), MPI.DOUBLE], right, 7)]
    assert MPI.Request.Waitall(requests)
    assert (got == 5).all()
    comm.Isend(np.ones(3, "i4"), right, tag=9)
    message = comm.Mprobe(left, 9, status)
    assert (status.source, status.tag, status.Get_count(MPI.INT)) == (left, 9, 3)
    assert status.Get_count(MPI.DOUBLE) == MPI.UNDEFINED
    ints = np.zeros(3, "i4")
    message.Recv(ints)
    assert ints.tolist() == [1, 1, 1]
    raised(ValueError, message.Recv, ints)
    assert comm.Improbe(left, 9) is None
    comm.Barrier()
    comm.Isend(np.ones(1), right, tag=9)
    while comm.Improbe(left, 9) is None:  # the message is dropped
        pass
    comm.Barrier()
    error = raised(TimeoutError, comm.group.probe, left, 9, timeout=0.01)
    assert isinstance(error, backplane.TimedOutError)


def probed_messages() -> None:
    """A probe leaves the message to the next receive that matches."""
    status, got = MPI.Status(), np.zeros(4)
    assert not comm.Iprobe(left, 40)
    comm.Barrier()
    comm.Isend(np.full(4, 1.0), right, tag=40)
    comm.Isend(np.full(2, 2.0), right, tag=41)
    comm.Isend(np.full(1, 3.0), right, tag=42)
    comm.isend({"tag": 43}, right, tag=43)
    assert comm.Probe(left, 41, status)
    assert status.Get_count(MPI.DOUBLE) == 2
    while not comm.Iprobe(left, 42):
        pass
    assert comm.Iprobe(left, 42, status)
    assert status.Get_elements(MPI.DOUBLE) == 1
    comm.Recv(got, left, 40, status)  # another message
    assert got.tolist() == [1, 1, 1, 1]
    comm.Recv(got, left, 41)
    assert got.tolist() == [2, 2, 1, 1]
    request = comm.Irecv(got, MPI.ANY_SOURCE, 42)
    assert request.Test(status)
    assert (status.source, status.tag, got[0]) == (left, 42, 3)
    assert comm.probe(left, 43)
    assert comm.recv(source=left, tag=43) == {"tag": 43}
    comm.isend("again", right, tag=44)
    assert comm.mprobe(left, 44).recv(status) == "again"
    assert status.tag == 44
    comm.Isend(np.full(1, 5.0), right, tag=45)
    comm.Probe(left, 45)
    comm.Sendrecv(np.full(1, 6.0), right, 46, got, left, 45)
    assert got[0] == 5
    requests = [comm.Irecv(got, left, 46)]
    assert MPI.Request.Waitany(requests) == 0
    assert got[0] == 6


def messages_of_nobody() -> None:
    """A shift along a line, whose ends have no neighbour, with the same calls on all ranks."""
    before, after = (rank - 1 if rank > 0 else MPI.PROC_NULL), (rank + 1 if rank < size - 1 else MPI.PROC_NULL)
    status, got = MPI.Status(), np.full(2, -1.0)
    comm.Sendrecv(np.full(2, float(rank)), after, 0, got, before, status=status)
    assert got.tolist() == [rank - 1.0] * 2, "the array of a receive from PROC_NULL is not changed"
    assert status.source == before and status.count == (16 if rank > 0 else 0)
    assert rank > 0 or status.tag == MPI.ANY_TAG
    assert comm.sendrecv({"of": rank}, after, source=before) == ({"of": rank - 1} if rank > 0 else None)
    requests = [comm.Irecv(got, after, 5), comm.Isend(got.copy(), before, 5), comm.irecv(source=MPI.PROC_NULL)]
    assert MPI.Request.waitall([*requests, comm.isend("lost", MPI.PROC_NULL)]) == [None] * 4
    comm.Send(got, MPI.PROC_NULL)
    comm.send("lost", MPI.PROC_NULL)
    comm.Recv(got, MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL and comm.recv(source=MPI.PROC_NULL) is None
    assert comm.Probe(MPI.PROC_NULL, status=status) and comm.Iprobe(MPI.PROC_NULL)
    for found in (comm.Mprobe(MPI.PROC_NULL, status=status), comm.Improbe(MPI.PROC_NULL)):
        assert found is not None and status.Get_count(MPI.DOUBLE) == 0 and found.recv() is None
        found.Recv(got, status)
    assert status.source == MPI.PROC_NULL


def blocks() -> None:
    """Blocks of 1, 2 and 3 elements."""
    counts, mine = [1, 2, 3], np.full(rank + 1, float(rank))
    out = np.full(6, -1.0)
    comm.Allgatherv(mine, [out, counts])
    assert out.tolist() == [0, 1, 1, 2, 2, 2]
    apart = np.full(9, -1.0)
    comm.Allgatherv([mine, MPI.DOUBLE], [apart, counts, [0, 2, 6], MPI.DOUBLE])
    assert apart.tolist() == [0, -1, 1, 1, -1, -1, 2, 2, 2]
    comm.Allgatherv(MPI.IN_PLACE, [apart, (counts, np.array([0, 2, 6])), MPI.DOUBLE])
    assert apart.tolist() == [0, -1, 1, 1, -1, -1, 2, 2, 2]
    out[:] = -1
    comm.Iallgatherv(mine, [out, (counts, None)]).Wait()
    assert out.tolist() == [0, 1, 1, 2, 2, 2]
    out[:] = -1
    comm.Gatherv(mine, [out, counts] if rank == 1 else None, root=1)
    assert out.tolist() == ([0, 1, 1, 2, 2, 2] if rank == 1 else [-1] * 6)
    if rank == 1:
        out[1:3] = 7
    comm.Gatherv(MPI.IN_PLACE if rank == 1 else mine, [out, counts], root=1)
    assert rank != 1 or out.tolist() == [0, 7, 7, 2, 2, 2]
    got = np.zeros(rank + 1)
    comm.Scatterv([np.arange(6.0), counts, None, MPI.DOUBLE] if rank == 0 else None, got)
    assert got.tolist() == [[0], [1, 2], [3, 4, 5]][rank]
    whole = np.arange(6.0)
    comm.Scatterv([whole, counts], MPI.IN_PLACE if rank == 2 else got, root=2)
    assert got.tolist() == [[0], [1, 2], [3, 4, 5]][rank]
    assert whole.tolist() == list(range(6))
    received = np.zeros(3 * (rank + 1))  # rank r sends c elements to the rank of count c, and gets r + 1 from each
    comm.Alltoallv([np.repeat(np.arange(3) + 10.0 * rank, counts), counts], [received, [rank + 1] * 3])
    assert received.tolist() == [10.0 * of + rank for of in range(3) for _ in range(rank + 1)]
    total = np.zeros(rank + 1)
    comm.Reduce_scatter(np.arange(6.0), total, counts)
    assert total.tolist() == [[0], [3, 6], [9, 12, 15]][rank]
    comm.Reduce_scatter(np.arange(6.0), total, op=MPI.MAX)
    assert total.tolist() == [[0], [1, 2], [3, 4, 5]][rank]
    for wrong in ([out, [1, 2]], [out, [1, 2, 4]], [out, counts, [0, 1, 4]], [out, [1, 2, -1]], np.zeros(4)):
        raised(ValueError, comm.Allgatherv, mine, wrong)
    raised(ValueError, comm.Allgatherv, mine.astype("f4"), [out, counts])
    raised(ValueError, comm.Alltoallv, MPI.IN_PLACE, out)
    raised(ValueError, comm.Bcast, [out, MPI.FLOAT])
    raised(ValueError, comm.Bcast, [out, counts, MPI.DOUBLE])
    raw = np.arange(2.0) + rank
    comm.Bcast([raw, 8, MPI.BYTE], root=1)
    assert raw.tolist() == [1, 1 + rank]
    comm.Barrier()


def communicators() -> None:
    pair = comm.Split(0 if rank < 2 else MPI.UNDEFINED, key=-rank)
    assert (pair is None) == (rank == 2)
    if pair is not None:
        assert pair.rank == 1 - rank
        assert pair.allgather(rank) == [1, 0]
        pair.Free()
    assert MPI.COMM_WORLD is comm
    other = comm.Dup()
    assert other.allreduce(1) == 3
    other.Free()


def waiting_for_any() -> None:
    arrays = [np.zeros(1) for _ in range(3)]
    works = [backplane.irecv(array, left, tag=20 + i) for i, array in enumerate(arrays)]
    raised(backplane.TimedOutError, backplane.wait_any, works, 0.01)
    raised(ValueError, backplane.wait_any, [])
    comm.Barrier()
    backplane.isend(np.ones(1), right, tag=21)
    assert backplane.wait_any(works) == 1
    assert works[1].is_completed()
    works[0].cancel()
    assert backplane.wait_any([works[0], works[2]]) == 0
    raised(backplane.CancelledError, works[0].wait)
    works[2].cancel()
    assert backplane.wait_any(works[2:]) == 0
    requests = [comm.Irecv(arrays[0], left, 30), comm.Irecv(arrays[1], left, 31)]
    comm.Isend(np.ones(1), right, 31)
    assert MPI.Request.Waitany(requests) == 1
    requests[0].Cancel()
    raised(backplane.CancelledError, requests[0].wait)


for check in (
    objects,
    object_messages,
    arrays,
    array_messages,
    probed_messages,
    messages_of_nobody,
    blocks,
    communicators,
    waiting_for_any,
):
    try:
        check()
    except BaseException:
        print(f"in {check.__name__}:", flush=True)
        raise
    backplane.barrier()
backplane.destroy_process_group()
print(f"rank {rank} passed")
