# SPDX-License-Identifier: Apache-2.0
"""Several messages that are started together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from backplane._buffers import Array
from backplane._distributed import irecv, isend
from backplane._errors import InvalidError
from backplane._group import ProcessGroup
from backplane._work import Work


class P2POp:
    """A message for `batch_isend_irecv`.

    `op` is `backplane.isend` or `backplane.irecv`; `peer` is the rank, in the group, that the message is for or from.
    """

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: Array,
        peer: int,
        group: ProcessGroup | None = None,
        tag: int = 0,
    ) -> None:
        if op is not isend and op is not irecv:
            raise InvalidError(f"`op` is {op!r}; it must be backplane.isend or backplane.irecv")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag

    def __repr__(self) -> str:
        name = "isend to" if self.op is isend else "irecv from"
        return f"<backplane.P2POp: {name} rank {self.peer}, tag {self.tag}>"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts the messages, in the order of the list, and returns a Work for each.

    The list may have sends and receives between the same ranks in any order, because none of them blocks. If one is
    refused, those before it are cancelled, and its error is raised.
    """
    for i, each in enumerate(p2p_op_list):
        if not isinstance(each, P2POp):
            raise TypeError(f"`p2p_op_list[{i}]` is of type {type(each).__name__}; pass a P2POp")
    if not p2p_op_list:
        raise InvalidError("`p2p_op_list` is empty; there is no message to start")
    works: list[Work] = []
    try:
        for each in p2p_op_list:
            works.append(each.op(each.tensor, each.peer, each.group, each.tag))
    except BaseException:
        while works:  # not kept by the traceback: a receive that is cancelled ends when it is waited for or dropped
            works.pop().cancel()
        raise
    return works
