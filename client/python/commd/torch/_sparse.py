"""The all_reduce of sparse tensors: ranks have different elements, and all get the sum."""
from __future__ import annotations

import torch
from torch.distributed import ReduceOp


def all_reduce_sparse(group, tensor, opts):
    """Adds the sparse COO tensors of all ranks. It waits for its steps; the work that it returns has ended."""
    from ._collectives import _reduce_op
    from ._tensors import Buffers, operator_of

    if operator_of(_reduce_op(opts)) != operator_of(ReduceOp.SUM):
        raise ValueError("commd reduces sparse tensors with SUM only")
    if tensor.layout != torch.sparse_coo:
        raise ValueError(f"commd reduces sparse tensors in COO format only, not {tensor.layout}")
    mine = tensor.coalesce()
    indices, values = mine.indices(), mine.values()
    shape = torch.tensor([indices.shape[1], indices.shape[0], values.dim(), *tensor.shape], dtype=torch.int64)
    shapes = [torch.empty_like(shape) for _ in range(group.size())]
    group.allgather([shapes], [shape], None).wait()
    for rank, other in enumerate(shapes):
        if not torch.equal(other[1:], shape[1:]):
            raise ValueError(f"all_reduce: this rank's sparse tensor and that of rank {rank} differ in shape or in "
                             f"how many of their dimensions are sparse")
    counts = [int(other[0]) for other in shapes]
    all_indices = [torch.empty((indices.shape[0], count), dtype=indices.dtype) for count in counts]
    all_values = [torch.empty((count, *values.shape[1:]), dtype=values.dtype) for count in counts]
    group.allgather([all_indices], [indices], None).wait()
    group.allgather([all_values], [values], None).wait()
    total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)
    from ._work import Work

    work = Work(group, "all_reduce", group._get_sequence_number_for_group(), Buffers(), [tensor], 0)
    work.number = 0
    work.complete()
    return work
