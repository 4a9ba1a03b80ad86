"""Tensors in memory that commd works on directly, without a copy."""
from __future__ import annotations

import math
import weakref

import torch
from torch._C import _distributed_c10d as c10d

from .. import memory as shared
from ._tensors import DTYPES


def empty(*shape, dtype=None) -> torch.Tensor:
    """Returns a tensor on the CPU whose elements are in memory that commd shares, as torch.empty does.

    Collectives on it copy nothing. It is worth it for buffers that are communicated again and again. The child of a
    fork shares the memory with its parent.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    dtype = dtype or torch.get_default_dtype()
    if dtype in DTYPES:
        return shared.empty(tuple(shape), dtype)
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    return shared.empty((size,), torch.uint8).view(dtype).view(shape)


def is_shared(tensor: torch.Tensor) -> bool:
    """Returns whether commd works directly on all of this contiguous tensor."""
    return shared.is_shared(tensor)


def allocate(size, dtype, device) -> torch.Tensor:
    """Allocates what FSDP2 asks a backend for. GPU memory is torch's own: commd shares it."""
    if torch.device(device).type != "cpu":
        return torch.empty(size, dtype=dtype, device=device)
    return empty((size,) if isinstance(size, int) else tuple(size), dtype=dtype)


if hasattr(c10d.Backend, "supports_tensor_alloc"):
    class Backend(c10d.Backend):
        """What torch asks a group's backend for, beside collectives: memory."""

        # torch's C++ asks the Python class for each of these. Its base class would ask C++ again, without end.
        supports_coalescing = supports_splitting = supports_time_estimate = supports_shrinking = False
        supports_reconfigure = supports_window = False

        def __init__(self, group, rank: int, size: int) -> None:
            super().__init__(rank, size)
            self._group = weakref.ref(group)

        def __getattr__(self, name: str):
            """Everything else is the group's."""
            group = self.__dict__.get("_group", lambda: None)()
            if group is None or name.startswith("__"):
                raise AttributeError(name)
            return getattr(group, name)

        def getBackendName(self) -> str:
            return "commd"

        def supports_tensor_alloc(self, *_) -> bool:
            return True

        def allocate_tensor(self, size, *, dtype=None, device="cpu"):
            return allocate(size, dtype, device)

        # torch's C++ calls them by these names.
        supportsTensorAlloc = supports_tensor_alloc
        allocateTensor = allocate_tensor


def register_backend(group, rank: int, size: int):
    """Gives the group a backend with memory, if this torch takes one from Python. Returns it, or None."""
    if "Backend" not in globals():
        return None
    try:
        backend = Backend(group, rank, size)
        kind = torch.distributed.ProcessGroup.BackendType.CUSTOM
        for device in group._device_types:
            group._register_backend(device, kind, backend)
        return backend
    except (TypeError, RuntimeError, AttributeError):  # this torch has no Backend that Python can derive from
        return None
