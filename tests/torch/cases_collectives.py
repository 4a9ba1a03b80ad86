"""Collectives, messages and objects: what they compute."""
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from case import POISON, case, data, rejected, same

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@case
def all_reduce_of_each_dtype(rank, size):
    for dtype in DTYPES + [torch.complex64, torch.complex128]:
        tensor = data(rank, dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, sum(data(each, dtype=torch.complex128 if dtype.is_complex else torch.float64) for each in range(size)).to(dtype))


@case
def all_reduce_of_each_operator(rank, size):
    rows = torch.stack([data(each, dtype=torch.int64) for each in range(size)])
    expected = {ReduceOp.SUM: rows.sum(0), ReduceOp.PRODUCT: rows.prod(0), ReduceOp.MIN: rows.min(0).values, ReduceOp.MAX: rows.max(0).values}
    bits = {ReduceOp.BAND: lambda a, b: a & b, ReduceOp.BOR: lambda a, b: a | b, ReduceOp.BXOR: lambda a, b: a ^ b}
    for op, function in bits.items():
        value = rows[0].clone()
        for row in rows[1:]:
            value = function(value, row)
        expected[op] = value
    for op, value in expected.items():
        tensor = data(rank, dtype=torch.int64)
        dist.all_reduce(tensor, op=op)
        same(tensor, value)
    tensor = data(rank, dtype=torch.float64)
    dist.all_reduce(tensor, op=ReduceOp.AVG)
    assert torch.allclose(tensor, rows.to(torch.float64).mean(0))


@case
def all_reduce_with_factors(rank, size):
    tensor = data(rank, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(rank + 0.5) if hasattr(dist, "_make_nccl_premul_sum") else
                    torch._C._distributed_c10d._make_nccl_premul_sum(rank + 0.5))
    same(tensor, sum(data(each, dtype=torch.float64) * (each + 0.5) for each in range(size)))


@case
def bool_float8_and_odd_dtypes(rank, size):
    tensor = torch.tensor([rank == 0, False, True])
    dist.all_reduce(tensor)
    same(tensor, torch.tensor([True, False, True]))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((5,), 1.0).to(dtype)
        dist.all_reduce(tensor)
        same(tensor.float(), torch.full((5,), float(size)))
    odd = torch.float8_e4m3fnuz  # it is not commd's: it travels as bytes
    tensor = (torch.full((5,), 2.0) if rank == 0 else torch.zeros(5)).to(odd)
    dist.broadcast(tensor, 0)
    same(tensor.float(), torch.full((5,), 2.0))
    rejected(TypeError, lambda: dist.all_reduce(tensor), "float8_e4m3fnuz")


@case
def empty_tensors(rank, size):
    dist.all_reduce(torch.empty(0))
    dist.broadcast(torch.empty(0, 3), 0)
    parts = [torch.empty(0) for _ in range(size)]
    dist.all_gather(parts, torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))


@case
def strided_tensors(rank, size):
    base = torch.full((4, 6), float(POISON))
    view = base.t()[::2]
    view.copy_(data(rank, 12).view(3, 4))
    work = dist.all_reduce(view, async_op=True)
    work.wait()
    same(view.reshape(-1), sum(data(each, 12) for each in range(size)))
    assert (base.t()[1::2] == POISON).all()
    out = torch.full((2, 5), float(POISON)).t()
    dist.broadcast(out.copy_(data(1, 10).view(5, 2)) if rank == 1 else out, 1)
    same(out.reshape(-1), data(1, 10))
    parts = [torch.full((2, 5), float(POISON)).t() for _ in range(size)]
    dist.all_gather(parts, data(rank).view(2, 5).t())
    for each, part in enumerate(parts):
        same(part, data(each).view(2, 5).t())


@case
def broadcast_from_each(rank, size):
    for root in range(size):
        tensor = data(rank, 1000) if rank == root else torch.full((1000,), float(POISON))
        dist.broadcast(tensor, root)
        same(tensor, data(root, 1000))


@case
def reduce_to_each(rank, size):
    for root in range(size):
        tensor = data(rank)
        dist.reduce(tensor, root)
        if rank == root:
            same(tensor, sum(data(each) for each in range(size)))


@case
def all_gather(rank, size):
    parts = [torch.full((10,), float(POISON)) for _ in range(size)]
    dist.all_gather(parts, data(rank))
    for each, part in enumerate(parts):
        same(part, data(each))
    uneven = [torch.full((each + 1,), float(POISON)) for each in range(size)]
    dist.all_gather(uneven, data(rank, rank + 1))
    for each, part in enumerate(uneven):
        same(part, data(each, each + 1))
    out = torch.full((size * 10,), float(POISON))
    dist.all_gather_into_tensor(out, data(rank))
    same(out, torch.cat([data(each) for each in range(size)]))
    out = torch.full((size, 10), float(POISON))
    out[rank] = data(rank)
    dist.all_gather_into_tensor(out, out[rank])  # in place
    same(out, torch.stack([data(each) for each in range(size)]))


