"""What commd needs to know of tensors: their dtypes, and where their elements are."""
from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from .. import _library

_KNOWN = {name: (number, size) for number, (name, size) in
          enumerate(zip(_library.DTYPE_NAMES, _library.DTYPE_SIZES))}
# By torch's dtype: commd's number. An older torch lacks some of the dtypes.
DTYPES = {getattr(torch, name): number for name, (number, _) in _KNOWN.items() if hasattr(torch, name)}

_KIND = ReduceOp.RedOpType if hasattr(ReduceOp, "RedOpType") else ReduceOp
OPERATORS = {getattr(_KIND, name): _library.OPS[op] for name, op in
             {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg", "BAND": "band", "BOR": "bor",
              "BXOR": "bxor"}.items()}
_PREMUL_SUM = getattr(_KIND, "PREMUL_SUM", None)


def dtype_for_reduction(tensor) -> int:
    """Returns commd's number of the tensor's dtype. Raises TypeError if commd cannot reduce it."""
    try:
        return DTYPES[tensor.dtype]
    except KeyError:
        raise TypeError(f"commd cannot reduce tensors of {tensor.dtype}") from None


def dtype_for_copy(tensor) -> tuple[int, int]:
    """Returns the dtype and count with which the tensor travels. Dtypes that commd does not know travel as bytes."""
    number = DTYPES.get(tensor.dtype)
    if number is None:
        return _library.U8, tensor.numel() * tensor.element_size()
    return number, tensor.numel()


def operator_of(reduce_op) -> tuple[int, float]:
    """Returns commd's operator and the factor of PREMUL_SUM (1.0 for others)."""
    kind = getattr(reduce_op, "op", reduce_op)
    number = OPERATORS.get(kind)
    if number is not None:
        return number, 1.0
    if kind == _PREMUL_SUM:
        factor = reduce_op.__getstate__()[1]
        return _library.OPS["premul_sum"], float(factor)
    raise ValueError(f"commd has no reduction {reduce_op}")


def check_dense(tensor) -> None:
    """Raises an exception if commd cannot work on the tensor at all."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError("commd works on dense tensors here; of the collectives, only all_reduce takes sparse ones")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"commd works on tensors of the CPU and of CUDA GPUs, not on {tensor.device}")
    if tensor.is_nested:
        raise ValueError("commd does not work on nested tensors")


def only(tensors, what: str):
    """Returns the only tensor of a list, or the tensor itself."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: commd takes one tensor for each process, not {len(tensors)}")
    if not isinstance(tensors[0], torch.Tensor):
        raise TypeError(f"{what}: expected a tensor, not {type(tensors[0]).__name__}")
    return tensors[0]


def same_dtype(tensors) -> None:
    """Raises an exception if the tensors differ in dtype."""
    first = None
    for tensor in tensors:
        check_dense(tensor)
        first = first or tensor.dtype
        if tensor.dtype != first:
            raise ValueError(f"tensors of one collective must have one dtype, not {first} and {tensor.dtype}")


def check_storage(tensor) -> None:
    """Raises ValueError if a contiguous tensor's memory is not there, was freed, or is smaller than the tensor."""
    count = tensor.numel()
    needed = (tensor.storage_offset() + count) * tensor.element_size()
    if count > 0 and (tensor.untyped_storage().nbytes() < needed or tensor.data_ptr() == 0):
        raise ValueError(f"a {type(tensor).__name__} of {tuple(tensor.shape)} has no memory, or less than it needs")


class Buffers:
    """The memory that an operation works on. Tensors that are not contiguous are replaced by contiguous ones; finish()
    copies results back."""

    __slots__ = ("held", "sources", "copies")

    def __init__(self) -> None:
        self.held: list = []
        self.sources: list = []
        self.copies: list = []

    def read(self, tensor):
        """Returns a contiguous tensor with the elements of this one."""
        check_dense(tensor)
        contiguous = tensor.detach().resolve_conj().resolve_neg().contiguous()
        check_storage(contiguous)
        self.held.append(contiguous)
        self.sources.append(contiguous)
        return contiguous

    def write(self, tensor, fill: bool = False):
        """Returns a contiguous tensor whose elements this one gets at the end. fill: it begins with its elements."""
        check_dense(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            check_storage(tensor)
            self.held.append(tensor)
            return tensor
        contiguous = tensor.detach().resolve_conj().resolve_neg().contiguous() if fill else \
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if contiguous.data_ptr() == tensor.data_ptr():
            contiguous = contiguous.clone()
        self.held += (contiguous, tensor)
        self.copies.append((tensor, contiguous))
        return contiguous

    def finish(self) -> None:
        """Copies results back, and lets the memory go."""
        for tensor, contiguous in self.copies:
            with torch.no_grad():
                tensor.copy_(contiguous)
        self.copies = []
        self.sources = []
        self.held = []
