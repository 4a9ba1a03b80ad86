"""Says where the elements of an array are: any object with the buffer protocol, __array_interface__,
__cuda_array_interface__ or DLPack, and tensors of PyTorch. numpy and torch are never imported here.
"""
from __future__ import annotations

import ctypes
import sys

from ._library import DTYPE_NAMES, DTYPE_SIZES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_DTYPE_OF_NAME = {name: number for number, name in enumerate(DTYPE_NAMES)}
_CODES = {"f8": 0, "f4": 1, "f2": 2, "i8": 6, "i4": 7, "i2": 8, "i1": 9, "u8": 10, "u4": 11, "u2": 12, "u1": 13,
          "b1": 14, "c8": 15, "c16": 16}
# numpy's typestr of little-endian machines.
_TYPESTRS = {("|" if code in ("i1", "u1", "b1") else "<") + code: number for code, number in _CODES.items()}
_KINDS = {"e": "f", "f": "f", "d": "f", "Zf": "c", "Zd": "c", "?": "b", "c": "u",
          **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u")}
_TYPES_MAX = 256  # how many types of arrays are remembered


class Buffer:
    """Elements of one dtype, one after the other in memory.

    pointer: the address of the first element. count: elements. dtype: a number of commd's (see _library).
    readonly: whether commd must not write there. device: None for the host, else the number of the CUDA device, or -1
    if it is not known. owner: what keeps the memory alive. stream: the CUDA stream that orders the array, or None.

    A program may make one itself, and pass it wherever an array is accepted. It then answers for the address.
    """

    __slots__ = ("pointer", "count", "dtype", "readonly", "device", "owner", "stream")

    def __init__(self, pointer: int, count: int, dtype: int | str, readonly: bool = False, device: int | None = None,
                 owner: object = None, stream: int | None = None) -> None:
        self.pointer = pointer
        self.count = count
        self.dtype = dtype if type(dtype) is int else dtype_number(dtype)
        self.readonly = readonly
        self.device = device
        self.owner = owner
        self.stream = stream

    @property
    def size_bytes(self) -> int:
        return self.count * DTYPE_SIZES[self.dtype]


def dtype_number(dtype: Any) -> int:
    """Returns commd's number of a dtype: a number, a name such as "float32", a numpy dtype or type, or torch's."""
    if type(dtype) is int and 0 <= dtype < len(DTYPE_NAMES):
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).rsplit(".", 1)[-1]
    number = _DTYPE_OF_NAME.get({"float": "float64", "int": "int64", "bool_": "bool", "complex": "complex128",
                                 "half": "float16", "double": "float64", "f4": "float32", "f8": "float64"}.get(name, name))
    if number is None:
        raise TypeError(f"commd has no dtype {dtype!r}: it has {', '.join(DTYPE_NAMES)}")
    return number


def _not_contiguous() -> ValueError:
    return ValueError("the array is not contiguous (in C order): pass a copy, such as numpy.ascontiguousarray(a) or "
                      "tensor.contiguous()")


def _unsupported(what: object) -> TypeError:
    return TypeError(f"elements of type {what} cannot be sent as an array. commd has {', '.join(DTYPE_NAMES)} in the "
                     f"machine's byte order. Objects go through comm.objects")


def _product(shape: Any) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


# --- numpy, and others with __array_interface__ ---


def _of_numpy(array: Any) -> Buffer:
    interface = array.__array_interface__
    if interface.get("strides") is not None:
        # numpy states strides also where an extent is 1, or the array is empty.
        if not array.flags.c_contiguous:
            raise _not_contiguous()
    pointer, readonly = interface["data"]
    dtype = _TYPESTRS.get(interface["typestr"])
    if dtype is None:
        dtype = _DTYPE_OF_NAME.get(array.dtype.name) if interface["typestr"][1] in "Vf" else None
        if dtype is None or not array.dtype.isnative:
            raise _unsupported(array.dtype)
    return Buffer(pointer, array.size, dtype, readonly, None, array)


