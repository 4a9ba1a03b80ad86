"""Records of the last operations, as PyTorch's flight recorder has them."""
from __future__ import annotations

import os
import weakref

groups: weakref.WeakSet = weakref.WeakSet()
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
        "input_sizes": work.sizes, "output_sizes": work.sizes, "input_dtypes": work.dtypes, "output_dtypes": work.dtypes,
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


def kept() -> int:
    """Returns how many operations of a group are kept."""
    try:
        return max(0, int(os.environ.get("TORCH_FR_BUFFER_SIZE", "256")))
    except ValueError:
        return 256
