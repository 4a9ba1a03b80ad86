"""Barriers: they tell which earlier operations failed, and the monitored one which ranks are missing."""
from __future__ import annotations

import datetime

import torch.distributed as distributed
from torch.distributed import distributed_c10d

from . import _failures

_OK, _TIMED_OUT = 0, 10

_torch_barrier = distributed_c10d.monitored_barrier


def _text(rank: int, missing, limit_ms: int) -> str:
    """Returns what gloo says: rank 0 names the missing ranks, and the others blame rank 0."""
    if rank != 0:
        return (f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0. Please check rank 0 logs for faulty rank. Missing: {', '.join(map(str, missing))}.")
    names = ", ".join(map(str, missing))
    return f"[Rank 0]: Rank{'s' if len(missing) > 1 else ''} {names} failed to pass monitoredBarrier in {limit_ms} ms."


class EarlierFailures:
    """What is done at the end of a barrier. An operation has ended for a rank that needs no other's data, such as a
    broadcast's root, before all have taken part. If it failed later, the barrier says so. All operations before the
    barrier have ended now; later ones are not waited for."""

    __slots__ = ("group", "sources")

    def __init__(self, group) -> None:
        self.group = group
        self.sources: list = []

    def finish(self) -> None:
        handle = self.group.handle
        result = self.group.calls.comm_sync(handle, 1) if handle is not None else _OK
        if result not in (_OK, _TIMED_OUT):
            raise _failures.of_call(self.group._client, result, "barrier", self.group.context())


def wait_monitored(group, timeout, wait_all_ranks: bool = False) -> None:
    """Waits for all ranks of a commd group. timeout: a timedelta, seconds, or None for the group's."""
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    timeout = group._timeout if timeout is None or timeout.days < 0 else timeout
    limit_ms = int(timeout.total_seconds() * 1000)
    options = distributed.BarrierOptions()
    options.timeout = timeout
    try:
        group.barrier(options).wait()
    except _failures.BackendError as error:
        if limit_ms == 0:
            text = f"[Rank {group.rank()}]: Rank {group.rank()} timed out in monitoredBarrier after {limit_ms} ms."
        else:
            text = _text(group.rank(), error.ranks if wait_all_ranks else error.ranks[:1], limit_ms)
        raise _failures.BackendError(f"{text} {error}", error.result, "barrier", error.seq, error.ranks, error.pids,
                                     error.node) from None


def monitored_barrier(group=None, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """As torch.distributed.monitored_barrier, for groups of every backend."""
    from ._group import ProcessGroup

    found = group if group is not None else distributed.group.WORLD
    if isinstance(found, ProcessGroup):
        wait_monitored(found, timeout, wait_all_ranks)
    else:
        _torch_barrier(group, timeout, wait_all_ranks)


def install() -> None:
    """Makes torch.distributed.monitored_barrier take commd's groups: torch itself refuses all backends but gloo."""
    if distributed_c10d.monitored_barrier is _torch_barrier:
        distributed_c10d.monitored_barrier = distributed.monitored_barrier = monitored_barrier