def _strides_are_contiguous(strides: Any, shape: Any, size_bytes: int) -> bool:
    if strides is None:
        return True
    expected = size_bytes
    if _product(shape) == 0:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _of_interface(array: Any, interface: Any) -> tuple[int, int, int, bool]:
    """Returns pointer, count, dtype and readonly of an array interface that may state anything."""
    try:
        data, shape, typestr = interface["data"], tuple(interface["shape"]), interface["typestr"]
        pointer, readonly = data
        if interface.get("mask") is not None:
            raise TypeError(f"{type(array).__name__} has a mask, which commd would ignore")
        if not all(type(extent) is int and extent >= 0 for extent in shape) or type(pointer) is not int or pointer < 0:
            raise TypeError(f"the array interface of {type(array).__name__} states an impossible shape or address")
    except (KeyError, TypeError, ValueError) as error:
        raise TypeError(f"{type(array).__name__} has an array interface that commd cannot read: {error}") from None
    dtype = _TYPESTRS.get(typestr)
    if dtype is None:
        dtype = _DTYPE_OF_NAME.get(str(getattr(getattr(array, "dtype", None), "name", "")))
        if dtype is None or str(DTYPE_SIZES[dtype]) != str(typestr)[2:] or str(typestr)[:1] == ">":
            raise _unsupported(typestr)
    if not _strides_are_contiguous(interface.get("strides"), shape, DTYPE_SIZES[dtype]):
        raise _not_contiguous()
    return pointer, _product(shape), dtype, bool(readonly)


def _of_foreign(array: Any) -> Buffer:
    interface = array.__array_interface__
    pointer, count, dtype, readonly = _of_interface(array, interface)
    buffer = Buffer(pointer, count, dtype, readonly, None, (array, interface))
    _check_mapped(buffer)
    return buffer


_libc: Any = None
_PAGE = 4096
_MS_ASYNC = 1


def _check_mapped(buffer: Buffer) -> None:
    """Refuses addresses that this process does not have. msync fails for those, and changes nothing elsewhere."""
    global _libc
    if buffer.count == 0:
        return
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
        _libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = buffer.pointer // _PAGE * _PAGE
    size = buffer.pointer + buffer.size_bytes - start
    if buffer.pointer == 0 or start + size > 1 << 63 or _libc.msync(start, size, _MS_ASYNC) != 0:
        raise ValueError(f"no memory of this process is at {buffer.pointer:#x}, {buffer.size_bytes} bytes: the array "
                         f"was freed, or states a wrong address")


def _of_cuda(array: Any) -> Buffer:
    interface = array.__cuda_array_interface__
    pointer, count, dtype, readonly = _of_interface(array, interface)
    device = getattr(getattr(array, "device", None), "id", -1)
    stream = interface.get("stream")
    # The interface names the legacy default stream 1; CUDA, and commd, name it null.
    return Buffer(pointer, count, dtype, readonly, device if type(device) is int else -1, array,
                  0 if stream == 1 else stream)


# --- PyTorch ---


def _of_torch(tensor: Any) -> Buffer:
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"the tensor is on {tensor.device}: commd takes tensors on cpu and cuda")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"the tensor's layout is {tensor.layout}: commd takes dense tensors")
    if not tensor.is_contiguous():
        raise _not_contiguous()
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor is a conjugate or negative view: pass tensor.resolve_conj().resolve_neg()")
    dtype = _DTYPE_OF_NAME.get(str(tensor.dtype)[6:])
    if dtype is None:
        raise _unsupported(tensor.dtype)
    count = tensor.numel()
    pointer = tensor.data_ptr()
    if count > 0 and (pointer == 0 or
                      (tensor.storage_offset() + count) * DTYPE_SIZES[dtype] > tensor.untyped_storage().nbytes()):
        raise ValueError("the tensor has no memory: its storage was freed or resized")
    if kind == "cpu":
        return Buffer(pointer, count, dtype, False, None, tensor)
    device = tensor.device.index
    stream = sys.modules["torch"].cuda.current_stream(device).cuda_stream
    return Buffer(pointer, count, dtype, False, device, tensor, stream)


# --- The buffer protocol ---


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None


