# SPDX-License-Identifier: Apache-2.0
"""A rank's program: rank 0 is interrupted in calls that wait for rank 1, which waits in the store."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any, Callable

import backplane
import numpy as np
from support import Interrupt, raised

SOON = 10.0  # s; 0.2 on a machine without other work

group = backplane.init_process_group()
rank = group.rank()
quiet = backplane.new_group()  # for the ranks to meet in
broken = [backplane.new_group() for _ in range(3)]


def interrupted(
    kind: type[BaseException], number: int, call: Callable[..., Any], *arguments: Any, **given: Any
) -> None:
    with Interrupt(number) as interrupt:
        raised(kind, call, *arguments, **given)
        assert interrupt.seconds_since() < SOON, interrupt.seconds_since()


def on_usr1(*_: object) -> None:
    raise LookupError("from the handler")


class Handled:
    times = 0


def on_usr2(*_: object) -> None:
    Handled.times += 1


if rank == 0:
    array = np.zeros(3)
    interrupted(KeyboardInterrupt, signal.SIGINT, group.recv, array, 1)
    work = group.irecv(array, 1, tag=5)
    interrupted(KeyboardInterrupt, signal.SIGINT, work.wait)
    assert work.is_completed()  # the array is free
    interrupted(KeyboardInterrupt, signal.SIGINT, group.recv_object, 1)
    interrupted(KeyboardInterrupt, signal.SIGINT, broken[0].all_reduce, array)
    raised(backplane.BackplaneError, broken[0].barrier)  # an interrupted collective breaks its group

    store = backplane.FileStore(sys.argv[1])
    interrupted(KeyboardInterrupt, signal.SIGINT, store.get, "missing")
    interrupted(KeyboardInterrupt, signal.SIGINT, backplane.create_group, "shm", None, 60, 2, 0, store)

    signal.signal(signal.SIGUSR1, on_usr1)
    interrupted(LookupError, signal.SIGUSR1, broken[1].barrier)
    try:
        with Interrupt(signal.SIGINT, signal.SIGUSR1):  # one of the two counts
            raised((KeyboardInterrupt, LookupError), group.recv, array, 1)
        time.sleep(0)
    except LookupError:  # it came later, outside of the call
        pass
    # Neither is left for a later call.
    raised(TimeoutError, group.recv, array, 1, timeout=0.3)
    signal.signal(signal.SIGUSR2, on_usr2)
    with Interrupt(signal.SIGUSR2):
        raised(TimeoutError, group.recv, array, 1, timeout=1.0)  # a handler that returns interrupts nothing
    assert Handled.times == 1

    # The main thread takes the interrupt while another thread is in a call that goes on.
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(group.recv(array, 1, tag=6)))
    thread.start()
    interrupted(KeyboardInterrupt, signal.SIGINT, broken[2].barrier)
    quiet.barrier()
    thread.join()
    assert results[0].source == 1
else:
    quiet.barrier()
    group.send(np.ones(3), 0, tag=6)
quiet.barrier()
print(f"rank {rank} passed")
