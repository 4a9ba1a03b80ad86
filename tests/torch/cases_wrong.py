"""Wrong arguments raise an exception on all ranks that they concern, and the group goes on. Unusual but correct arguments give right results."""
import datetime
import os
import tempfile

import numpy
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from case import POISON, case, data, rejected, same

ANY = (TypeError, ValueError, RuntimeError)


def goes_on(size, group=None):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((2,), float(size)))


def without_memory(size_bytes):
    tensor = torch.arange(50_000.0)
    tensor.untyped_storage().resize_(size_bytes)
    return tensor


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.ones(6)


# commd cannot use any of these.
BAD = {
    "of no device": lambda: torch.ones(6, device="meta"), "freed": lambda: without_memory(0), "cut": lambda: without_memory(16),
    "compressed sparse": lambda: torch.eye(6).to_sparse_csr(), "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged), "fake": fake,
    "zeros without memory": lambda: torch._efficientzerotensor(6), "of numpy": lambda: numpy.arange(6.0), "None": lambda: None, "text": lambda: "abc",
    "a list": lambda: [1.0]}


def operations(rank, size):
    """By name: a function that runs a collective with bad tensors in all places that take one."""
    world, following = dist.group.WORLD, (rank + 1) % size

    def lists(bad):
        return [bad() for _ in range(size)]
    return {
        "all_reduce": lambda bad: dist.all_reduce(bad()), "maximum": lambda bad: dist.all_reduce(bad(), ReduceOp.MAX),
        "reduce": lambda bad: dist.reduce(bad(), 1), "broadcast": lambda bad: dist.broadcast(bad(), 1),
        "all_gather": lambda bad: dist.all_gather(lists(bad), bad()), "to ordinary ones": lambda bad: dist.all_gather(lists(lambda: torch.empty(6)), bad()),
        "from an ordinary one": lambda bad: dist.all_gather(lists(bad), torch.empty(6)), "into": lambda bad: dist.all_gather_into_tensor(bad(), bad()),
        "reduce_scatter": lambda bad: dist.reduce_scatter(bad(), lists(bad)), "of one": lambda bad: dist.reduce_scatter_tensor(bad(), bad()),
        "gather": lambda bad: dist.gather(bad(), lists(bad) if rank == 1 else None, 1),
        "scatter": lambda bad: dist.scatter(bad(), lists(bad) if rank == 1 else None, 1),
        "all_to_all": lambda bad: dist.all_to_all(lists(bad), lists(bad)), "single": lambda bad: dist.all_to_all_single(bad(), bad()),
        "send": lambda bad: dist.send(bad(), following), "recv": lambda bad: dist.recv(bad(), following),
        "batch": lambda bad: dist.batch_isend_irecv([dist.P2POp(dist.isend, bad(), following)]),
        "the group's all_reduce": lambda bad: world.allreduce([bad()]).wait(), "several": lambda bad: world.allreduce_coalesced([bad(), bad()]).wait(),
        "the group's broadcast": lambda bad: world.broadcast([bad()]).wait(), "by a list": lambda bad: world.allgather([lists(bad)], [bad()]).wait(),
        "the group's reduce_scatter": lambda bad: world.reduce_scatter([bad()], [lists(bad)]).wait(),
        "by blocks": lambda bad: world.alltoall_base(bad(), bad(), [], []).wait(), "the group's send": lambda bad: world.send([bad()], following, 0),
        "the group's recv": lambda bad: world.recv([bad()], following, 0), "from any": lambda bad: world.recv_anysource([bad()], 0)}


@case
def tensors_that_cannot_be_used(rank, size):
    for what, bad in BAD.items():
        for name, operation in operations(rank, size).items():
            try:
                operation(bad)
            except ANY:
                continue
            raise AssertionError(f"{name} accepts a tensor that is {what}")
        goes_on(size)


