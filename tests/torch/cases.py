"""Cases that every rank of a process group runs in the same order. Run as a program: one rank of them.

Each line that it prints is a JSON object: the case's name, and its failure or null. Data differ per rank and element, and outputs are poisoned first.
"""
import datetime
import faulthandler
import json
import os
import sys
import threading
import traceback

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

CASES = {}
POISON = 77
HANG_S = 15


def case(function):
    CASES[function.__name__] = function
    return function


def data(rank, count=10, dtype=torch.float32, shift=0):
    return ((torch.arange(count) * 3 + rank * 7 + shift) % 11 + 1).to(dtype)


def same(found, expected):
    if found.dtype.is_floating_point or found.dtype.is_complex:
        found, expected = found.to(torch.complex128), expected.to(torch.complex128)
    assert torch.equal(found, expected), f"found {found}, expected {expected}"


def rejected(kind, function, *words):
    try:
        function()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} is not in: {error}"
        return error
    raise AssertionError(f"no {kind} was raised")


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
def futures(rank, size):
    tensor = data(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    same(chained.wait(), 2 * sum(data(each) for each in range(size)))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    same(work.get_future().wait()[0], torch.full((3,), float(size)))


@case
def a_callback_that_submits_and_waits(rank, size):
    def again(done):
        inner = done.value()[0].clone()
        return dist.all_reduce(inner, async_op=True).get_future().wait()[0]

    chained = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again)
    same(chained.wait(), torch.full((3,), float(size * size)))


@case
def works_that_nobody_waits_for(rank, size):
    tensors = [data(rank, shift=step) for step in range(50)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    for step, tensor in enumerate(tensors):
        dist.group.WORLD._wait_for_pending_works()
        same(tensor, sum(data(each, shift=step) for each in range(size)))


@case
def groups(rank, size):
    for members in ([0, 1], [1, 2], [0, 2], [2]):
        group = dist.new_group(members)
        if rank in members:
            tensor = data(rank)
            dist.all_reduce(tensor, group=group)
            same(tensor, sum(data(each) for each in members))
            dist.barrier(group=group)
            half = group.split_group([group.rank()])
            tensor = data(rank)
            half.allreduce([tensor]).wait()
            same(tensor, data(rank))
        dist.barrier()
        if rank in members:
            dist.destroy_process_group(group)


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
def barriers(rank, size):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))


@case
def a_monitored_barrier_names_who_is_missing(rank, size):
    import commd.torch
    group = dist.new_group()
    if rank != 1:
        error = rejected(RuntimeError, lambda: commd.torch.monitored_barrier(group, datetime.timedelta(seconds=1), wait_all_ranks=True),
                         "Rank 1 failed to pass monitoredBarrier in 1000 ms" if rank == 0 else "Missing: 1")
        assert error.ranks == (1,), error.ranks
    dist.barrier()


@case
def a_wait_has_a_limit(rank, size):
    if rank == 0:
        out = torch.zeros(3)
        work = dist.irecv(out, 1, tag=9)
        rejected(dist.DistBackendError, lambda: work.wait(datetime.timedelta(milliseconds=50)), "50 ms")
        assert not work.is_completed()
    dist.barrier()
    if rank == 0:
        work.wait()
        same(out, data(1, 3))
    elif rank == 1:
        dist.send(data(1, 3), 0, tag=9)


@case
def a_call_has_a_deadline(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        error = rejected(dist.DistBackendError, lambda: dist.all_reduce(torch.ones(3), group=group), "all_reduce")
        assert error.result.name == "TIMED_OUT" and 1 in error.ranks, (error.result, error.ranks)
    dist.barrier()


@case
def ranks_that_contradict_each_other(rank, size):
    group = dist.new_group()
    error = rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(3 + (rank == 1)), group=group), "all_reduce")
    assert error.result.name == "MISMATCH", error.result
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)  # the group goes on
    same(tensor, torch.full((2,), float(size)))


@case
def bad_arguments(rank, size):
    rejected(ValueError, lambda: dist.all_gather([torch.ones(1)], torch.ones(1)), "one tensor for each")
    rejected((ValueError, TypeError, RuntimeError), lambda: dist.all_gather([torch.ones(1, dtype=torch.int32)] * size, torch.ones(1)))
    rejected(ValueError, lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)), "rows")
    rejected(ValueError, lambda: dist.all_reduce(torch.ones(3, device="meta")), "meta")
    rejected((ValueError, RuntimeError), lambda: dist.send(torch.ones(3), size + 5))
    dist.barrier()


@case
def sequence_numbers(rank, size):
    group = dist.new_group()
    first = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
    assert group._get_sequence_number_for_group() == first + 3