@case
def reduce_scatter(rank, size):
    expected = sum(data(each, shift=rank) for each in range(size))
    out = torch.full((10,), float(POISON))
    dist.reduce_scatter(out, [data(rank, shift=block) for block in range(size)])
    same(out, expected)
    out.fill_(POISON)
    dist.reduce_scatter_tensor(out, torch.cat([data(rank, shift=block) for block in range(size)]))
    same(out, expected)
    out.fill_(POISON)
    dist.reduce_scatter_tensor(out, torch.cat([data(rank, shift=block) for block in range(size)]), op=ReduceOp.MAX, async_op=True).wait()
    same(out, torch.stack([data(each, shift=rank) for each in range(size)]).max(0).values)


@case
def gather_and_scatter(rank, size):
    for root in range(size):
        parts = [torch.full((10,), float(POISON)) for _ in range(size)] if rank == root else None
        dist.gather(data(rank), parts, dst=root)
        for each, part in enumerate(parts or []):
            same(part, data(each))
        out = torch.full((10,), float(POISON))
        dist.scatter(out, [data(root, shift=each) for each in range(size)] if rank == root else None, src=root)
        same(out, data(root, shift=rank))


@case
def all_to_all(rank, size):
    out = [torch.full((each + 1,), float(POISON)) for each in range(size)]
    dist.all_to_all(out, [data(rank, rank + 1, shift=each) for each in range(size)])
    for each, part in enumerate(out):
        same(part, data(each, each + 1, shift=rank))
    out = torch.full((size * 2, 3), float(POISON))
    dist.all_to_all_single(out, torch.cat([data(rank, 6, shift=each).view(2, 3) for each in range(size)]))
    same(out, torch.cat([data(each, 6, shift=rank).view(2, 3) for each in range(size)]))
    splits = [rank + each for each in range(size)]
    out = torch.full((sum(splits), 2), float(POISON))
    source = torch.cat([data(rank, 2 * (rank + each), shift=each).view(-1, 2) for each in range(size)])
    dist.all_to_all_single(out, source, splits, splits)
    same(out, torch.cat([data(each, 2 * (rank + each), shift=rank).view(-1, 2) for each in range(size)]))