@case
def tensors_that_are_odd(rank, size):
    """Gradients, memory that may not be written as an input, views, and dtypes that commd does not know."""
    kinds = {
        "parameter": lambda each: torch.nn.Parameter(data(each)), "result": lambda each: torch.nn.Parameter(data(each)) * 2,
        "view": lambda each: data(each, 20)[::2], "expanded": lambda each: data(each, 1).expand(10), "scalar": lambda each: torch.tensor(each + 0.5),
        "quantised": lambda each: torch.quantize_per_tensor(data(each), 0.5, 3, torch.quint8), "bool": lambda each: data(each) > 5,
        "uint16": lambda each: data(each).to(torch.uint16), "half complex": lambda each: data(each).to(torch.complex32),
        "without elements": lambda each: torch.empty(0, 4), "negative view": lambda each: torch.view_as_complex(data(each).view(5, 2)).conj().imag,
        "inference": lambda each: torch.inference_mode()(data)(each)}
    for name, kind in kinds.items():
        mine = kind(rank)
        with torch.no_grad():
            out = [kind(each + 5).contiguous().clone() for each in range(size)]
        dist.all_gather(out, mine)
        for each, found in enumerate(out):
            wanted = kind(each)
            assert torch.equal(found.dequantize(), wanted.dequantize()) if mine.is_quantized else found.tolist() == wanted.tolist(), (name, found, wanted)
    with torch.no_grad():
        parameter = torch.nn.Parameter(data(rank))
        dist.all_reduce(parameter)
        same(parameter.detach(), sum(data(each) for each in range(size)))
    rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(1).expand(10)), "single memory location")
    goes_on(size)


@case
def memory_that_may_not_be_written(rank, size):
    with tempfile.NamedTemporaryFile(dir=os.getcwd()) as file:
        numpy.asarray(data(rank, 5000)).tofile(file.name)
        mapped = torch.from_numpy(numpy.memmap(file.name, dtype="float32", mode="r"))
        out = torch.full((5000 * size,), float(POISON))
        dist.all_gather_into_tensor(out, mapped)
        same(out, torch.cat([data(each, 5000) for each in range(size)]))
        target = mapped if rank == 1 else torch.full((5000,), float(POISON))
        dist.broadcast(target, 1)
        same(target, data(1, 5000))


@case
def lists_and_sizes_that_do_not_fit(rank, size):
    wrong = [
        lambda: dist.all_gather([torch.ones(1)], torch.ones(1)), lambda: dist.all_gather([torch.ones(1, dtype=torch.int32)] * size, torch.ones(1)),
        lambda: dist.all_gather([torch.ones(2)] * size, torch.ones(3)), lambda: dist.all_gather_into_tensor(torch.ones(2 * size + 1), torch.ones(2)),
        lambda: dist.all_gather_into_tensor(torch.ones(2 * size), torch.ones(2, dtype=torch.float64)),
        lambda: dist.reduce_scatter(torch.ones(1), [torch.ones(1)] * (size + 1)), lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(1)] * size),
        lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * size + 1)), lambda: dist.all_to_all([torch.ones(1)] * size, [torch.ones(1)]),
        lambda: dist.all_to_all([torch.ones(1)] * size, [torch.ones(1, dtype=torch.int64)] * size),
        lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)),
        lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [1], [1]),
        lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [1] * (size - 1) + [2], [1] * size),
        lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [-1] + [1] * (size - 2) + [3], [1] * size),
        lambda: dist.gather(torch.ones(1), [torch.ones(1)] * (size + 1) if rank == 0 else [torch.ones(1)], 0),
        lambda: dist.scatter(torch.ones(1), [torch.ones(1)] * (size - 1) if rank == 0 else [torch.ones(1)], 0),
        lambda: dist.group.WORLD.allreduce([torch.ones(1), torch.ones(1)]), lambda: dist.group.WORLD.allreduce([]),
        lambda: dist.all_reduce(torch.ones(3), op="sum"), lambda: dist.all_reduce(torch.ones(3), op=ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.complex64), op=ReduceOp.MAX), lambda: dist.broadcast(torch.ones(3), size + 2),
        lambda: dist.broadcast(torch.ones(3), -1), lambda: dist.reduce(torch.ones(3), size), lambda: dist.send(torch.ones(3), size + 5),
        lambda: dist.send(torch.ones(3), rank), lambda: dist.recv(torch.ones(3), -1), lambda: dist.group.WORLD.send([torch.ones(3)], size, 0),
        lambda: dist.group.WORLD.recv([torch.ones(3)], -5, 0), lambda: dist.new_group([0, size]),
        lambda: dist.all_reduce(torch.ones(3), group="world")]
    for number, call in enumerate(wrong):
        try:
            call()
        except (*ANY, AssertionError, OverflowError):
            continue
        raise AssertionError(f"call {number} was accepted")
    rejected(ValueError, lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)), "rows")
    rejected(ValueError, lambda: dist.all_reduce(torch.ones(3, device="meta")), "meta")
    goes_on(size)