@case
def records(rank, size):
    import commd.torch
    dist.all_reduce(torch.ones(2, 3))
    last = commd.torch.flight_records()
    json.dumps(last)
    entry = [each for each in last["entries"] if each["profiling_name"] == "commd:all_reduce"][-1]
    assert entry["state"] == "completed", entry
    assert any(each["input_sizes"] == [(2, 3)] for each in last["entries"])


@case
def the_profiler_names_operations(rank, size):
    with torch.autograd.profiler.profile() as profiler:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    names = [event.name for event in profiler.function_events]
    assert names.count("commd:all_reduce") == 2, names


@case
def shared_tensors(rank, size):
    import commd.torch
    from commd.torch._memory import is_shared
    tensor = commd.torch.empty(300, 100)
    assert tensor.shape == (300, 100) and is_shared(tensor) and not is_shared(torch.ones(100))
    tensor.copy_(data(rank, 30000).view(300, 100))
    dist.all_reduce(tensor)
    same(tensor.view(-1), sum(data(each, 30000) for each in range(size)))
    for _ in range(50):
        del tensor
        tensor = commd.torch.empty(1 << 20, dtype=torch.bfloat16)
    assert commd.torch.empty(0).shape == (0,)


@case
def an_abort(rank, size):
    group = dist.new_group()
    if rank == 0:
        dist.barrier()
        group.abort("enough of it")
    else:
        failures = []
        thread = threading.Thread(target=lambda: failures.append(rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(1), group=group), "enough of it")))
        thread.start()
        dist.barrier()
        thread.join(20)
        assert failures and failures[0].result.name == "ABORTED", failures
    dist.barrier()


def ddp_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))


def batch(rank):
    torch.manual_seed(10 + rank)
    return torch.randn(5, 8)


def reference(size, steps):
    model = ddp_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(model(batch(each)).square().mean() for each in range(size)) / size).backward()
        optimizer.step()
    return model


def check_parameters(found, size, steps):
    for mine, other in zip(found, reference(size, steps).parameters()):
        assert torch.allclose(mine, other, atol=1e-5), (mine - other).abs().max()


@case
def ddp(rank, size):
    for options in ({}, {"gradient_as_bucket_view": True, "static_graph": True}, {"bucket_cap_mb": 0.001}):
        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(batch(rank)).square().mean().backward()
            optimizer.step()
        check_parameters(model.parameters(), size, 3)


@case
def ddp_with_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    wrapped(batch(rank)).square().mean().backward()
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        wrapped(batch(rank)).square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    for gradient in gradients:
        first = gradient.clone()
        dist.broadcast(first, 0)
        assert torch.allclose(gradient, first, atol=1e-6)


@case
def fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    if not hasattr(torch.cpu.Stream, "record_event"):
        return  # torch 2.6's FSDP2 needs GPUs, with gloo, too
    if hasattr(torch.distributed.fsdp, "fully_shard"):
        from torch.distributed.fsdp import fully_shard
    else:
        from torch.distributed._composable.fsdp import fully_shard
    model = ddp_model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch(rank)).square().mean().backward()
        optimizer.step()
    check_parameters([parameter.full_tensor() for parameter in model.parameters()], size, 3)


@case
def communication_buffers_are_shared(rank, size):
    """A torch that asks backends for memory gets shared memory."""
    from commd.torch._memory import is_shared
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not hasattr(backend, "supports_tensor_alloc"):
        return
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert is_shared(backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu")))
    from torch.distributed.fsdp import fully_shard
    model = ddp_model()
    fully_shard(model)
    if hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        model.set_allocate_memory_from_process_group_for_comm(True)
    model(batch(rank)).square().mean().backward()


@case
def dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 12.0).view(size * 3, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same(sharded.full_tensor(), whole)
    same(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    same((sharded.t() @ sharded).full_tensor(), whole.t() @ whole)


@case
def data_loader_workers(rank, size):
    dataset = torch.utils.data.TensorDataset(torch.arange(40.0))
    total = torch.zeros(1)
    for (values,) in torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"):
        total += values.sum()
        dist.all_reduce(torch.ones(1))
    same(total, torch.tensor([780.0]))


@case
def a_fork_is_told(rank, size):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.group.WORLD.allreduce([torch.ones(1)])
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read, 1000)
    dist.barrier()


def main():
    rank, size, names = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    dist.init_process_group("commd", init_method=sys.argv[1], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    for name in names:
        failure = None
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            CASES[name](rank, size)
        except BaseException:
            failure = traceback.format_exc()
        print(json.dumps({"case": name, "failure": failure}), flush=True)
        if failure:
            break  # the ranks are out of step
    dist.destroy_process_group()


if __name__ == "__main__":
    import commd.torch  # noqa: F401 (the package may not be installed: this registers the backend)
    main()