@case
def coalesced(rank, size):
    tensors = [data(rank, 5), data(rank, 300), data(rank, 1)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, sum(data(each, len(tensor)) for each in range(size)))
    outs = [torch.full((size * count,), float(POISON)) for count in (4, 50)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, data(rank, len(out) // size))
    manager.wait()
    for out in outs:
        same(out, torch.cat([data(each, len(out) // size) for each in range(size)]))
    outs = [torch.full((count,), float(POISON)) for count in (4, 50)]
    with dist.distributed_c10d._coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.cat([data(rank, len(out), shift=block) for block in range(size)]))
    for out in outs:
        same(out, sum(data(each, len(out), shift=rank) for each in range(size)))


@case
def messages(rank, size):
    following, before = (rank + 1) % size, (rank - 1) % size
    work = dist.isend(data(rank, 20000), following, tag=5)
    out = torch.full((20000,), float(POISON))
    assert dist.recv(out, before, tag=5) == before
    work.wait()
    same(out, data(before, 20000))
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            out = torch.full((10,), float(POISON))
            source = dist.recv(out)
            same(out, data(source))
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(data(rank), 0)
    out = [torch.full((50,), float(POISON)) for _ in range(2)]
    operations = [dist.P2POp(dist.isend, data(rank, 50, shift=each), following, tag=20 + each) for each in range(2)]
    operations += [dist.P2POp(dist.irecv, out[each], before, tag=20 + each) for each in (1, 0)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for each in range(2):
        same(out[each], data(before, 50, shift=each))


@case
def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank * 1000})
    assert [each["rank"] for each in gathered] == list(range(size)) and len(gathered[-1]["text"]) == (size - 1) * 1000
    listed = [("from", 1), None] if rank == 1 else [None, None]
    dist.broadcast_object_list(listed, src=1)
    assert listed == [("from", 1), None]
    out = [None]
    dist.scatter_object_list(out, [f"for {each}" for each in range(size)] if rank == 0 else None, src=0)
    assert out == [f"for {rank}"]
    found = [None] * size if rank == 0 else None
    dist.gather_object(rank * 2, found)
    assert rank != 0 or found == [2 * each for each in range(size)]


@case
def functional(rank, size):
    import torch.distributed._functional_collectives as functional_collectives

    group = dist.group.WORLD
    same(functional_collectives.all_reduce(data(rank), "sum", group) + 0, sum(data(each) for each in range(size)))
    same(functional_collectives.all_gather_tensor(data(rank), 0, group) + 0, torch.cat([data(each) for each in range(size)]))
    same(functional_collectives.reduce_scatter_tensor(torch.cat([data(rank, shift=block) for block in range(size)]), "sum", 0, group) + 0,
         sum(data(each, shift=rank) for each in range(size)))
    same(functional_collectives.all_to_all_single(data(rank, 2 * size), None, None, group) + 0,
         torch.cat([data(each, 2 * size)[2 * rank:2 * rank + 2] for each in range(size)]))
    same(functional_collectives.broadcast(data(rank), 1, group) + 0, data(1))
    for step in range(5):  # of works that only C++ holds
        tensor = functional_collectives.all_reduce_coalesced([data(rank, shift=step), data(rank, 3)], "max", group)
        same(tensor[0] + 0, torch.stack([data(each, shift=step) for each in range(size)]).max(0).values)
        same(tensor[1] + 0, torch.stack([data(each, 3) for each in range(size)]).max(0).values)


@case
def sparse(rank, size):
    def of(each):
        return torch.sparse_coo_tensor(torch.tensor([[each, each + 1, 5], [0, 1, 2]]), data(each, 3), (8, 4))

    tensor = of(rank).coalesce()
    dist.all_reduce(tensor)
    same(tensor.to_dense(), sum(of(each).to_dense() for each in range(size)))


@case
def objects_without_and_with_many_bytes(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, b"" if rank else None)
    assert gathered == [None] + [b""] * (size - 1)
    large = bytes([rank + 1]) * (5_000_000 + rank)
    dist.all_gather_object(gathered, large)
    assert [(len(each), each[0], each[-1]) for each in gathered] == [(5_000_000 + each, each + 1, each + 1) for each in range(size)]
    listed = [large, []] if rank == 2 else [None, None]
    dist.broadcast_object_list(listed, src=2)
    assert len(listed[0]) == 5_000_002 and listed[1] == []
    out = [None]
    dist.scatter_object_list(out, [b"x" * (each * 1_000_000) for each in range(size)] if rank == 1 else None, src=1)
    assert len(out[0]) == rank * 1_000_000
    if rank == 0:
        dist.send_object_list([large, None], dst=1)
    elif rank == 1:
        received = [None, 0]
        dist.recv_object_list(received, src=0)
        assert len(received[0]) == 5_000_000 and received[1] is None


@case
def messages_with_several_peers(rank, size):
    """Each rank sends to each other one, several at once; sizes on both sides of the eager limit; two rounds."""
    others = [each for each in range(size) if each != rank]
    for count in (0, 1, 4096, 4097, 300_000):
        out = {(each, turn): torch.full((count,), float(POISON)) for each in others for turn in range(2)}
        operations = []
        for each in others:
            for turn in range(2):
                operations.append(dist.P2POp(dist.irecv, out[each, turn], each))
                operations.append(dist.P2POp(dist.isend, data(rank, count, shift=each + 3 * turn), each))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for (each, turn), found in out.items():
            same(found, data(each, count, shift=rank + 3 * turn))


@case
def coalesced_operations_of_different_kinds(rank, size):
    """A coalescing manager around all_gather and reduce_scatter of several sizes, synchronous and not."""
    for later in (False, True):
        counts = (1, 1000, 33)
        outs = [torch.full((count * size,), float(POISON)) for count in counts]
        parts = [torch.full((count,), float(POISON)) for count in counts]
        with dist.distributed_c10d._coalescing_manager(async_ops=later) as manager:
            for out, count in zip(outs, counts):
                dist.all_gather_into_tensor(out, data(rank, count))
        if later:
            manager.wait()
        with dist.distributed_c10d._coalescing_manager(async_ops=later) as manager:
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.cat([data(rank, len(part), shift=block) for block in range(size)]), op=ReduceOp.MIN)
        if later:
            manager.wait()
        for out, part, count in zip(outs, parts, counts):
            same(out, torch.cat([data(each, count) for each in range(size)]))
            same(part, torch.stack([data(each, count, shift=rank) for each in range(size)]).min(0).values)


@case
def functional_collectives_with_gradients(rank, size):
    import torch.distributed.nn.functional as differentiable
    tensor = data(rank, dtype=torch.float64).requires_grad_()
    total = differentiable.all_reduce(tensor)
    (total * (rank + 1)).sum().backward()
    same(tensor.grad, torch.full((10,), size * (size + 1) / 2, dtype=torch.float64))
    tensor = data(rank, dtype=torch.float64).requires_grad_()
    gathered = differentiable.all_gather(tensor)
    (sum(each * (place + 1) for place, each in enumerate(gathered)) * (rank + 1)).sum().backward()
    same(tensor.grad, torch.full((10,), (rank + 1) * size * (size + 1) / 2, dtype=torch.float64))
