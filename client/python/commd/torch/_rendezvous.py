"""How processes meet without a host and a port: `commd://job-17`, and `torchrun --rdzv-backend=commd`."""
from __future__ import annotations

import datetime
import os
import threading
from typing import NamedTuple
from urllib.parse import parse_qs, urlparse

import torch.distributed as distributed

from ._register import NAME
from ._store import DEFAULT_TIMEOUT, Store

_lock = threading.Lock()
# torch's C++ code holds only the C++ half of a store, so this module keeps the Python half.
_open: dict[str, Store] = {}


class _Launcher(NamedTuple):
    """Which variables a launcher sets. Of `sizes`, the first that is set counts. `job`: what tells jobs apart."""

    mark: str
    rank: str
    sizes: tuple
    job: tuple


# The first whose mark is set counts. As in libcommclient, except for RANK: torch programs often set it themselves.
_LAUNCHERS = (
    _Launcher("TORCHELASTIC_RUN_ID", "RANK", ("WORLD_SIZE",), ("TORCHELASTIC_RUN_ID", "MASTER_PORT")),
    _Launcher("COMMD_RANK", "COMMD_RANK", ("COMMD_SIZE",), ("COMMD_JOB",)),
    _Launcher("RANK", "RANK", ("WORLD_SIZE",), ("MASTER_ADDR", "MASTER_PORT")),
    _Launcher("PALS_RANKID", "PALS_RANKID", ("PALS_SIZE", "PMI_SIZE"), ("PALS_APID",)),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("PMIX_NAMESPACE",)),
    _Launcher("PMI_RANK", "PMI_RANK", ("PMI_SIZE",), ("PMI_JOBID",)),
    _Launcher("SLURM_PROCID", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_JOB_ID", "SLURM_STEP_ID")))


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None


def _launcher() -> _Launcher | None:
    return next((each for each in _LAUNCHERS if _variable(each.mark)), None)


def _number(url: str, name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{url}: {name} is {text!r}: expected a number")
    return int(text)


def _place(url: str) -> tuple[int, int]:
    """Returns this process's rank and the number of processes, as the URL or the launcher says."""
    query = parse_qs(urlparse(url).query)
    launcher = _launcher()
    found = []
    for name, variables in (("rank", (launcher.rank,) if launcher else ()), ("world_size", launcher.sizes if launcher else ())):
        choices = [(name, query[name][0])] if name in query else [(each, _variable(each)) for each in variables]
        known = next(((where, text) for where, text in choices if text is not None), None)
        if known is None:
            raise ValueError(f"{url}: say which rank this is and how many there are: init_process_group(rank=, "
                             f"world_size=), or RANK and WORLD_SIZE in the environment")
        found.append(_number(url, *known))
    rank, size = found
    if rank >= size:
        raise ValueError(f"{url}: there is no rank {rank} among {size} processes")
    return rank, size


def _job(url: str) -> str:
    """Returns the job's name: the URL's, COMMD_JOB, or one that is made of what the launcher sets."""
    parsed = urlparse(url)
    job = (parsed.netloc + parsed.path).strip("/") or _variable("COMMD_JOB")
    if job:
        return job
    launcher = _launcher()
    parts = [_variable(name) for name in launcher.job] if launcher else []
    if not parts or None in parts:
        raise ValueError(f"{url}: the launcher names no job: expected commd://JOB, the same JOB on all ranks")
    return "-".join(parts)


def rendezvous(url: str, timeout: datetime.timedelta | None = None):
    """Yields a store, this process's rank and the number of processes. torch calls it for commd://job."""
    rank, size = _place(url)
    job = _job(url)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with _lock:
        store = _open.get(job)
        if store is None or not store.is_open:
            store = _open[job] = Store(f"torch-{job}", timeout or DEFAULT_TIMEOUT)
    # A job may call init_process_group several times. Each time has keys of its own.
    turn = store.add(f"turn/{restart}/{rank}", 1)
    prefixed = distributed.PrefixStore(f"{restart}/{turn}", store)
    prefixed.set_timeout(timeout or DEFAULT_TIMEOUT)
    yield prefixed, rank, size
    raise RuntimeError("a commd rendezvous cannot be repeated without a new init_process_group")


def torchrun_handler():
    """Returns the function that makes torchrun's rendezvous. torchrun calls it by the entry points torchrun.handlers."""
    return create_handler


def create_handler(params):
    """Makes the rendezvous of torchrun's agents, one on each node: their state is in a store that commd keeps.

    params: torch's RendezvousParameters. The endpoint and the run id name the job; one of them must be given.
    """
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous

    names = [text for text in (params.endpoint, params.run_id) if text and text != "none"]
    if not names:
        raise ValueError("torchrun --rdzv-backend=commd: name the job by --rdzv-id=JOB, the same JOB on all nodes, and "
                         "a new one for each job")
    # Otherwise torchrun serves a TCP store for its workers, which some builds of torch cannot do.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    timeout_s = params.get_as_int("read_timeout", 60)
    store = _open["torchrun"] = Store("-".join(["torchrun", *names]), datetime.timedelta(seconds=timeout_s))

    class Backend(c10d_rendezvous_backend.C10dRendezvousBackend):
        """torch's own way to keep the state in a store."""

        name = NAME

    return dynamic_rendezvous.create_handler(store, Backend(store, params.run_id), params)
