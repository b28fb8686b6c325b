# SPDX-License-Identifier: Apache-2.0
"""The flight recorder in the format of torch's analyzer, torchfrtrace (torch.distributed.flight_recorder)."""

from __future__ import annotations

import os
import pathlib
import pickle
from typing import Any

import torch
import torch.distributed as dist

from backplane._errors import InvalidError
from backplane.torch._operations import Operations

_VERSION = "2.7"  # of the format; the analyzer reads this and older ones
_PREFIX = "nccl"  # the only library that all versions of the analyzer accept
_NAMES = {"barrier": "all_reduce_barrier", "all_to_allv": "all_to_all"}
_STATES = {"in flight": "started", "done": "completed", "failed": "started"}
_DTYPES = {
    "bool": "Bool",
    "i8": "Char",
    "u8": "Byte",
    "i16": "Short",
    "u16": "UInt16",
    "i32": "Int",
    "u32": "UInt32",
    "i64": "Long",
    "u64": "UInt64",
    "f16": "Half",
    "bf16": "BFloat16",
    "f32": "Float",
    "f64": "Double",
}


def dump(directory: str | os.PathLike[str], prefix: str) -> pathlib.Path:
    path = pathlib.Path(directory) / f"{prefix}{dist.get_rank()}"
    with path.open("wb") as file:
        pickle.dump(flight_recorder(), file, protocol=2)  # dicts, lists and tuples of text and numbers
    return path


def flight_recorder() -> dict[str, Any]:
    """The groups of this process and their operations, oldest first."""
    entries: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    status: dict[str, Any] = {}
    forgotten = 0
    for number, (group, name, operations) in enumerate(_groups()):
        trace = operations.group.trace()
        # Messages are left out: the analyzer would miss the ranks of the group that take no part in one.
        collectives = [entry for entry in trace["entries"] if entry["op"] not in ("send", "recv")]
        description = str(getattr(group, "group_desc", "") or "undefined")
        ranks = [_global_rank(group, rank) for rank in range(trace["world_size"])]
        config[name] = {"name": name, "desc": description, "ranks": str(ranks)}
        forgotten += collectives[0]["seq"] - 1 if collectives else 0
        entries += [_entry(entry, trace, number, (name, description)) for entry in collectives]
        last = collectives[-1]["seq"] if collectives else -1
        completed = [entry["seq"] for entry in collectives if entry["state"] == "done"]
        status[name] = {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": completed[-1] if completed else -1,
        }
    entries.sort(key=lambda entry: int(entry["time_created_ns"]))
    for index, entry in enumerate(entries):
        entry["record_id"] = forgotten + index
    return {"version": _VERSION, "entries": entries, "pg_config": config, "pg_status": status}


def _groups() -> list[tuple[Any, str, Operations]]:
    """The groups of this process that Backplane serves, with their names, the default group first."""
    if not dist.is_initialized():
        raise InvalidError("there is no process group; call torch.distributed.init_process_group first")
    c10d: Any = dist.distributed_c10d
    names: dict[Any, str] = c10d._world.pg_names if hasattr(c10d, "_world") else c10d._pg_names
    found: list[tuple[Any, str, Operations]] = []
    for group, name in list(names.items()):
        ours: Any = group
        if not isinstance(group, Operations) and hasattr(group, "_get_backend"):
            try:
                ours = group._get_backend(torch.device("cpu"))
            except RuntimeError:  # the group is not for this device
                continue
        if isinstance(ours, Operations):
            found.append((group, str(name), ours))
    return found


def _global_rank(group: Any, rank: int) -> int:
    if group is dist.distributed_c10d._get_default_group():
        return rank
    find: Any = getattr(dist, "get_global_rank", None) or dist.distributed_c10d._get_global_rank
    return int(find(group, rank))


def _entry(entry: dict[str, Any], trace: dict[str, Any], group_number: int, group: tuple[str, str]) -> dict[str, Any]:
    inputs, outputs = _sizes(entry, trace["world_size"])
    dtypes = [_DTYPES[entry["dtype"]] if entry["dtype"] in _DTYPES else entry["dtype"]] if "dtype" in entry else [""]
    offset = trace["clock"]["realtime_ns"] - trace["clock"]["monotonic_ns"]
    is_done = entry["state"] == "done"
    return {
        "pg_id": group_number,
        "process_group": group,
        "collective_seq_id": entry["seq"],
        "p2p_seq_id": 0,
        "op_id": entry["number"],
        "profiling_name": f"{_PREFIX}:{_NAMES.get(entry['op'], entry['op'])}",
        "time_created_ns": entry["begin_ns"] + offset,
        "time_discovered_started_ns": entry["begin_ns"] + offset,
        "time_discovered_completed_ns": entry["end_ns"] + offset if is_done else None,
        "duration_ms": (entry["end_ns"] - entry["begin_ns"]) / 1e6 if is_done else None,
        "input_sizes": [inputs],
        "input_dtypes": dtypes,
        "output_sizes": [outputs],
        "output_dtypes": dtypes,
        "state": _STATES[entry["state"]],
        "timeout_ms": 0,  # is not recorded
        "is_p2p": False,
        "retired": entry["state"] != "in flight",
        "frames": [],
    }


def _sizes(entry: dict[str, Any], world_size: int) -> tuple[list[int], list[int]]:
    """The sizes of input and output; `count` is that of one rank's block."""
    if "count" not in entry:
        return [], []
    count = entry["count"]
    return {
        "all_gather": ([count], [count * world_size]),
        "gather": ([count], [count * world_size]),
        "scatter": ([count * world_size], [count]),
        "reduce_scatter": ([count * world_size], [count]),
    }.get(entry["op"], ([count], [count]))
