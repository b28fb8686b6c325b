# SPDX-License-Identifier: Apache-2.0
"""The lower-case calls of `backplane.mpi_style`, and the messages that probes found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as _fold
from typing import Any, Callable

from backplane._errors import InvalidError
from backplane._group import ProcessGroup
from backplane._group_messages import Message as _Message
from backplane._mpi_types import NOTHING, PROC_NULL, SUM, AnyOp, Message, Op, Request, Status, fill, take_object
from backplane._objects import pack
from backplane._types import ANY_SOURCE, ANY_TAG, Received


def _function(op: AnyOp) -> Callable[[Any, Any], Any]:
    return op.function if isinstance(op, Op) else op


def peer(source: int) -> int | None:
    return None if source == ANY_SOURCE else source


class ObjectCalls:
    """Calls for objects."""

    group: ProcessGroup
    _probed: list[_Message]  # messages that Probe and Iprobe found, oldest first, for the receives that follow

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    def _take_probed(self, source: int, tag: int) -> _Message | None:
        index = self._find_probed(source, tag)
        return None if index is None else self._probed.pop(index)

    def _find_probed(self, source: int, tag: int) -> int | None:
        for index, each in enumerate(self._probed):
            if source in (ANY_SOURCE, each.source) and tag in (ANY_TAG, each.tag):
                return index
        return None

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Blocks until there is a message. The next receive that matches it, of this Comm, gets it."""
        if source == PROC_NULL:
            fill(status, NOTHING)
            return True
        index = self._find_probed(source, tag)
        if index is None:
            self._probed.append(self.group.probe(peer(source), tag))
            index = -1
        _fill_probed(status, self._probed[index])
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether there is a message, which the next receive of this Comm that matches it gets."""
        if source != PROC_NULL and self._find_probed(source, tag) is None:
            found = self.group.iprobe(peer(source), tag)
            if found is None:
                return False
            self._probed.append(found)
        return self.Probe(source, tag, status)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Waits for a message and takes it: only the Message that is returned receives it."""
        if source == PROC_NULL:
            return _message_of_nobody(status)
        taken = self._take_probed(source, tag) or self.group.probe(peer(source), tag)
        _fill_probed(status, taken)
        return Message(taken)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """The same for a message that has arrived. None if there is none."""
        if source == PROC_NULL:
            return _message_of_nobody(status)
        taken = self._take_probed(source, tag) or self.group.iprobe(peer(source), tag)
        if taken is None:
            return None
        _fill_probed(status, taken)
        return Message(taken)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        if dest != PROC_NULL:
            self.group.send(pack("obj", obj), dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request(None if dest == PROC_NULL else self.group.isend(pack("obj", obj), dest, tag))

    def recv(self, buf: None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        if source == PROC_NULL:
            fill(status, NOTHING)
            return None
        taken = self._take_probed(source, tag) or self.group.probe(peer(source), tag)
        obj, received = take_object(taken)
        fill(status, received)
        return obj

    def irecv(self, buf: None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        if source == PROC_NULL:
            return Request(None, received=NOTHING)
        probed = self._take_probed(source, tag)

        def receive(blocking: bool) -> tuple[Any, Received] | None:
            message = probed
            if message is None:
                one = peer(source)
                message = self.group.probe(one, tag) if blocking else self.group.iprobe(one, tag)
            return None if message is None else take_object(message)

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


def _fill_probed(status: Status | None, message: _Message) -> None:
    fill(status, Received(message.source, message.tag, message.nbytes))


def _message_of_nobody(status: Status | None) -> Message:
    fill(status, NOTHING)
    return Message(None)
