"""Buckets of DistributedDataParallel in commd's memory.

DDP copies gradients into buckets, and reduces these. torch's reducer asks a backend for the buckets' memory, but can
pass the question on to backends in C++ only. So the reducer of a commd group is made under a mode that answers for it.
"""
from __future__ import annotations

import os

import torch
import torch.distributed as distributed
from torch.utils._python_dispatch import TorchDispatchMode

from .. import errors
from . import _memory

_torch_reducer = distributed.Reducer


class _Buckets(TorchDispatchMode):
    """While it is active, flat tensors that torch allocates on the CPU are in commd's memory."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        if function is torch.ops.aten.empty.memory_format and len(arguments[0]) == 1:
            device = named.get("device")
            if (device is None or torch.device(device).type == "cpu") and not named.get("pin_memory"):
                try:
                    return _memory.empty(arguments[0], dtype=named.get("dtype"))
                except errors.Error:  # a budget is used up: ordinary memory does as well
                    pass
        return function(*arguments, **named)


class Reducer(_torch_reducer):
    """torch's reducer. If its group is commd's, its buckets are in commd's memory, and reducing them copies nothing."""

    def __init__(self, *arguments, **named) -> None:
        from ._group import ProcessGroup

        groups = [each for each in (*arguments, *named.values()) if isinstance(each, distributed.ProcessGroup)]
        self._shared = isinstance(groups[0] if groups else None, ProcessGroup)
        self._rebuilt = False
        if self._shared:
            with _Buckets():
                super().__init__(*arguments, **named)
        else:
            super().__init__(*arguments, **named)

    def _rebuild_buckets(self) -> bool:
        """Orders the buckets as gradients become ready. DDP calls it before each forward pass; it acts once."""
        if not self._shared or self._rebuilt:
            return super()._rebuild_buckets()
        with _Buckets():
            self._rebuilt = super()._rebuild_buckets()
        return self._rebuilt


def install() -> None:
    """Gives DDP this reducer. DDP_DISABLE_COMM_MEM=1, torch's own switch for memory of backends, leaves torch's."""
    if distributed.Reducer is _torch_reducer and os.environ.get("DDP_DISABLE_COMM_MEM") != "1":
        distributed.Reducer = Reducer
