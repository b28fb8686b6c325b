# SPDX-License-Identifier: Apache-2.0
"""The registry of backends, as torch.distributed.rpc.backend_registry."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from backplane._errors import InvalidError, check
from backplane._group import ProcessGroup
from backplane._native import ffi, lib
from backplane._store import Store, c_string
from backplane._types import Timeout, nanoseconds, nanoseconds_or_inherited

DEFAULT_RPC_TIMEOUT = 60.0  # s
DEFAULT_INIT_METHOD = "env://"


class BackendValue(NamedTuple):
    """The handlers of a backend of the program."""

    construct_rpc_backend_options_handler: Callable[..., Any]
    init_backend_handler: Callable[..., Any]


class _Backends(type):
    """The names of BackendType: those of plugins, built-in ones, and those of the program."""

    def __getitem__(cls, name: str) -> BackendType:
        key = name.upper()
        found = _members.get(key)
        if found is None:
            handle = ffi.new("const bp_backend_type**")
            check(lib.bp_backend_lookup(ffi.NULL, c_string("name", name), handle, lib.py_fresh_error()))
            key = ffi.string(lib.bp_backend_type_name(handle[0])).decode()
            found = _members.setdefault(key, BackendType(key, handle[0], None))
        return found

    def __getattr__(cls, name: str) -> BackendType:
        if not name.isupper():
            raise AttributeError(f"BackendType has no attribute {name!r}; members have upper-case names")
        try:
            return cls[name]
        except InvalidError as error:
            raise AttributeError(str(error)) from None

    def __iter__(cls) -> Iterator[BackendType]:
        text = ffi.new("char**")
        check(lib.bp_registry_list(ffi.NULL, text, lib.py_fresh_error()))
        try:
            listed = json.loads(bytes(ffi.string(text[0])))["backends"]
        finally:
            lib.bp_free(text[0])
        names = {each["id"].upper() for each in listed} | set(_members)
        return iter([cls[name] for name in sorted(names)])


class BackendType(metaclass=_Backends):
    """A backend in the registry: ``BackendType.TENSORPIPE``, ``BackendType["gloo"]``. Compared by identity.

    Members stay valid when others are registered. Iterating over the class loads each plugin.
    """

    def __init__(self, name: str, handle: Any, value: BackendValue | None) -> None:
        self.name = name
        self.value = value  # None: a backend of a plugin
        self._handle = handle

    def __repr__(self) -> str:
        return f"BackendType.{self.name}"


_members: dict[str, BackendType] = {}


class BackendOptions:
    """The checked options of one backend. ``options["num_worker_threads"]`` is their normalised text."""

    def __init__(self, backend: BackendType, handle: Any, rpc_timeout: float, init_method: str) -> None:
        self.backend = backend
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method
        self._handle = ffi.gc(handle, lib.bp_backend_options_release)

    def __getitem__(self, key: str) -> str:
        text = lib.bp_backend_options_get(self._handle, c_string("key", key))
        if text == ffi.NULL:
            raise KeyError(f"{self.backend!r} has no option '{key}'")
        value: str = ffi.string(text).decode()
        return value


def backend_registered(backend_name: str) -> bool:
    """True if a backend of this name is registered or in a plugin. Ignores case. Loads no plugin."""
    return backend_name.upper() in _members or bool(
        lib.bp_backend_registered(ffi.NULL, c_string("backend_name", backend_name))
    )


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> BackendType:
    """Adds a backend of this program, in this process, and returns its member of BackendType.

    Args:
        construct_rpc_backend_options_handler: is called with the keywords `rpc_timeout`, in seconds, `init_method` and
            those of `construct_rpc_backend_options`, and returns the options.
        init_backend_handler: is called with the keywords `store`, `name`, `rank`, `world_size` and
            `rpc_backend_options`, and returns what `init_backend` returns.

    InvalidError if there is a backend of this name. A backend in C or C++ is a plugin instead.
    """
    if backend_registered(backend_name):
        raise InvalidError(f"RPC backend {backend_name}: already registered")
    if not backend_name.replace("_", "").isalnum():
        raise InvalidError(f"`backend_name` is {backend_name!r}; names consist of letters, digits and underscores")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    member = BackendType(backend_name.upper(), ffi.NULL, value)
    _members[member.name] = member
    return member


def construct_rpc_backend_options(
    backend: BackendType,
    rpc_timeout: Timeout = DEFAULT_RPC_TIMEOUT,
    init_method: str = DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Runs the options handler of a backend: checks the keywords against its schema and fills in defaults.

    `rpc_timeout`, in seconds, is that of calls; 0 or math.inf: none. InvalidError names a keyword that is wrong.
    """
    if backend.value is not None:
        handler = backend.value.construct_rpc_backend_options_handler
        return handler(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)
    limit = rpc_limit(rpc_timeout)
    pairs = ffi.new("bp_key_value[]", max(1, len(kwargs)))
    texts = []
    for i, (key, value) in enumerate(kwargs.items()):
        text = ("1" if value else "0") if isinstance(value, bool) else str(value)
        texts += [ffi.new("char[]", c_string("keyword", key)), ffi.new("char[]", c_string(key, text))]
        pairs[i].key, pairs[i].value = texts[-2:]
    options = ffi.new("bp_backend_options**")
    method = c_string("init_method", init_method)
    check(
        lib.bp_construct_backend_options(
            backend._handle, limit, method, pairs, len(kwargs), options, lib.py_fresh_error()
        )
    )
    return BackendOptions(backend, options[0], math.inf if limit < 0 else limit / 1e9, init_method)


def init_backend(
    backend: BackendType,
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    rpc_backend_options: Any,
    timeout: Timeout | None = None,
) -> Any:
    """Runs the init handler of a backend. Blocks until all ranks have called it.

    A backend of process groups returns a ProcessGroup. An RPC backend joins as `init_rpc` does and returns None; so
    does one that is both, such as zmq. One of the program returns what its handler returns.
    """
    if not isinstance(store, Store):
        raise TypeError(f"`store` must be a backplane.Store, and is a {type(store).__name__}")
    if backend.value is not None:
        return backend.value.init_backend_handler(
            store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=rpc_backend_options
        )
    require_options_of(backend, rpc_backend_options)
    if lib.bp_backend_type_descriptor(backend._handle).kinds & lib.BP_KIND_RPC:
        from backplane._rpc_worker import join

        return join(name, backend.name.lower(), rank, world_size, rpc_backend_options, store, None, "", timeout)
    group = ffi.new("bp_group**")
    check(
        lib.bp_init_backend(
            backend._handle,
            store._handle,
            c_string("name", name),
            rank,
            world_size,
            rpc_backend_options._handle,
            nanoseconds_or_inherited(timeout),
            group,
            lib.py_fresh_error(),
        )
    )
    made = ProcessGroup(group[0])
    made._store = store
    return made


def require_options_of(backend: BackendType, options: Any) -> None:
    if not isinstance(options, BackendOptions):
        raise TypeError(
            f"`rpc_backend_options` is a {type(options).__name__}; construct_rpc_backend_options({backend!r}, ...) "
            "makes options of this backend"
        )
    if options.backend is not backend:
        raise InvalidError(f"`rpc_backend_options` are those of {options.backend!r}, not of {backend!r}")


def rpc_limit(timeout: Timeout) -> int:
    """The limit of calls in nanoseconds. As in torch, 0 is none."""
    limit = nanoseconds(timeout)
    return limit if limit != 0 else int(lib.BP_NO_TIMEOUT)