@case
def ranks_with_different_arguments(rank, size):
    """Every rank gets MISMATCH, and the same group goes on. Of an operation that ends for some ranks before the others
    have come, those get it with the next barrier."""
    odd, group = rank == 1, dist.new_group(timeout=datetime.timedelta(seconds=10))
    count, dtype = 3 + odd, torch.float64 if odd else torch.float32
    calls = {
        "all_reduce, sizes": lambda: dist.all_reduce(torch.ones(count), group=group),
        "all_reduce, dtypes": lambda: dist.all_reduce(torch.ones(3, dtype=dtype), group=group),
        "all_reduce, operators": lambda: dist.all_reduce(torch.ones(3), ReduceOp.MAX if odd else ReduceOp.SUM, group=group),
        "all_reduce, without elements": lambda: dist.all_reduce(torch.ones(3 * odd), group=group),
        "reduce, sizes": lambda: dist.reduce(torch.ones(count), 0, group=group), "reduce, roots": lambda: dist.reduce(torch.ones(3), int(odd), group=group),
        "broadcast, sizes": lambda: dist.broadcast(torch.ones(count), 0, group=group),
        "broadcast, dtypes": lambda: dist.broadcast(torch.ones(3, dtype=dtype), 0, group=group),
        "broadcast, roots": lambda: dist.broadcast(torch.ones(3), int(odd), group=group),
        "all_gather, sizes": lambda: dist.all_gather_into_tensor(torch.ones(count * size), torch.ones(count), group=group),
        "all_gather, dtypes": lambda: dist.all_gather_into_tensor(torch.ones(3 * size, dtype=dtype), torch.ones(3, dtype=dtype), group=group),
        "all_gather, lists": lambda: dist.all_gather([torch.ones(count) for _ in range(size)], torch.ones(count), group=group),
        "reduce_scatter, sizes": lambda: dist.reduce_scatter_tensor(torch.ones(count), torch.ones(count * size), group=group),
        "reduce_scatter, operators":
            lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(3 * size), ReduceOp.MIN if odd else ReduceOp.SUM, group=group),
        "gather, sizes": lambda: dist.gather(torch.ones(count), [torch.ones(3) for _ in range(size)] if rank == 0 else None, 0, group=group),
        "scatter, sizes": lambda: dist.scatter(torch.ones(count), [torch.ones(3) for _ in range(size)] if rank == 0 else None, 0, group=group),
        "all_to_all, sizes": lambda: dist.all_to_all_single(torch.ones(count * size), torch.ones(count * size), group=group),
        "different collectives": lambda: dist.barrier(group=group) if odd else dist.all_reduce(torch.ones(3), group=group)}
    for name, call in calls.items():
        early = name.partition(",")[0] in ("reduce", "broadcast", "gather", "scatter")
        told = []
        for each in (call, lambda: dist.barrier(group=group)) if early else (call,):
            try:
                each()
            except RuntimeError as error:
                told.append(error.result.name)
        assert told == ["MISMATCH"], (name, told)
        goes_on(size, group)


@case
def messages_that_do_not_fit(rank, size):
    """A message that is longer than its receive, or of another dtype, fails alone."""
    for count in (4, 100_000):
        for sent, wanted in ((torch.ones(count), torch.zeros(count - 1)), (torch.ones(count, dtype=torch.int32), torch.zeros(count, dtype=torch.float16))):
            if rank == 0:
                try:
                    dist.send(sent, 1, tag=3)
                except dist.DistBackendError:
                    pass  # a long message's sender may be told, too
            elif rank == 1:
                rejected(dist.DistBackendError, lambda: dist.recv(wanted, 0, tag=3))
            goes_on(size)


@case
def timeouts_that_are_odd(rank, size):
    options = dist.AllreduceOptions()
    for timeout in (datetime.timedelta(days=4000), datetime.timedelta(milliseconds=-1), datetime.timedelta(seconds=20)):
        options.timeout = timeout
        tensor = torch.ones(2)
        dist.group.WORLD.allreduce([tensor], options).wait()
        same(tensor, torch.full((2,), float(size)))
    dist.new_group(timeout=datetime.timedelta(days=4000))
    goes_on(size)
