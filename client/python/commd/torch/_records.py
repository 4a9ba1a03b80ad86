"""Records of the last operations, as PyTorch's flight recorder has them."""
from __future__ import annotations

import itertools
import math
import os
import pickle
import weakref

import torch.distributed as distributed

groups: weakref.WeakSet = weakref.WeakSet()
next_id = itertools.count().__next__
_VERSION = "2.4"


def _state(work) -> str:
    if not work.ended_ns:
        return "started" if work._requests or work._order else "scheduled"
    return "completed"


def _entry(group, work, number: int) -> dict:
    return {
        "record_id": number, "pg_id": id(group), "process_group": (group._name or "", group._description),
        "collective_seq_id": work.seq, "p2p_seq_id": 0 if work.seq else number, "op_id": number, "is_p2p": not work.seq,
        "profiling_name": f"commd:{work.operation}", "time_created_ns": work.created_ns,
        "time_discovered_completed_ns": work.ended_ns or None,
        "duration_ms": (work.ended_ns - work.created_ns) / 1e6 if work.ended_ns else None,
        "input_sizes": work.input_sizes, "output_sizes": work.sizes, "input_dtypes": work.input_dtypes,
        "output_dtypes": work.dtypes,
        "state": _state(work), "timeout_ms": work.timeout_ms or group.timeout_ms, "retired": bool(work.ended_ns),
        "error": str(work.exception()) if work.exception() else None, "frames": [],
    }


def flight_records() -> dict:
    """Returns the last operations of all commd groups of this process, oldest first, with the flight recorder's keys.

    `json.dump` writes it. TORCH_FR_BUFFER_SIZE says how many operations of each group are kept (0: none).
    """
    entries, configs, statuses = [], {}, {}
    for group in sorted(groups, key=id):
        works = list(group.recent)
        entries += [_entry(group, work, work.number) for work in works]
        completed = [work.seq for work in works if work.seq and work.ended_ns]
        configs[group._name or str(id(group))] = {
            "name": group._name, "desc": group._description, "size": group.size(), "rank": group.rank()}
        statuses[group._name or str(id(group))] = {
            "last_enqueued_collective": group._get_sequence_number_for_group(),
            "last_completed_collective": max(completed, default=0)}
    return {"version": _VERSION, "pg_config": configs, "pg_status": statuses, "entries": entries}


def _for_analyser(group, work) -> dict:
    """Returns the record of a collective as torch's analyser reads it."""
    entry = _entry(group, work, work.record_id)
    entry["profiling_name"] = f"gloo:{work.operation}"
    if work.exception() is not None:
        entry.update(state="started", time_discovered_completed_ns=None, retired=False)
    # The analyser expects one flat tensor in place of a list of tensors.
    block = sum(map(math.prod, work.input_sizes)) if work.operation != "reduce_scatter" else \
        sum(map(math.prod, work.sizes))
    whole = [(block * group.size(),)]
    if work.operation == "all_gather":
        entry.update(input_sizes=[(block,)], output_sizes=whole)
    elif work.operation == "reduce_scatter":
        entry.update(input_sizes=whole, output_sizes=[(block,)])
    return entry


def _ranks_of(group) -> list[int]:
    try:
        return distributed.get_process_group_ranks(group)
    except (ValueError, KeyError):  # the program made the group without torch.distributed
        return list(range(group.size()))


def write_flight_records(prefix: str) -> str:
    """Writes the last collectives of this process to a file, for torch's analyser: `torchfrtrace -p PREFIX FOLDER`.

    prefix: a path. This process's global rank is added to it. All ranks write files of one folder, which has no other
    files; the analyser then says which collective ranks disagree in. Messages are left out: the analyser cannot pair
    them. It knows only the names of torch's own backends, so operations are called gloo's. Returns the file's path.
    """
    named = [group for group in groups if group._name is not None]
    works = sorted(((group, work) for group in named for work in list(group.recent) if work.seq),
                   key=lambda each: each[1].record_id)
    config = {group._name: {"name": group._name, "desc": group._description, "ranks": str(_ranks_of(group))}
              for group in named}
    path = f"{prefix}{distributed.get_rank()}"
    with open(path, "wb") as file:
        pickle.dump({"version": _VERSION, "pg_config": config, "pg_status": {}, "nccl_comm_state": {},
                     "entries": [_for_analyser(group, work) for group, work in works]}, file)
    return path


def kept() -> int:
    """Returns how many operations of a group are kept."""
    try:
        return max(0, int(os.environ.get("TORCH_FR_BUFFER_SIZE", "256")))
    except ValueError:
        return 256
