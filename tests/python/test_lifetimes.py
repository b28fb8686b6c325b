# SPDX-License-Identifier: Apache-2.0
"""What is held, and what is known, after the end of an await, a group or a store."""

from __future__ import annotations

import asyncio
import gc
import os
import pathlib

import backplane
import numpy as np
import pytest


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_await_that_times_out_keeps_no_descriptor(group: backplane.ProcessGroup) -> None:
    array = np.zeros(1)

    async def wait(work: backplane.Work) -> backplane.Work:
        return await work

    async def main() -> None:
        work = group.irecv(array, 0, tag=1)
        before = descriptors()
        for _ in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(work), 0.01)
        assert descriptors() == before
        ended = [asyncio.ensure_future(wait(work)) for _ in range(2)]
        await asyncio.sleep(0)
        group.send(np.ones(1), 0, tag=1)
        assert await asyncio.gather(*ended) == [work, work]
        assert descriptors() == before

    asyncio.run(main())
    assert array[0] == 1


def test_nothing_answers_for_a_default_group_that_has_ended(tmp_path: pathlib.Path) -> None:
    place = f"file://{tmp_path}/"
    for end in (backplane.ProcessGroup.destroy, lambda _: backplane.destroy_process_group()):
        group = backplane.init_process_group("self", f"{place}{end.__name__}", rank=0, world_size=1)
        assert backplane.get_rank() == 0
        child = os.fork()
        if child == 0:  # has no default group
            try:
                backplane.get_rank()
            except backplane.InvalidError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        end(group)
        assert not backplane.is_initialized()
        for call in (backplane.get_rank, backplane.get_world_size, backplane.get_backend, backplane.barrier):
            with pytest.raises(backplane.InvalidError, match="default process group has not been initialized"):
                call()
        assert (group.rank(), group.size()) == (0, 1)
        assert "which was destroyed" in repr(group)
        with pytest.raises(backplane.InvalidError):
            group.barrier()
    other = backplane.create_group("self", f"{place}other", rank=0, world_size=1)
    with backplane.init_process_group("self", f"{place}last", rank=0, world_size=1):
        other.destroy()
        assert backplane.get_rank() == 0


def test_views_of_a_store_do_not_count_as_clients() -> None:
    store = backplane.TCPStore("127.0.0.1", 0, is_master=True)
    view = backplane.PrefixStore("outer", backplane.PrefixStore("inner", store))
    view.set("key", "value")
    store.wait_for_clients(timeout=60)
    for each in (store, view):
        with pytest.raises(backplane.InvalidError, match="the store is disconnected, because wait_for_clients"):
            each.get("key")
    with pytest.raises(backplane.InvalidError, match="the store is disconnected"):
        backplane.PrefixStore("late", store)
    client = backplane.TCPStore("127.0.0.1", store.port)
    with pytest.raises(backplane.TimedOutError, match=r"1 client of the store .* still connected"):
        store.wait_for_clients(timeout=0.01)
    del client
    store.wait_for_clients(timeout=60)


def test_a_group_counts_as_a_client_until_its_object_is_deleted() -> None:
    store = backplane.TCPStore("127.0.0.1", 0, is_master=True)
    group = backplane.create_group("self", store=store, rank=0, world_size=1)
    with pytest.raises(backplane.TimedOutError, match="still connected"):
        store.wait_for_clients(timeout=0.01)
    group.destroy()
    del group
    gc.collect()
    store.wait_for_clients(timeout=60)
