# SPDX-License-Identifier: Apache-2.0
"""The Python side of the backend c10d: fills in the table of functions (python.hpp) whose address is TABLE.

C++ calls these functions on its own threads. ctypes takes the GIL for each call, and torch releases it while it blocks.
Buffers belong to C++ and stay valid until the call returns.
"""

import atexit
import contextlib
import ctypes
import datetime
import importlib
import itertools
import sys
import threading
import time

TABLE = globals()["TABLE"]  # set by the program that runs this text

OK, INVALID, UNSUPPORTED, TIMEOUT, CANCELLED, PEER_LOST, INTERNAL = 0, 1, 2, 3, 4, 5, 8
RESOURCE = 6
BARRIER, BROADCAST, REDUCE, ALL_REDUCE, GATHER, SCATTER, ALL_GATHER, ALL_TO_ALL = 0, 1, 2, 3, 4, 6, 8, 12
DTYPES = {0: "bool", 1: "int8", 2: "uint8", 3: "int16", 5: "int32", 7: "int64", 9: "float16", 10: "bfloat16"}
DTYPES.update({11: "float32", 12: "float64", 15: "complex64", 16: "complex128"})
REDUCE_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
MESSAGES, CLOSING = 0, 1  # tags
END_TIME = 20.0  # s; a thread that is still in a call when Python ends would end the process
# Texts of exceptions for exhausted resources; the last two are of threads, of C++ and of Python.
EXHAUSTED = ("Too many open files", "annot allocate memory", "emporarily unavailable", "can't start new thread")
LONG = datetime.timedelta(days=365)  # deadlines are Backplane's

Address, Size, Status = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32


class Error(ctypes.Structure):
    """bp_error."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("status", Status),
        ("native_code", ctypes.c_int64),
        ("peer_rank", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("text", ctypes.c_char * 1024),
        ("group", ctypes.c_char * 64),
    )


class Host(ctypes.Structure):
    """bp_host, as far as it is used."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("abi_minor", ctypes.c_uint32),
        ("ctx", Address),
        ("log", Address),
        ("abort_requested", Address),
        ("store_set", ctypes.CFUNCTYPE(Status, Address, ctypes.c_char_p, ctypes.c_char_p, Size, Address)),
        (
            "store_get",
            ctypes.CFUNCTYPE(Status, Address, ctypes.c_char_p, Address, Size, Address, ctypes.c_int64, Address),
        ),
        ("store_add", ctypes.CFUNCTYPE(Status, Address, ctypes.c_char_p, ctypes.c_int64, Address, Address)),
        ("store_wait", ctypes.CFUNCTYPE(Status, Address, Address, Size, ctypes.c_int64, Address)),
        ("store_compare_set", Address),
        ("store_delete", ctypes.CFUNCTYPE(Status, Address, ctypes.c_char_p, Address, Address)),
    )


