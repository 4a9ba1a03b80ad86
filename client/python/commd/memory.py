"""Arrays in shared memory: commd works on them directly, without a copy.

The memory lives as long as the array, or any view of it. It comes from a pool of the process, which grows as needed.
"""
from __future__ import annotations

import ctypes
import sys
from operator import index

from . import _buffers, _library, client, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHARED_FROM_BYTES = 64 << 10  # new results below this size are ordinary memory: to copy them costs less than a pool
_FORMATS = ("d", "f", "e", "", "", "", "q", "i", "h", "b", "Q", "I", "H", "B", "?", "", "")


class Memory(_library.OfProcess):
    """A piece of shared memory. It is freed with the last reference."""

    __slots__ = ("address", "size", "device", "_client", "__weakref__")

    def __init__(self, owner: client.Client, size: int, device: int = _library.DEVICE_HOST) -> None:
        self.address = 0
        if size > sys.maxsize:
            raise errors.OutOfMemory(f"{size} bytes are more than there can be", errors.Result.NO_MEMORY, "allocate")
        self.size = size
        self.device = device
        self._client = owner
        self.address = owner.allocate(size, device)

    def __del__(self) -> None:
        if self.address != 0:
            self._client.free(self.address, self.device)


def _shape_of(shape: Any) -> tuple[int, ...]:
    extents = tuple(index(extent) for extent in shape) if isinstance(shape, (tuple, list)) else (index(shape),)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"negative extents are not allowed: {shape!r}")
    return extents


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _numpy_dtype(numpy: Any, dtype: Any) -> Any:
    try:
        return numpy.dtype(dtype)
    except TypeError:
        name = _library.DTYPE_NAMES[_buffers.dtype_number(dtype)]
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"numpy has no {name}: install ml_dtypes, or pass a dtype of torch") from None
        return numpy.dtype(getattr(ml_dtypes, name))


def _exporter(memory: Memory) -> Any:
    """Returns an object with the buffer protocol over all of the memory, which keeps it alive."""
    exporter = (ctypes.c_char * memory.size).from_address(memory.address)
    exporter._memory = memory  # type: ignore[attr-defined]
    return exporter


def empty(shape: int | tuple[int, ...], dtype: Any = "float64", owner: client.Client | None = None) -> Any:
    """Returns a new array in shared memory, whose contents are arbitrary.

    It is an array of numpy, or a tensor if dtype is one of torch's. Without numpy it is a memoryview. The memory may be
    used on every communicator of this process. Errors: TypeError (dtype), ValueError (shape), OutOfMemory.
    """
    extents = _shape_of(shape)
    if owner is None:
        owner = client.shared_client()
    if type(dtype).__module__ == "torch" and "torch" in sys.modules:
        return _empty_tensor(extents, dtype, owner)
    numpy = _numpy()
    if numpy is None:
        return _empty_view(extents, dtype, owner)
    kind = _numpy_dtype(numpy, dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise TypeError(f"an array of {kind} cannot be in shared memory: its elements hold references, or have no size")
    size = _buffers._product(extents) * kind.itemsize
    memory = Memory(owner, size)
    return numpy.frombuffer(_exporter(memory), dtype=numpy.uint8).view(kind).reshape(extents) if size > 0 else \
        numpy.empty(extents, kind)


def _empty_tensor(extents: tuple[int, ...], dtype: Any, owner: client.Client) -> Any:
    torch = sys.modules["torch"]
    count = _buffers._product(extents)
    if count == 0:
        return torch.empty(extents, dtype=dtype)
    memory = Memory(owner, count * _library.DTYPE_SIZES[_buffers.dtype_number(dtype)])
    return torch.frombuffer(_exporter(memory), dtype=dtype, count=count).reshape(extents)


def _empty_view(extents: tuple[int, ...], dtype: Any, owner: client.Client) -> Any:
    number = _buffers.dtype_number(dtype)
    form: Any = _FORMATS[number]
    if not form:
        raise TypeError(f"a memoryview cannot hold {_library.DTYPE_NAMES[number]}: install numpy")
    count = _buffers._product(extents)
    memory = Memory(owner, count * _library.DTYPE_SIZES[number])
    view = memoryview(_exporter(memory)).cast("B").cast(form)
    return view if len(extents) == 1 or count == 0 else view.cast("B").cast(form, extents)


def zeros(shape: int | tuple[int, ...], dtype: Any = "float64", owner: client.Client | None = None) -> Any:
    """As empty, and sets all elements to zero."""
    array = empty(shape, dtype, owner)
    buffer = _buffers.describe(array)
    if buffer.count > 0:
        ctypes.memset(buffer.pointer, 0, buffer.size_bytes)
    return array


def is_shared(array: Any) -> bool:
    """Returns whether commd works on all of this array's memory without a copy."""
    buffer = _buffers.describe(array)
    return client.is_shared(buffer.pointer, buffer.size_bytes)


def new_like(array: Any, buffer: _buffers.Buffer, extents: tuple[int, ...], owner: client.Client) -> Any:
    """Returns a new array of the same kind and dtype as `array`, for a result."""
    large = _buffers._product(extents) * _library.DTYPE_SIZES[buffer.dtype] >= _SHARED_FROM_BYTES
    if _buffers.is_torch(type(array)):
        if large and buffer.device is None:
            return _empty_tensor(extents, array.dtype, owner)
        return sys.modules["torch"].empty(extents, dtype=array.dtype, device=array.device)
    if buffer.device is not None:
        cupy = sys.modules.get("cupy")
        if cupy is None:
            raise TypeError(f"a new array like {type(array).__name__} cannot be made: pass out")
        return cupy.empty(extents, _library.DTYPE_NAMES[buffer.dtype])
    dtype = getattr(array, "dtype", None)
    name = _library.DTYPE_NAMES[buffer.dtype]
    numpy = _numpy()
    if numpy is not None:
        kind = dtype if isinstance(dtype, numpy.dtype) else _numpy_dtype(numpy, name)
        return empty(extents, kind, owner) if large else numpy.empty(extents, kind)
    return empty(extents, name, owner)
