"""Buckets of DistributedDataParallel in commd's memory, and its built-in hooks.

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
_torch_register_builtin = distributed._register_builtin_comm_hook


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

        groups = [each for each in (*arguments, *named.values()) if isinstance(each, ProcessGroup)]
        self.group = groups[0] if groups else None
        # torch's own switch for memory of backends
        self._shared = self.group is not None and os.environ.get("DDP_DISABLE_COMM_MEM") != "1"
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


def _register_builtin(reducer, kind) -> None:
    """torch's built-in hooks are C++, and take no future of Python. A commd group gets the same hooks in Python."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hooks = {distributed.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
             distributed.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook}
    group = getattr(reducer, "group", None)
    if group is None or kind not in hooks:
        _torch_register_builtin(reducer, kind)
    else:
        distributed._register_comm_hook(reducer, group, hooks[kind])


def install() -> None:
    """Gives DDP this reducer, and these built-in hooks."""
    if distributed.Reducer is _torch_reducer:
        distributed.Reducer = Reducer
        distributed._register_builtin_comm_hook = _register_builtin
