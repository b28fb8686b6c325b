# SPDX-License-Identifier: Apache-2.0
"""Process groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from backplane._errors import InvalidError, check
from backplane._group_collectives import CollectiveOperations
from backplane._group_messages import MessageOperations
from backplane._group_objects import ObjectOperations
from backplane._native import ffi, lib
from backplane._store import Store, c_string
from backplane._types import Timeout, nanoseconds_or_inherited
from backplane._work import release_ended

Self = TypeVar("Self", bound="ProcessGroup")
_after_destroy: list[Callable[[], None]] = []


class ProcessGroup(CollectiveOperations, MessageOperations, ObjectOperations):
    """A group of ranks. Made by `init_process_group`, `new_group` and the methods below, never directly.

    W is the number of ranks. Ranks in all calls are ranks of this group, unlike in torch.distributed. All ranks call
    the collectives of one group in the same order, with arrays of the same dtype and size.

    Arrays are numpy arrays or other objects with the buffer protocol or DLPack, C-contiguous and in host memory. They
    are used in place; `backplane.contiguous` copies others. A call blocks without the GIL until it is done. With
    ``async_op=True`` it returns a `Work` at once. `timeout`, in seconds, is that of the call; None: the group's.
    Failures raise subclasses of `BackplaneError`; after a collective that failed once it had begun, the group is
    broken, and every later call raises the same cause at once. Arguments that are wrong raise ValueError or TypeError,
    and nothing is sent.

    The object is a context manager that destroys the group. Methods may be called from any thread. A child made by
    fork cannot use it.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.bp_group_release)
        self._world_size: int = lib.bp_group_world_size(handle)
        self._is_destroyed = False
        self._parent: ProcessGroup | None = None  # one that only this group uses
        self._store: object = None  # a store of the program, which the group uses

    def rank(self) -> int:
        """This process's rank; -1 if it is not a member."""
        return int(lib.bp_group_rank(self._handle))

    def size(self) -> int:
        """The number of ranks."""
        return self._world_size

    @property
    def name(self) -> str:
        text = lib.bp_group_name(self._handle)
        return "" if text == ffi.NULL else bytes(ffi.string(text)).decode()

    @property
    def backend(self) -> str:
        """The id of the backend, such as "shm"; empty if no backend serves host memory."""
        text = lib.bp_group_backend(self._handle, 0)
        return "" if text == ffi.NULL else bytes(ffi.string(text)).decode()

    def global_rank(self, rank: int) -> int:
        """The rank in the job's first group of this group's `rank`. InvalidError if it is out of range."""
        found = int(lib.bp_group_global_rank(self._handle, rank))
        if found < 0:
            raise InvalidError(f"rank {rank} is not in group {self.name!r}, which has {self._world_size} ranks")
        return found

    def __repr__(self) -> str:
        state = ", which was destroyed" if self._is_destroyed else ""
        which = f"rank {self.rank()} of {self._world_size} over {self.backend}"
        return f"<backplane.ProcessGroup {self.name!r}: {which}{state}>"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    # ---- Groups made from this one

    def new_group(
        self, ranks: Sequence[int], name: str = "", timeout: Timeout | None = None, by_members: bool = False
    ) -> ProcessGroup:
        """Creates a group of some ranks, in the order of `ranks`.

        All ranks of this group call it, in the same order, with the same `ranks`; with `by_members`, only the members
        of the new group do. Blocks until the members have called it. A rank that is not a member gets a group of rank
        -1, whose operations raise InvalidError. `timeout` is that of the creation and of the group's operations.
        """
        make = lib.bp_group_new_by_members if by_members else lib.bp_group_new
        group = ffi.new("bp_group**")
        text = c_string("name", name) if name else ffi.NULL
        limit = nanoseconds_or_inherited(timeout)
        check(make(self._handle, list(ranks), len(ranks), text, limit, group, lib.py_fresh_error()))
        return ProcessGroup(group[0])

    def split(self, color: int, key: int = 0) -> ProcessGroup:
        """Creates one group for each `color` of the ranks that pass it, ordered by `key`, then by rank.

        All ranks call it. A rank with a negative colour joins no group and gets one of rank -1.
        """
        group = ffi.new("bp_group**")
        check(lib.bp_group_split(self._handle, color, key, group, lib.py_fresh_error()))
        return ProcessGroup(group[0])

    def with_backend(self, backend: str, timeout: Timeout | None = None) -> ProcessGroup:
        """Creates a group of the same ranks over another backend. All ranks call it. It ends with this group."""
        group = ffi.new("bp_group**")
        limit = nanoseconds_or_inherited(timeout)
        name = c_string("backend", backend)
        check(lib.bp_group_with_backend(self._handle, name, limit, group, lib.py_fresh_error()))
        return ProcessGroup(group[0])

    def shrink(self, timeout: Timeout | None = None) -> ProcessGroup:
        """Creates a group of the surviving ranks, in the same order. All survivors call it.

        Blocks until each rank has called it or is known to be lost. TimedOutError names ranks that did neither; a
        second call continues. `global_rank` of the new group identifies the survivors.
        """
        group = ffi.new("bp_group**")
        limit = nanoseconds_or_inherited(timeout)
        check(lib.bp_group_shrink(self._handle, limit, group, lib.py_fresh_error()))
        return ProcessGroup(group[0])

    def grow(self, store: Store, timeout: Timeout | None = None) -> ProcessGroup | None:
        """Creates a group of all members and of the processes that wait in `join_group` with the same store.

        All members call it, equally often, at the same point of the program. The newcomers' ranks follow those of the
        members, in the order of asking. This group stays usable, and the new one does not end with it.

        Returns None if no newcomer could be taken: nobody has asked, or those who asked were refused, lost, or gave
        up. The group then continues; call it again at a later point. Other errors also leave the group usable, unless
        a member was lost (PeerLostError): then shrink it first, and grow the result.
        """
        group = ffi.new("bp_group**")
        limit = nanoseconds_or_inherited(timeout)
        status = lib.bp_group_grow(self._handle, store._handle, limit, group, lib.py_fresh_error())
        if status == lib.BP_AGAIN:
            return None
        check(status)
        grown = ProcessGroup(group[0])
        grown._store = store
        return grown

    def destroy(self) -> None:
        """Ends the group: operations in flight fail, and later ones raise InvalidError. Not collective.

        `rank`, `size` and `name` stay known. Groups made from it end with it. Raises InvalidError in a signal handler
        that interrupted a blocked call.
        """
        if lib.py_is_in_handler():  # would wait for that call, which waits for the handler
            raise InvalidError(
                f"destroy: a signal handler interrupted a call, which may use group {self.name!r}; raise an exception "
                "in the handler, and destroy the group where the exception is caught"
            )
        check(lib.bp_group_destroy(self._handle, lib.py_fresh_error()))
        if self._parent is not None:
            self._parent.destroy()
        self._is_destroyed = True
        release_ended(sys.maxsize)
        for destroyed in _after_destroy:
            destroyed()

    def abort(self, why: str = "aborted by this rank") -> None:
        """Makes all pending and later operations fail with `why`, on all ranks. Does not wait for other ranks."""
        check(lib.bp_group_abort(self._handle, c_string("why", why), lib.py_fresh_error()))

    def check(self) -> None:
        """Raises the reason if the group is broken or has been destroyed. Does not block."""
        check(lib.bp_group_status(self._handle, lib.py_fresh_error()))

    def trace(self) -> Any:
        """The flight recorder: the group's last operations, oldest first, as parsed JSON."""
        text = ffi.new("char**")
        check(lib.bp_group_trace(self._handle, text, lib.py_fresh_error()))
        try:
            return json.loads(bytes(ffi.string(text[0])))
        finally:
            lib.bp_free(text[0])
