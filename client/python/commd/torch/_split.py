"""torch.distributed.split_group for commd's groups: torch itself splits only groups that are bound to a GPU."""
from __future__ import annotations

import inspect

import torch.distributed as distributed
from torch.distributed import distributed_c10d

_torch_split_group = distributed_c10d.split_group
# torch 2.6 has neither, and returns None on ranks that are in no part. It always sorts the ranks.
_HAS_BACKEND = "backend" in inspect.signature(_torch_split_group).parameters
_KEEPS_ORDER = "sort_ranks" in inspect.signature(distributed_c10d.new_group).parameters


def _check(split_ranks, size: int) -> None:
    if not split_ranks:
        raise ValueError("split_group: split_ranks is empty")
    for ranks in split_ranks:
        if not ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"split_group: a part of ranks {ranks} is empty, or has a rank twice")
        if any(not 0 <= rank < size for rank in ranks):
            raise ValueError(f"split_group: the group has ranks 0 to {size - 1}, so {ranks} cannot be a part of it")


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None):
    """As torch.distributed.split_group, for groups of every backend. All ranks of the parent call it with the same
    split_ranks, which are lists of the parent's ranks. Each rank gets its part."""
    from ._group import NAME, ProcessGroup

    parent = parent_pg if parent_pg is not None else distributed.group.WORLD
    if not isinstance(parent, ProcessGroup):
        named = {"backend": backend} if _HAS_BACKEND else {}
        return _torch_split_group(parent_pg, split_ranks, timeout, pg_options, group_desc, **named)
    if backend is not None and {each.split(":")[-1] for each in str(backend).lower().split(",")} != {NAME}:
        raise ValueError(f"split_group: the parts of a commd group are commd groups, not {backend}")
    _check(split_ranks, parent.size())
    everyone = distributed.get_process_group_ranks(parent)
    named = {"sort_ranks": False} if _KEEPS_ORDER else {}
    for ranks in split_ranks:
        if parent.rank() in ranks:
            return distributed.new_group([everyone[rank] for rank in ranks], timeout=timeout or parent._timeout,
                                         backend=NAME, pg_options=pg_options, use_local_synchronization=True,
                                         group_desc=group_desc or f"{parent.group_desc}:split", **named)
    return distributed.GroupMember.NON_GROUP_MEMBER if _HAS_BACKEND else None


def install() -> None:
    """Makes torch.distributed.split_group take commd's groups."""
    if distributed_c10d.split_group is _torch_split_group:
        distributed_c10d.split_group = distributed.split_group = split_group
