# SPDX-License-Identifier: Apache-2.0
"""A rank's program: messages and objects between two ranks."""

from __future__ import annotations

import asyncio
import datetime
import gc

import backplane
import numpy as np
from backplane.torch import _monitored_barrier
from support import raised

group = backplane.init_process_group()
rank = group.rank()
peer = 1 - rank


def ping_pong() -> None:
    array = np.zeros(1)
    if rank == 0:
        array += 1
        backplane.send(array, 1, tag=7)
        assert backplane.recv(array, 1, tag=8) == 1
        assert array[0] == 2
    else:
        assert backplane.recv(array, 0, tag=7) == 0
        array += 1
        backplane.send(array, 0, tag=8)


def batches() -> None:
    P2POp = backplane.P2POp
    got = [np.zeros(3), np.zeros(2)]
    works = backplane.batch_isend_irecv(
        [
            P2POp(backplane.irecv, got[1], peer, group, 12),
            P2POp(backplane.irecv, got[0], peer, tag=11),
            P2POp(backplane.isend, np.full(3, 1.0 + rank), peer, tag=11),
            P2POp(backplane.isend, np.full(2, 3.0 + rank), peer, group, 12),
        ]
    )
    assert len(works) == 4 and all(work.wait() for work in works)
    assert [each.tolist() for each in got] == [[1.0 + peer] * 3, [3.0 + peer] * 2]
    raised(ValueError, P2POp, backplane.send, got[0], peer)
    raised(ValueError, backplane.batch_isend_irecv, [])
    raised(TypeError, backplane.batch_isend_irecv, [backplane.isend])
    receive = P2POp(backplane.irecv, got[0], peer, tag=13)
    error = raised(ValueError, backplane.batch_isend_irecv, [receive, P2POp(backplane.isend, got[1], 7)])
    assert "7" in str(error), error
    backplane.barrier()  # the receive of tag 13 was cancelled, and takes no message
    sending = backplane.isend(np.full(3, 5.0), peer, tag=13)
    backplane.recv(got[0], peer, tag=13)
    sending.wait()
    assert got[0].tolist() == [5.0] * 3


def any_source() -> None:
    if rank == 0:
        backplane.send(np.arange(3), 1, tag=5)
    else:
        array = np.full(5, -1)
        received = group.recv(array, tag=5 if group.backend == "gloo" else backplane.ANY_TAG)
        assert received == backplane.Received(source=0, tag=5, nbytes=24)
        np.testing.assert_array_equal(array, [0, 1, 2, -1, -1])


def too_long() -> None:
    if rank == 0:
        backplane.send(np.arange(8), 1)
        backplane.send(np.arange(2), 1)
    else:
        error = raised(ValueError, backplane.recv, np.zeros(2, int), 0)
        assert error.status == backplane.Status.INVALID
        array = np.zeros(2, int)
        backplane.recv(array, 0)  # the group is usable
        np.testing.assert_array_equal(array, [0, 1])


def asynchronous() -> None:
    array = np.zeros(4)
    receiving = backplane.irecv(array, peer)
    sending = backplane.isend(np.full(4, rank + 1.0), peer)
    sending.wait()
    assert receiving.source_rank() == peer
    np.testing.assert_array_equal(array, np.full(4, peer + 1.0))


def dropped_send() -> None:
    """The arrays of sends that the program forgets live until they are sent."""
    count = 500_000
    if rank == 0:
        for i in range(5):
            backplane.isend(np.full(count, float(i)), 1, tag=i)
        gc.collect()
        np.full(count, -1.0)
        backplane.barrier()
    else:
        backplane.barrier()
        for i in range(5):
            array = np.zeros(count)
            backplane.recv(array, 0, tag=i)
            assert (array == i).all()


def still_in_flight() -> None:
    array = np.zeros(1)
    work = backplane.irecv(array, peer, tag=99)
    assert not work.is_completed()
    assert work.exception() is None
    error = raised(TimeoutError, work.wait, 0.01)
    assert "in flight" in str(error)
    work.cancel()
    error = raised(backplane.CancelledError, work.wait)
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), backplane.CancelledError)
    backplane.barrier()


def exchange() -> None:
    array = np.zeros(300_000)
    received = group.sendrecv(np.full(300_000, float(rank)), peer, array, peer, send_tag=1, recv_tag=1)
    assert received.source == peer
    assert (array == peer).all()


def awaited() -> None:
    async def main() -> None:
        arrays = [np.zeros(4) for _ in range(3)]
        receiving = [group.irecv(array, peer, tag=i) for i, array in enumerate(arrays)]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            for _ in range(3):
                ticks += 1
                await asyncio.sleep(0.01)

        async def send() -> None:
            await asyncio.sleep(0.02)
            for i in (2, 1, 0):
                await group.isend(np.full(4, float(i)), peer, tag=i)

        *works, _, _ = await asyncio.gather(*map(wait, receiving), tick(), send())
        assert works == receiving
        assert ticks == 3
        assert [array[0] for array in arrays] == [0, 1, 2]

    async def wait(work: backplane.Work) -> backplane.Work:
        return await work

    asyncio.run(main())


def objects() -> None:
    value = {"rank": rank, "list": [1, 2.5, None, True, "ä", b"\0"], 3: {}}
    assert group.broadcast_object(value, 1) == {**value, "rank": 1}
    assert group.broadcast_object(None, 0) is None
    gathered = [None, None]
    backplane.all_gather_object(gathered, "x" * rank)
    assert gathered == ["", "x"]
    lists = [None, None] if rank == 1 else None
    backplane.gather_object((rank, 2**63), lists, 1)
    assert lists in (None, [[0, 2**63], [1, 2**63]])
    output = [None]
    backplane.scatter_object_list(output, [{"to": 0}, {"to": 1}] if rank == 0 else None, 0)
    assert output == [{"to": rank}]
    names = ["a", 1] if rank == 0 else [None, None]
    backplane.broadcast_object_list(names, 0)
    assert names == ["a", 1]
    if rank == 0:
        backplane.send_object(["hello"], 1, tag=3)
    else:
        assert backplane.recv_object(tag=3) == ["hello"]


def refused_objects() -> None:
    for value in (object(), np.zeros(2), {1, 2}, 2**64):
        error = raised(TypeError, group.all_gather_object, value)
        assert "`obj` cannot be sent" in str(error), error
    raised(ValueError, backplane.all_gather_object, [None], 1)
    backplane.barrier()


def barrier_with_a_withdrawal() -> None:
    """An arrival is there, but its rank no longer waits: the withdrawal has yet to come."""
    if rank == 1:
        group.isend(_monitored_barrier._message(7, _monitored_barrier._ARRIVED), 0, _monitored_barrier.TAG)
    backplane.barrier()
    if rank == 0:
        second = datetime.timedelta(seconds=1)
        error = raised(TimeoutError, _monitored_barrier.monitored_barrier, group, second, False)
        assert "Rank 1 failed to pass monitoredBarrier" in str(error), error
    backplane.barrier()
    _monitored_barrier.monitored_barrier(group, datetime.timedelta(seconds=60), False)  # the group remains usable


for check in (
    ping_pong,
    batches,
    any_source,
    too_long,
    asynchronous,
    dropped_send,
    still_in_flight,
    exchange,
    awaited,
    objects,
    refused_objects,
    barrier_with_a_withdrawal,
):
    try:
        check()
    except BaseException:
        print(f"in {check.__name__}:", flush=True)
        raise
    backplane.barrier()
backplane.destroy_process_group()
print(f"rank {rank} passed")
