# SPDX-License-Identifier: Apache-2.0
"""Stores: key-value spaces through which ranks find each other, as in torch.distributed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Union

from backplane._errors import InvalidError, check
from backplane._native import ffi, lib
from backplane._types import Timeout, nanoseconds, nanoseconds_or_inherited

Value = Union[str, bytes]


def _bytes(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return bytes(memoryview(value))  # bytes(5) would be five zeros
    except TypeError:
        raise TypeError(f"`{name}` is of type {type(value).__name__}; pass str or bytes") from None


def c_string(name: str, text: str) -> bytes:
    """Text as the C API takes it. InvalidError if it contains NUL."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` is of type {type(text).__name__}; pass str")
    encoded = text.encode()
    if b"\0" in encoded:
        raise InvalidError(f"`{name}` contains a NUL character")
    return encoded


class Store:
    """A key-value space. Keys have 1 to 4096 bytes, values up to 64 MiB.

    Calls that wait for a key block for at most `timeout`, which is 30 minutes unless the store or the call sets
    another, and then raise TimedOutError, which names the key. All methods may be called from any thread. Create one
    of the subclasses.
    """

    def __init__(self, handle: Any, timeout: Timeout | None = None) -> None:
        self._connected: Any = ffi.gc(handle, lib.bp_store_release)
        self._views: weakref.WeakSet[Store] = weakref.WeakSet()  # PrefixStores over this store
        self.timeout = timeout

    @property
    def _handle(self) -> Any:
        if self._connected is None:
            raise InvalidError("the store is disconnected, because wait_for_clients was called; make another TCPStore")
        return self._connected

    def set_timeout(self, timeout: Timeout) -> None:
        """Sets the time limit of later calls, in seconds."""
        nanoseconds(timeout)
        self.timeout = timeout

    def set(self, key: str, value: Value) -> None:
        """Sets a key and replaces an earlier value. A str is stored as UTF-8."""
        data = _bytes("value", value)
        check(lib.bp_store_set(self._handle, c_string("key", key), data, len(data), self._limit(), _error()))

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """Waits for the key and returns its value."""
        value, size = ffi.new("char**"), ffi.new("uint64_t*")
        check(lib.bp_store_get(self._handle, c_string("key", key), value, size, self._limit(timeout), _error()))
        return _take(value, size)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, whose value is decimal text, and returns the sum. A missing key counts as 0."""
        total = ffi.new("int64_t*")
        check(lib.bp_store_add(self._handle, c_string("key", key), amount, total, self._limit(), _error()))
        return int(total[0])

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Blocks until all keys exist."""
        names = _names(keys)
        check(lib.bp_store_wait(self._handle, names, len(names), self._limit(timeout), _error()))

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys exist now."""
        names = _names(keys)
        exist = ffi.new("int32_t*")
        check(lib.bp_store_check(self._handle, names, len(names), exist, self._limit(), _error()))
        return bool(exist[0])

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Sets the key if its value is `expected`, or if `expected` is empty and the key is missing.

        Returns the value after the call.
        """
        value, size = ffi.new("char**"), ffi.new("uint64_t*")
        old, new = _bytes("expected", expected), _bytes("desired", desired)
        name = c_string("key", key)
        check(
            lib.bp_store_compare_set(
                self._handle, name, old, len(old), new, len(new), value, size, self._limit(), _error()
            )
        )
        return _take(value, size)

    def delete_key(self, key: str) -> bool:
        """Deletes a key. True if it existed."""
        existed = ffi.new("int32_t*")
        check(lib.bp_store_delete(self._handle, c_string("key", key), existed, self._limit(), _error()))
        return bool(existed[0])

    def newcomers(self) -> int:
        """The number of processes that wait in `join_group` with this store."""
        count = ffi.new("int64_t*")
        check(lib.bp_store_newcomers(self._handle, count, self._limit(), _error()))
        return int(count[0])

    def num_keys(self) -> int:
        """The number of keys."""
        count = ffi.new("int64_t*")
        check(lib.bp_store_num_keys(self._handle, count, self._limit(), _error()))
        return int(count[0])

    def _disconnect(self) -> None:
        for view in list(self._views):
            view._disconnect()
        if self._connected is not None:
            ffi.release(self._connected)
            self._connected = None

    def _limit(self, timeout: Timeout | None = None) -> int:
        return nanoseconds_or_inherited(self.timeout if timeout is None else timeout)


def _error() -> Any:
    return lib.py_fresh_error()


def _take(value: Any, size: Any) -> bytes:
    try:
        return bytes(ffi.buffer(value[0], size[0]))
    finally:
        lib.bp_free(value[0])


def _names(keys: Sequence[str]) -> list[Any]:
    if isinstance(keys, str):  # a sequence of one-letter keys otherwise
        raise TypeError("`keys` is a str; pass a list of keys")
    return [ffi.new("char[]", c_string("key", key)) for key in keys]


class TCPStore(Store):
    """A store that is served over TCP.

    The process with `is_master` listens on `host_name` and `port` (0: any free port, then in `port`) and serves until
    the object is deleted; it must call `wait_for_clients` before it ends. The others connect, and retry for at most
    `timeout` seconds while there is no server. `job_id` must be the same everywhere.
    """

    def __init__(
        self, host_name: str, port: int, *, is_master: bool = False, timeout: Timeout = 300.0, job_id: str = ""
    ) -> None:
        host, job = c_string("host_name", host_name), c_string("job_id", job_id)
        if not 0 <= port <= 65535:
            raise InvalidError(f"`port` is {port}; ports are 0 to 65535")
        self._server = None
        if is_master:
            server = ffi.new("bp_store_server**")
            check(lib.bp_store_server_start(host, port, job, server, _error()))
            self._server = ffi.gc(server[0], lib.bp_store_server_release)
            port = lib.bp_store_server_port(self._server)
        store = ffi.new("bp_store**")
        check(lib.bp_store_connect(host, port, job, nanoseconds(timeout), store, _error()))
        super().__init__(store[0], timeout)
        self.host_name = host_name
        self.port = port

    def wait_for_clients(self, timeout: Timeout | None = None) -> None:
        """Disconnects this object and blocks until no other client is connected. For the process that serves.

        Disconnects the PrefixStores over it as well. A group with this store is a client until its object is deleted.
        Raises TimedOutError, which names the clients, after `timeout` in seconds; None: the store's.
        """
        if self._server is None:
            raise InvalidError("wait_for_clients: this process does not serve the store")
        limit = self._limit(timeout)
        self._disconnect()
        check(lib.bp_store_server_wait(self._server, limit, _error()))


class FileStore(Store):
    """A store in a file that all ranks can open; creates the file if it is missing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        store = ffi.new("bp_store**")
        check(lib.bp_store_open_file(c_string("path", os.fspath(path)), store, _error()))
        super().__init__(store[0])


class PrefixStore(Store):
    """A view of another store that prepends `prefix` to every key."""

    def __init__(self, prefix: str, store: Store) -> None:
        view = ffi.new("bp_store**")
        check(lib.bp_store_create_prefix(store._handle, c_string("prefix", prefix), view, _error()))
        super().__init__(view[0], store.timeout)
        self._inner = store  # the server of a TCPStore
        store._views.add(self)
