# SPDX-License-Identifier: Apache-2.0
"""The messages of a group."""

from __future__ import annotations

from typing import Any

from backplane._buffers import Array, input_view, output_view
from backplane._errors import InvalidError, TimedOutError, check
from backplane._native import ffi, lib
from backplane._types import ANY_SOURCE, ANY_TAG, Received, Timeout, nanoseconds_or_inherited
from backplane._work import Work

_NO_REQUEST = ffi.NULL


class Message:
    """A message that a probe found. `recv` receives it, once; dropped, it is lost."""

    def __init__(self, group: Any, handle: Any, source: int, tag: int, nbytes: int) -> None:
        self.source = source  # the sender's rank
        self.tag = tag
        self.nbytes = nbytes
        self._group = group
        self._handle: Any = ffi.gc(handle, lib.bp_message_release)

    def recv(self, tensor: Array, timeout: Timeout | None = None) -> Received:
        """Receives the message into an array of at least `nbytes`. InvalidError if it was received already."""
        view = output_view("tensor", tensor)
        handle, self._handle = self._handle, None
        if handle is None:
            raise InvalidError(f"the message of rank {self.source} with tag {self.tag} was received already")
        result = ffi.new("bp_result*")
        limit = nanoseconds_or_inherited(timeout)
        ffi.gc(handle, None)  # the call releases it
        check(lib.py_recv_message(self._group._handle, view.dtype, view.data, view.elements, handle, limit, result))
        return Received(result.source, result.tag, result.bytes)

    def __repr__(self) -> str:
        return f"<backplane.Message of rank {self.source}: tag {self.tag}, {self.nbytes} bytes>"


class MessageOperations:
    """Arrays from one rank to another. A message is bytes: sender and receiver may differ in dtype and shape."""

    _handle: Any

    def send(self, tensor: Array, dst: int, tag: int = 0, timeout: Timeout | None = None) -> None:
        """Sends an array to rank `dst`. May block until it is received, usually if it is large.

        `tag` is below 2**32. Ranks that send to each other use `isend` or `sendrecv`.
        """
        view = input_view("tensor", tensor)
        limit = nanoseconds_or_inherited(timeout)
        check(lib.py_send(self._handle, view.dtype, view.data, view.elements, dst, _tag(tag), limit, _NO_REQUEST))

    def recv(self, tensor: Array, src: int | None = None, tag: int = 0, timeout: Timeout | None = None) -> Received:
        """Receives a message from rank `src`, or from any rank, with `tag`, or with any tag (ANY_TAG).

        A shorter message leaves the rest of `tensor` as it was. A longer one raises InvalidError and is lost.
        """
        view = output_view("tensor", tensor)
        limit = nanoseconds_or_inherited(timeout)
        result = ffi.new("bp_result*")
        peer = ANY_SOURCE if src is None else src
        check(
            lib.py_recv(self._handle, view.dtype, view.data, view.elements, peer, _tag(tag), limit, result, _NO_REQUEST)
        )
        return Received(result.source, result.tag, result.bytes)

    def isend(self, tensor: Array, dst: int, tag: int = 0, timeout: Timeout | None = None) -> Work:
        """Starts a `send`. The Work may be dropped; the array stays alive until the message is sent."""
        view = input_view("tensor", tensor)
        work = Work(self, view)
        limit = nanoseconds_or_inherited(timeout)
        check(lib.py_send(self._handle, view.dtype, view.data, view.elements, dst, _tag(tag), limit, work._slot))
        return work

    def irecv(self, tensor: Array, src: int | None = None, tag: int = 0, timeout: Timeout | None = None) -> Work:
        """Starts a `recv`. `Work.received` has its result."""
        view = output_view("tensor", tensor)
        work = Work(self, view)
        limit = nanoseconds_or_inherited(timeout)
        peer = ANY_SOURCE if src is None else src
        check(
            lib.py_recv(
                self._handle, view.dtype, view.data, view.elements, peer, _tag(tag), limit, ffi.NULL, work._slot
            )
        )
        return work

    def sendrecv(
        self,
        send_tensor: Array,
        dst: int,
        recv_tensor: Array,
        src: int | None = None,
        send_tag: int = 0,
        recv_tag: int = 0,
        timeout: Timeout | None = None,
    ) -> Received:
        """Sends one array and receives another at the same time, so that ranks in a ring do not block each other."""
        sent, received = input_view("send_tensor", send_tensor), output_view("recv_tensor", recv_tensor)
        limit = nanoseconds_or_inherited(timeout)
        result = ffi.new("bp_result*")
        peer = ANY_SOURCE if src is None else src
        check(lib.py_sendrecv(self._handle, *sent, dst, _tag(send_tag), *received, peer, _tag(recv_tag), limit, result))
        return Received(result.source, result.tag, result.bytes)

    def probe(self, src: int | None = None, tag: int = 0, timeout: Timeout | None = None) -> Message:
        """Waits for a message from rank `src`, or from any rank, with `tag`, or with any tag, and takes it.

        No other receive gets it. UnsupportedError if the backend cannot probe; the layer "matching" makes any do it.
        """
        message, result = ffi.new("bp_message**"), ffi.new("bp_result*")
        peer = ANY_SOURCE if src is None else src
        check(lib.py_probe(self._handle, peer, _tag(tag), nanoseconds_or_inherited(timeout), message, result))
        return Message(self, message[0], result.source, result.tag, result.bytes)

    def iprobe(self, src: int | None = None, tag: int = 0) -> Message | None:
        """The same for a message that has arrived. None if there is none; does not block."""
        try:
            return self.probe(src, tag, 0)
        except TimedOutError:
            return None


def _tag(tag: int) -> int:
    if tag != ANY_TAG and not 0 <= tag < 1 << 32:
        raise InvalidError(f"the tag is {tag}; tags are 0 to 2**32 - 1")
    return tag