def _of_exporter(array: Any) -> Buffer:
    # The view keeps the exporter from moving its memory: a bytearray, for example, cannot be resized.
    view = memoryview(array)
    if not view.c_contiguous:
        raise _not_contiguous()
    form = view.format.lstrip("@=")
    if form[:1] == "<" and sys.byteorder == "little":
        form = form[1:]
    kind = _KINDS.get(form)
    dtype = _CODES.get(f"{kind}{view.itemsize}")
    if dtype is None:
        raise _unsupported(view.format)
    raw = _PyBuffer()
    _get_buffer(view, ctypes.addressof(raw), 0)
    pointer = raw.buf or 0
    _release_buffer(ctypes.addressof(raw))
    return Buffer(pointer, view.nbytes // view.itemsize, dtype, view.readonly, None, view)


# --- DLPack ---


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_DL_CPU, _DL_CUDA, _DL_CUDA_HOST = 1, 2, 3
_DL_READ_ONLY, _DL_COPIED = 1, 2
_DL_DTYPES = {(2, 64): 0, (2, 32): 1, (2, 16): 2, (4, 16): 3, (10, 8): 4, (12, 8): 5, (0, 64): 6, (0, 32): 7, (0, 16): 8,
              (0, 8): 9, (1, 64): 10, (1, 32): 11, (1, 16): 12, (1, 8): 13, (6, 8): 14, (5, 64): 15, (5, 128): 16}
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes = [ctypes.py_object]
_capsule_name.restype = ctypes.c_char_p
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


def _of_dlpack(array: Any) -> Buffer:
    try:
        capsule = array.__dlpack__(max_version=(1, 1))
    except TypeError:
        capsule = array.__dlpack__()
    try:
        name = _capsule_name(capsule)
    except ValueError:
        raise TypeError(f"{type(array).__name__}.__dlpack__ did not return a capsule") from None
    if name == b"dltensor_versioned":
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, name))
        if managed.major != 1:
            raise TypeError(f"DLPack {managed.major}.{managed.minor} is not supported")
        tensor, readonly = managed.tensor, bool(managed.flags & (_DL_READ_ONLY | _DL_COPIED))
    elif name == b"dltensor":
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, name))
        readonly = False
    else:
        raise TypeError(f"{type(array).__name__}.__dlpack__ returned a capsule with the name {name!r}")
    dtype = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise _unsupported(f"DLPack {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes")
    if tensor.device_type not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST):
        raise ValueError(f"the array is on a device of DLPack's type {tensor.device_type}: commd takes the host and CUDA")
    shape = tensor.shape[:tensor.ndim]
    if tensor.strides and not _strides_are_contiguous(tensor.strides[:tensor.ndim], shape, 1):
        raise _not_contiguous()
    device = tensor.device_id if tensor.device_type == _DL_CUDA else None
    # The capsule is not consumed: it frees its tensor when the last reference to it goes.
    return Buffer((tensor.data or 0) + tensor.byte_offset, _product(shape), dtype,
                  readonly or type(array).__module__.startswith("jax"), device, (array, capsule))


# --- Which of these an object has ---

_describers: dict[type, Callable[[Any], Buffer]] = {Buffer: lambda buffer: buffer}


def is_torch(kind: type) -> bool:
    """Returns whether a type is torch.Tensor, or derived from it."""
    return "torch" in sys.modules and any(base.__name__ == "Tensor" and base.__module__ == "torch" for base in kind.__mro__)


def _find_describer(array: Any) -> Callable[[Any], Buffer]:
    kind = type(array)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        return _of_numpy
    if is_torch(kind):
        return _of_torch
    if hasattr(kind, "__cuda_array_interface__"):
        return _of_cuda
    # A scalar of numpy states the address of a temporary copy. Its buffer is its own.
    if hasattr(kind, "__array_interface__") and not (numpy is not None and issubclass(kind, numpy.generic)):
        return _of_foreign
    try:
        memoryview(array).release()
        return _of_exporter
    except (TypeError, ValueError, BufferError, NotImplementedError):
        pass
    if hasattr(kind, "__dlpack__"):
        return _of_dlpack
    raise TypeError(f"{kind.__name__} is not an array: it has neither the buffer protocol, __array_interface__, "
                    f"__cuda_array_interface__ nor __dlpack__. Objects go through comm.objects")


def describe(array: Any) -> Buffer:
    """Returns the Buffer of an array. TypeError: it is not one; ValueError: commd cannot use it as it is."""
    kind = type(array)
    describer = _describers.get(kind)
    if describer is None:
        describer = _find_describer(array)
        if len(_describers) < _TYPES_MAX:
            _describers[kind] = describer
    return describer(array)


def describe_output(array: Any) -> Buffer:
    """As describe, for an array that commd writes to."""
    buffer = describe(array)
    if buffer.readonly:
        raise ValueError("the output array is read-only")
    return buffer