class Opening(ctypes.Structure):
    _fields_ = (
        ("backend", ctypes.c_char_p),
        ("module", ctypes.c_char_p),
        ("host", ctypes.POINTER(Host)),
        ("timeout_ns", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("handle", ctypes.c_int64),
    )


class Collective(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("reduce_op", ctypes.c_uint32),
        ("root", ctypes.c_int32),
        ("input", Address),
        ("input_bytes", Size),
        ("output", Address),
        ("output_bytes", Size),
    )


Errors = ctypes.POINTER(Error)
Open = ctypes.CFUNCTYPE(Status, ctypes.POINTER(Opening), Errors)
Transfer = ctypes.CFUNCTYPE(Status, ctypes.c_int64, ctypes.c_int32, Address, Size, Errors)
Collect = ctypes.CFUNCTYPE(Status, ctypes.c_int64, ctypes.POINTER(Collective), Errors)
End = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class Table(ctypes.Structure):
    _fields_ = (
        ("open", Open),
        ("send", Transfer),
        ("recv", Transfer),
        ("collect", Collect),
        ("close", End),
        ("drop", End),
    )


class Failure(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def status_of(error):
    if isinstance(error, Failure):
        return error.status
    if isinstance(error, MemoryError):
        return RESOURCE
    text = str(error)
    if "onnection closed" in text or "onnection reset" in text or "roken pipe" in text:
        return PEER_LOST
    if any(exhausted in text for exhausted in EXHAUSTED):
        return RESOURCE
    return TIMEOUT if "imed out" in text else INTERNAL


def guarded(function, *args):
    """Calls the function. The last argument is the error to fill in."""
    *rest, error = args
    try:
        function(*rest)
        return OK
    except BaseException as raised:
        text = str(raised) if isinstance(raised, Failure) else f"{type(raised).__name__}: {raised}"
        error.contents.status = status_of(raised)
        error.contents.peer_rank = -1
        error.contents.text = " ".join(text.split()).encode(errors="replace")[:1023].decode(errors="ignore").encode()
        return error.contents.status


def make_store(base, host, deadline, cancelled):
    """A store of torch over the one that the ranks of the group share. `cancelled`: a list for failures by a cancel."""

    def call(function, *args):
        error = Error(struct_size=ctypes.sizeof(Error))
        status = function(host.ctx, *args, ctypes.byref(error))
        if status != OK:
            failure = Failure(status, error.text.decode(errors="replace"))
            if status == CANCELLED:
                cancelled.append(failure)
            raise failure

    def left():
        return max(0, int((deadline - time.monotonic()) * 1e9))

    def name(key):
        return b"c10d/" + key.encode()

    class Store(base):
        def set(self, key, value):
            data = value if isinstance(value, bytes) else value.encode()
            call(host.store_set, name(key), data, len(data))

        def get(self, key):
            size, capacity = ctypes.c_uint64(), 1 << 16
            while True:
                buffer = ctypes.create_string_buffer(capacity)
                try:
                    call(host.store_get, name(key), ctypes.addressof(buffer), capacity, ctypes.addressof(size), left())
                    return buffer.raw[: size.value]
                except Failure as failure:
                    if failure.status != RESOURCE or size.value <= capacity:
                        raise
                    capacity = size.value

        def add(self, key, value):
            total = ctypes.c_int64()
            call(host.store_add, name(key), value, ctypes.addressof(total))
            return total.value

        def wait(self, keys, timeout=None):
            names = (ctypes.c_char_p * len(keys))(*map(name, keys))
            call(host.store_wait, ctypes.addressof(names), len(keys), left())

        def delete_key(self, key):
            existed = ctypes.c_int32()
            call(host.store_delete, name(key), ctypes.addressof(existed))
            return bool(existed.value)

    return Store()


def make_group(backend, store, rank, size, timeout):
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    if backend == "gloo":
        if not hasattr(c10d, "ProcessGroupGloo"):
            raise Failure(UNSUPPORTED, "this torch was built without gloo")
        return c10d.ProcessGroupGloo(store, rank, size, timeout)
    if backend in ("nccl", "mpi", "ucc"):
        raise Failure(UNSUPPORTED, f"backend={backend}: only gloo, and backends that register with torch, are bridged")
    plugin = getattr(dist.Backend, "_plugins", {}).get(backend.upper())
    if plugin is None:
        raise Failure(
            UNSUPPORTED, f"torch has no backend {backend}; name the Python module that registers it: module=..."
        )
    if not getattr(plugin, "extended_api", False):
        return plugin.creator_fn(store, rank, size, timeout)
    options = c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    options.group_id, options.global_ranks_in_group = "backplane", []
    return plugin.creator_fn(options, None)


class Group:
    def __init__(self, opening):
        try:
            import torch
            import torch.distributed
        except ImportError as error:
            raise Failure(UNSUPPORTED, f"this Python cannot import torch.distributed: {error}") from error
        if not torch.distributed.is_available():
            raise Failure(UNSUPPORTED, "this torch was built without torch.distributed")
        if opening.module:
            name = opening.module.decode(errors="replace")
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise Failure(INVALID, f"the option module: cannot import {name[:200]}: {str(error)[:300]}") from error
        seconds = max(opening.timeout_ns / 1e9, 0.001) if opening.timeout_ns >= 0 else LONG.total_seconds()
        self.torch, self.c10d = torch, torch._C._distributed_c10d
        self.backend, self.rank, self.size = opening.backend.decode(errors="replace"), opening.rank, opening.world_size
        cancelled = []
        self.store = make_store(self.c10d.Store, opening.host.contents, time.monotonic() + seconds, cancelled)
        timeout = datetime.timedelta(seconds=seconds)
        try:
            self.group = make_group(self.backend, self.store, self.rank, self.size, timeout)
        except Exception as error:
            if cancelled:  # torch may raise an error of its own
                raise cancelled[0] from error
            raise

    def tensor(self, address, size, dtype):
        memory = (ctypes.c_ubyte * size).from_address(address)
        return self.torch.frombuffer(memory, dtype=getattr(self.torch, dtype))

    def options(self, kind, **fields):
        options = getattr(self.c10d, kind)()
        options.timeout = LONG
        for name, value in fields.items():
            setattr(options, name, value)
        return options

    def collect(self, op):
        reduces = op.kind in (REDUCE, ALL_REDUCE)
        dtype = DTYPES.get(op.dtype) if reduces else "uint8"
        if dtype is None:
            raise Failure(UNSUPPORTED, f"torch has no dtype for number {op.dtype}")
        given = self.tensor(op.input, op.input_bytes, dtype) if op.input_bytes else None
        taken = self.tensor(op.output, op.output_bytes, dtype) if op.output_bytes else None
        self.start(op, given, taken).wait(LONG)

    def start(self, op, given, taken):
        group, root = self.group, op.root
        if op.kind == BARRIER:
            return group.barrier(self.options("BarrierOptions"))
        if op.kind == BROADCAST:
            tensor = given if self.rank == root else taken
            return group.broadcast([tensor], self.options("BroadcastOptions", rootRank=root, rootTensor=0))
        if op.kind in (REDUCE, ALL_REDUCE):
            reduce_op = getattr(self.torch.distributed.ReduceOp, REDUCE_OPS[op.reduce_op])
            if op.kind == ALL_REDUCE:
                taken.copy_(given)
                return group.allreduce([taken], self.options("AllreduceOptions", reduceOp=reduce_op))
            tensor = given.clone() if taken is None else taken.copy_(given)
            options = self.options("ReduceOptions", reduceOp=reduce_op, rootRank=root, rootTensor=0)
            return group.reduce([tensor], options)
        if op.kind == GATHER:
            blocks = [list(taken.chunk(self.size))] if self.rank == root else []
            return group.gather(blocks, [given], self.options("GatherOptions", rootRank=root))
        if op.kind == SCATTER:
            blocks = [list(given.chunk(self.size))] if self.rank == root else []
            return group.scatter([taken], blocks, self.options("ScatterOptions", rootRank=root))
        if op.kind == ALL_GATHER:
            return group.allgather([list(taken.chunk(self.size))], [given], self.options("AllgatherOptions"))
        if op.kind == ALL_TO_ALL:
            return group.alltoall_base(taken, given, [], [], self.options("AllToAllOptions"))
        raise Failure(UNSUPPORTED, f"the bridge has no operation of number {op.kind}")

    def send(self, peer, address, size):
        self.group.send([self.tensor(address, size, "uint8")], peer, MESSAGES).wait(LONG)

    def recv(self, peer, address, size):
        self.group.recv([self.tensor(address, size, "uint8")], peer, MESSAGES).wait(LONG)

    def close(self):
        """Makes calls that block in the group fail."""
        if self.size == 1:
            return
        if self.backend == "gloo":  # a timeout closes all its connections; it has no other way
            tensor = self.torch.zeros(1, dtype=self.torch.uint8)
            self.group.recv([tensor], (self.rank + 1) % self.size, CLOSING).wait(datetime.timedelta(milliseconds=1))
        elif hasattr(self.group, "abort"):
            self.group.abort()
        elif hasattr(getattr(self.group, "group", None), "abort"):  # that of backplane.torch
            self.group.group.abort()


groups = {}
numbers = itertools.count(1)
lock = threading.Lock()


def open_group(opening):
    group = Group(opening.contents)
    with lock:
        opening.contents.handle = next(numbers)
        groups[opening.contents.handle] = group


def close_group(handle):
    with contextlib.suppress(Exception):  # that of gloo always raises
        groups[handle].close()


def drop_group(handle):
    with lock:
        group = groups.pop(handle, None)
    del group


def end():
    """Before Python ends: threads of C++ must not enter it afterwards."""
    has_ended, calls = (ctypes.c_int32.from_address(TABLE + ctypes.sizeof(Table) + at) for at in (0, 4))
    has_ended.value = 1
    with lock:
        handles = list(groups)
    for handle in handles:
        close_group(handle)
    deadline = time.monotonic() + END_TIME
    while calls.value > 0 and time.monotonic() < deadline:
        time.sleep(0.001)


def fill(table):
    table.open = Open(lambda *args: guarded(open_group, *args))
    table.send = Transfer(lambda handle, *args: guarded(groups[handle].send, *args))
    table.recv = Transfer(lambda handle, *args: guarded(groups[handle].recv, *args))
    table.collect = Collect(lambda handle, op, error: guarded(groups[handle].collect, op.contents, error))
    table.close = End(close_group)
    table.drop = End(drop_group)


# The functions live as long as this object.
KEPT = Table()
fill(KEPT)
atexit.register(end)
ctypes.memmove(TABLE, ctypes.addressof(KEPT), ctypes.sizeof(KEPT))
sys._backplane_c10d = globals()
