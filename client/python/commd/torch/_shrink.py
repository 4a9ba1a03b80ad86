"""torch.distributed.shrink_group for commd's groups: the ranks that are left go on without those that are lost."""
from __future__ import annotations

import ctypes
import hashlib

import torch
import torch.distributed as distributed
from torch._C._distributed_c10d import PrefixStore, _register_process_group
from torch.distributed import distributed_c10d

from .. import _library
from . import _failures

# torch 2.6 has none.
_torch_shrink_group = getattr(distributed_c10d, "shrink_group", None)
SHRINK_DEFAULT, SHRINK_ABORT = 0, 1


def _check(excluded, parent, flags) -> list[int]:
    """Returns the excluded ranks in order. The errors are of the kinds that torch raises."""
    if not isinstance(excluded, (list, tuple)) or any(type(rank) is not int for rank in excluded):
        raise TypeError(f"shrink_group: ranks_to_exclude is a list of ranks, not {excluded!r}")
    if flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(f"shrink_group: shrink_flags is {SHRINK_DEFAULT}, or {SHRINK_ABORT} to abort: {flags!r}")
    size = parent.size()
    if not excluded or len(set(excluded)) != len(excluded) or any(not 0 <= rank < size for rank in excluded):
        raise ValueError(f"shrink_group: the group has ranks 0 to {size - 1}, so {list(excluded)} cannot be excluded")
    if len(excluded) == size:
        raise ValueError(f"shrink_group: all {size} ranks are excluded")
    if parent.rank() in excluded:
        raise RuntimeError(f"shrink_group: rank {parent.rank()} is excluded, so it must not call shrink_group")
    return sorted(excluded)


def _check_verdict(parent, excluded) -> None:
    """If the group has failed, its nodes have agreed who may go on. Otherwise both sides of a partition would."""
    found, ranks = _library.Lost(), (ctypes.c_uint32 * parent.size())()
    result = parent.calls.comm_lost(parent.handle, ranks, parent.size(), ctypes.byref(found))
    if result != 0:
        raise _failures.of_call(parent._client, result, "shrink_group", parent.context())
    lost = ranks[:min(found.count, parent.size())]
    if lost and not found.may_shrink:
        raise _failures.BackendError(f"{parent.context()}: shrink_group: this rank may not go on: it is lost for the "
                                     f"others, or its nodes are a minority. Lost: {lost}")
    if not set(lost) <= set(excluded):
        raise ValueError(f"shrink_group: of the lost ranks {lost}, some are not in ranks_to_exclude: {excluded}")


def _name(parent, excluded) -> str:
    """All ranks that stay compute the same name, so they need no store, which may be lost as well."""
    digest = hashlib.sha256(f"{parent.formed_as} without {excluded}".encode()).hexdigest()
    return f"torch-{digest[:32]}"


def _without(parent, excluded):
    """Returns the next group, of all ranks but these. They may be alive."""
    stay = [rank for rank in range(parent.size()) if rank not in excluded]
    made = type(parent)(parent._store, stay.index(parent.rank()), len(stay), parent._timeout, parent._device,
                        name=_name(parent, excluded))
    return made, stay


def _survivors(parent):
    """Returns the next group, of all ranks that commd's nodes have agreed on."""
    handle = ctypes.c_void_p()
    options = _library.ShrinkOptions(ctypes.sizeof(_library.ShrinkOptions), parent.timeout_ms)
    parent.interruptible(parent.calls.comm_shrink, parent.handle, ctypes.byref(options), handle, operation="shrink_group")
    rank, size = parent.calls.comm_rank(handle), parent.calls.comm_size(handle)
    made = type(parent)(parent._store, rank, size, parent._timeout, parent._device, handle=handle.value,
                        name=_name(parent, f"the lost, {size} left"))
    places = torch.empty(size, dtype=torch.int64)
    made._allgather_base(places, torch.tensor([parent.rank()])).wait()
    return made, places.tolist()


def _replace(parent, made, stay) -> None:
    """The next group takes the place of the parent, which is destroyed. stay: ranks of the parent."""
    world = distributed_c10d._world
    is_default = parent == distributed.group.WORLD
    backend, store = world.pg_map[parent]
    config = world.pg_backend_config[parent]
    everyone = distributed.get_process_group_ranks(parent)
    name = f"{world.pg_names[parent]}~{made.formed_as[-16:]}"
    distributed.destroy_process_group(None if is_default else parent)
    parent.close()  # torch 2.6 has only dropped its references
    made._set_group_name(name)
    made._set_group_desc(f"{parent.group_desc}:shrunk")
    # Later groups have the names of earlier ones again, whose keys are in the store.
    world.pg_map[made] = (backend, PrefixStore(f"{name}/", store))
    world.pg_names[made] = name
    world.pg_backend_config[made] = config
    world.pg_group_ranks[made] = {rank if is_default else everyone[old]: rank for rank, old in enumerate(stay)}
    world.tags_to_pg.setdefault("", []).append(made)
    world.tags_to_pg.setdefault(f"ptd:{name}", []).append(made)
    world.pg_to_tag[made] = f"ptd:{name}"
    _register_process_group(name, made)
    if is_default:
        distributed_c10d._update_default_pg(made)


def shrink_group(ranks_to_exclude=None, group=None, shrink_flags: int = SHRINK_DEFAULT, pg_options=None):
    """As torch.distributed.shrink_group, for groups of every backend: returns a group without these ranks, in the place
    of `group` (None: the default group; then all other groups are destroyed, too). All ranks that stay call it.

    Of a commd group, ranks_to_exclude may be None: the group has failed or was aborted, and the lost ranks are left out,
    as all nodes have agreed, and also those that are lost meanwhile.
    """
    from ._group import ProcessGroup

    parent = group if group is not None else distributed.group.WORLD
    if not isinstance(parent, ProcessGroup):
        if _torch_shrink_group is None:
            raise TypeError("shrink_group: this torch shrinks no groups but those of commd")
        return _torch_shrink_group(ranks_to_exclude, group, shrink_flags, pg_options)
    parent.check_open()
    excluded = None if ranks_to_exclude is None else _check(ranks_to_exclude, parent, shrink_flags)
    if excluded is not None:
        _check_verdict(parent, excluded)
    if shrink_flags == SHRINK_ABORT:
        parent.abort(f"rank {parent.rank()} called shrink_group")
    made, stay = _survivors(parent) if excluded is None else _without(parent, excluded)
    _replace(parent, made, stay)
    return made


def install() -> None:
    """Makes torch.distributed.shrink_group take commd's groups, if this torch has it."""
    if _torch_shrink_group is not None and distributed_c10d.shrink_group is _torch_shrink_group:
        distributed_c10d.shrink_group = distributed.shrink_group = shrink_group
