"""Collectives and messages of arrays. Each rank's data differ, and outputs are poisoned first."""
import array as standard_array

import numpy
import pytest

POISON = 77
SIZES = (1, 3)


def data(rank, count=1000, dtype="float64"):
    """Each rank and each element has a number of its own."""
    return (numpy.arange(count) % 11 + 1 + rank * 3).astype(dtype)


def poisoned(count, dtype="float64"):
    return numpy.full(count, POISON, dtype)


# --- Functions that the ranks run ---


def reductions(comm):
    ranks = [data(rank) for rank in range(comm.size)]
    own = data(comm.rank)
    total = comm.all_reduce(own)
    assert total.dtype == own.dtype and numpy.array_equal(total, sum(ranks)) and numpy.array_equal(own, ranks[comm.rank])
    out = poisoned(1000)
    assert comm.all_reduce(own, "max", out=out) is out and numpy.array_equal(out, numpy.max(ranks, axis=0))
    scaled = sum((rank + 1) * each for rank, each in enumerate(ranks))
    found = comm.reduce(ranks[comm.rank], "premul_sum", root=0, factor=comm.rank + 1)
    assert numpy.array_equal(found, scaled) if comm.rank == 0 else found is None
    found = comm.scan(ranks[comm.rank], "premul_sum", factor=comm.rank + 1)
    assert numpy.array_equal(found, sum((rank + 1) * ranks[rank] for rank in range(comm.rank + 1)))
    assert comm.all_reduce(own, "sum", out=own) is own and numpy.array_equal(own, sum(ranks))
    own = data(comm.rank)
    result = comm.reduce(own, "min", root=comm.size - 1)
    if comm.rank == comm.size - 1:
        assert numpy.array_equal(result, numpy.min(ranks, axis=0))
    else:
        assert result is None
    assert numpy.array_equal(comm.scan(own), sum(ranks[:comm.rank + 1]))
    before = comm.exclusive_scan(own)
    assert numpy.array_equal(before, sum(ranks[:comm.rank]) if comm.rank else numpy.zeros(1000))
    weighted = comm.all_reduce(own, "premul_sum", factor=comm.rank + 1.0)
    assert numpy.allclose(weighted, sum(ranks[rank] * (rank + 1) for rank in range(comm.size)))


def dtypes(comm):
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
                 "complex64", "complex128"):
        own = data(comm.rank, 13, name)
        expected = sum(data(rank, 13, name) for rank in range(comm.size))
        assert numpy.array_equal(comm.all_reduce(own), expected), name
    flags = numpy.arange(8) % (comm.rank + 2) == 0
    expected = numpy.any([numpy.arange(8) % (rank + 2) == 0 for rank in range(comm.size)], axis=0)
    assert numpy.array_equal(comm.all_reduce(flags, "lor"), expected)


def blocks(comm):
    size, rank = comm.size, comm.rank
    own = data(rank, 12).reshape(3, 4)
    every = numpy.stack([data(each, 12).reshape(3, 4) for each in range(size)])
    assert numpy.array_equal(comm.all_gather(own), every)
    out = [poisoned(12).reshape(3, 4) for _ in range(size)]
    comm.all_gather(own, out=out)
    assert numpy.array_equal(numpy.stack(out), every)
    gathered = comm.gather(own, root=0)
    assert (rank == 0 and numpy.array_equal(gathered, every)) or (rank != 0 and gathered is None)
    received = poisoned(12).reshape(3, 4)
    comm.scatter(every if rank == 0 else None, out=received)
    assert numpy.array_equal(received, own)
    wide = numpy.concatenate([data(rank + 10 * block, 5) for block in range(size)]).reshape(size, 5)
    part = comm.reduce_scatter(wide)
    assert part.shape == (5,) and numpy.array_equal(part, sum(data(each + 10 * rank, 5) for each in range(size)))
    swapped = comm.all_to_all(wide)
    assert numpy.array_equal(swapped, [data(each + 10 * rank, 5) for each in range(size)])
    value = data(rank, 7) if rank == size - 1 else poisoned(7)
    assert comm.broadcast(value, root=size - 1) is value and numpy.array_equal(value, data(size - 1, 7))


def uneven_blocks(comm):
    size, rank = comm.size, comm.rank
    counts = [each * 2 + 1 for each in range(size)]
    every = numpy.concatenate([data(each, counts[each]) for each in range(size)])
    assert numpy.array_equal(comm.all_gather_v(data(rank, counts[rank]), counts), every)
    spread = poisoned(sum(counts) + size)
    starts = [sum(counts[:each]) + each for each in range(size)]
    comm.all_gather_v(data(rank, counts[rank]), counts, out=spread, displacements=starts)
    for each in range(size):
        assert numpy.array_equal(spread[starts[each]:starts[each] + counts[each]], data(each, counts[each]))
        assert spread[starts[each] + counts[each]] == POISON
    gathered = comm.gather_v(data(rank, counts[rank]), counts if rank == 0 else None)
    assert rank != 0 or numpy.array_equal(gathered, every)
    own = poisoned(counts[rank])
    comm.scatter_v(every if rank == 0 else None, counts if rank == 0 else None, out=own)
    assert numpy.array_equal(own, data(rank, counts[rank]))
    part = comm.reduce_scatter_v(every * (rank + 1), counts)
    assert numpy.allclose(part, data(rank, counts[rank]) * sum(range(1, size + 1)))
    sends = [rank + each for each in range(size)]
    sent = numpy.concatenate([data(rank * size + each, sends[each]) for each in range(size)])
    received = comm.all_to_all_v(sent, sends, sends)
    assert numpy.array_equal(received, numpy.concatenate([data(each * size + rank, rank + each) for each in range(size)]))


def lists(comm):
    size, rank = comm.size, comm.rank
    counts = [each * 3 + 1 for each in range(size)]
    out = [poisoned(count) for count in counts]
    comm.all_gather(data(rank, counts[rank]), out=out)
    assert all(numpy.array_equal(out[each], data(each, counts[each])) for each in range(size))
    part = comm.reduce_scatter([data(rank + each, counts[each]) for each in range(size)])
    assert numpy.array_equal(part, sum(data(each + rank, counts[rank]) for each in range(size)))
    received = [poisoned(rank + each + 1) for each in range(size)]
    comm.all_to_all([data(rank * size + each, rank + each + 1) for each in range(size)], out=received)
    assert all(numpy.array_equal(received[each], data(each * size + rank, rank + each + 1)) for each in range(size))
    out = [poisoned(count) for count in counts]
    comm.gather_v(data(rank, counts[rank]), root=size - 1, out=out)
    assert rank != size - 1 or all(numpy.array_equal(out[each], data(each, counts[each])) for each in range(size))
    own = poisoned(counts[rank])
    comm.scatter_v([data(each, counts[each]) for each in range(size)] if rank == 0 else None, out=own)
    assert numpy.array_equal(own, data(rank, counts[rank]))


def messages(comm):
    size, rank = comm.size, comm.rank
    following, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 100, 300000):
        out = poisoned(count)
        source, length = comm.send_recv(data(rank, count), following, out, before, tag=count)
        assert (source, length) == (before, count) and numpy.array_equal(out, data(before, count))
    comm.send(data(rank, 5), following, tag=9)
    out = poisoned(8)
    received = comm.recv(out, tag=9)
    assert received.source == before and received.count == 5
    assert numpy.array_equal(out[:5], data(before, 5)) and numpy.array_equal(out[5:], poisoned(3))


def requests(comm):
    inputs = [data(comm.rank + 7 * number, 100 + number) for number in range(20)]
    started = [comm.all_reduce(each, out=poisoned(each.size), wait=False) for each in inputs]
    for number, request in enumerate(started):
        expected = sum(data(rank + 7 * number, 100 + number) for rank in range(comm.size))
        assert numpy.array_equal(request.wait(10), expected) and request.done and request.test()
        assert request.wait() is request.output and request.exception() is None
    import commd
    arrays = [data(comm.rank, 10) for _ in range(5)]
    for out in commd.wait_all([comm.all_reduce(each, out=each, wait=False) for each in arrays]):
        assert numpy.array_equal(out, sum(data(rank, 10) for rank in range(comm.size)))
    for _ in range(200):  # dropped requests end by themselves, and their arrays live until then
        comm.all_reduce(data(comm.rank, 3000), wait=False)
    comm.barrier()
    assert len(comm._pending) <= 200


def groups(comm):
    arrays = [data(comm.rank + number, 50) for number in range(10)]
    with comm.group() as group:
        for each in arrays:
            comm.all_reduce(each, out=each)
        gathered = comm.all_gather(arrays[0][:5].copy())
    assert len(group.requests) == 11
    for number, each in enumerate(arrays):
        assert numpy.array_equal(each, sum(data(rank + number, 50) for rank in range(comm.size)))
    assert numpy.array_equal(gathered.output, [data(rank, 5) for rank in range(comm.size)])
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = poisoned(200000)
    with comm.group(wait=False) as group:
        comm.send(data(comm.rank, 200000), following)
        comm.recv(out, before)
    assert group.wait(20)[1] == (before, 200000) and numpy.array_equal(out, data(before, 200000))


def groups_that_run_as_one(comm):
    """All-gathers and reduce-scatters of different sizes, in place too, between other operations."""
    size, rank = comm.size, comm.rank
    counts = (1, 7, 0, 300, 5000, 64)
    for shared in (False, True):
        new = comm.empty if shared else numpy.empty
        gathered = [new((size, count)) for count in counts]
        sources = [new(size * count) for count in counts]
        blocks = [new(count) for count in counts]
        for number, count in enumerate(counts):
            gathered[number][:] = POISON
            gathered[number][rank] = data(rank + number, count)
            sources[number][:] = data(rank + number, size * count)
            blocks[number][:] = POISON
        with comm.group():
            for each in gathered:
                comm.all_gather(each[rank], out=each)
            for source, block in zip(sources, blocks):
                comm.reduce_scatter(source, "premul_sum", out=block, factor=float(rank + 1))
            typed = comm.all_gather(numpy.full(3, rank, "int16"))
            uneven = comm.all_gather_v(numpy.full(rank + 1, rank), [each + 1 for each in range(size)])
            total = comm.reduce_scatter(numpy.arange(2.0 * size), "avg")
        for number, count in enumerate(counts):
            assert numpy.array_equal(gathered[number], [data(each + number, count) for each in range(size)])
            whole = sum((each + 1) * data(each + number, size * count) for each in range(size))
            assert numpy.array_equal(blocks[number], whole[rank * count:(rank + 1) * count])
        assert numpy.array_equal(typed.output, [[each] * 3 for each in range(size)])
        assert numpy.array_equal(uneven.output, numpy.repeat(range(size), [each + 1 for each in range(size)]))
        assert numpy.array_equal(total.output, [2.0 * rank, 2.0 * rank + 1])


def groups_that_differ(comm):
    """Ranks that group all-gathers in different ways contradict each other: so the operations of a group run as one."""
    import commd
    one = numpy.ones(3)
    with pytest.raises(commd.Mismatch, match="1 of 2 in a group"):
        with comm.group():
            comm.all_gather(one)
            comm.all_gather(one) if comm.rank == 0 else comm.reduce_scatter(numpy.ones(3 * comm.size))
    assert comm.all_reduce(numpy.int64(1)) == comm.size


def shared_memory(comm):
    import commd
    own = comm.empty((300, 7), "float32")
    assert own.shape == (300, 7) and own.dtype == numpy.float32 and own.flags.writeable
    own[:] = data(comm.rank, 2100, "float32").reshape(300, 7)
    view = own[5]
    expected = sum(data(rank, 2100, "float32") for rank in range(comm.size)).reshape(300, 7)
    total = comm.all_reduce(own)
    assert numpy.array_equal(total, expected)
    del own
    assert numpy.array_equal(view, data(comm.rank, 2100, "float32").reshape(300, 7)[5])
    assert not comm.zeros(1000, "int32").any() and comm.empty((0, 3)).shape == (0, 3) and comm.empty(()).shape == ()
    large = comm.all_reduce(data(comm.rank, 1 << 16))
    assert commd.is_shared(large) and not commd.is_shared(numpy.zeros(10)) and commd.is_shared(commd.empty(10))
    for _ in range(2000):
        comm.empty(10000)  # freed at once
    comm.destroy()
    assert numpy.array_equal(total, expected)  # memory outlives its communicator


def other_arrays(comm):
    own = bytearray([comm.rank + 1] * 40)
    comm.all_reduce(own, out=own)
    assert own == bytearray([sum(range(1, comm.size + 1))] * 40)
    numbers = standard_array.array("d", [comm.rank + 0.5, 2.0])
    out = standard_array.array("d", [POISON, POISON])
    comm.all_reduce(numbers, out=out)
    assert list(out) == [sum(rank + 0.5 for rank in range(comm.size)), 2.0 * comm.size]
    assert list(comm.all_reduce(memoryview(numbers))) == list(out)
    assert comm.all_gather(bytes([comm.rank] * 3)).tolist() == [[rank] * 3 for rank in range(comm.size)]
    assert comm.all_reduce(numpy.float64(comm.rank)) == sum(range(comm.size))
    assert numpy.array_equal(comm.all_reduce(Interface(data(comm.rank))), sum(data(rank) for rank in range(comm.size)))
    assert numpy.array_equal(comm.all_reduce(Packed(data(comm.rank))), sum(data(rank) for rank in range(comm.size)))
    import commd
    raw = data(comm.rank, 30, "float32")
    buffer = commd.Buffer(raw.ctypes.data, 30, "float32", owner=raw)
    comm.all_reduce(buffer, out=buffer)
    assert numpy.array_equal(raw, sum(data(rank, 30, "float32") for rank in range(comm.size)))


class Interface:
    """An array that has __array_interface__ alone."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class Packed:
    """An array that has DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def parts(comm):
    part = comm.split(comm.rank % 2, key=-comm.rank)
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert part.size == len(members) and part.rank == members.index(comm.rank)
    total = part.all_reduce(data(comm.rank))
    assert numpy.array_equal(total, sum(data(rank) for rank in members))
    assert comm.split(None) is None
    part.destroy()
    part.destroy()
    assert part.closed and not comm.closed
    assert comm.node_of(comm.rank) and 0 <= comm.local_rank < comm.local_size
    comm.barrier()


def compressed(comm):
    own = (numpy.arange(5000) % 17 + comm.rank).astype("float32")
    exact = sum((numpy.arange(5000) % 17 + rank).astype("float32") for rank in range(comm.size))
    total = comm.all_reduce(own, compression="bf16")
    assert numpy.allclose(total, exact, rtol=2 ** -7)
    kept = numpy.zeros(5000, "float32")
    comm.all_reduce(own, "avg", compression="f8", residual=kept)


FUNCTIONS = [reductions, dtypes, blocks, uneven_blocks, lists, messages, requests, groups, groups_that_run_as_one, shared_memory,
             other_arrays, parts, compressed]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_node(daemons, function, size):
    daemons.run_ranks(function, size)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_two_nodes(two_nodes, function):
    two_nodes.run_ranks(function, 4)


def test_groups_that_differ(daemons, two_nodes):
    for nodes in (daemons, two_nodes):
        nodes.run_ranks(groups_that_differ, 2)


def test_alone(daemons):
    """A process without a launcher is a communicator of size 1."""
    text = "import commd, numpy\nwith commd.init() as comm: assert (comm.rank, comm.size) == (0, 1); print(comm.all_reduce(numpy.ones(3)))"
    assert daemons.run(text)[1].split() == ["[1.", "1.", "1.]"]


def test_by_name(daemons):
    """Rank and size may be arguments."""
    text = ("import commd, sys, numpy\nwith commd.init('by-name', rank=int(sys.argv[1]), size=2) as comm: "
            "print(int(comm.all_reduce(numpy.int64(comm.rank + 5))))")
    import sys
    from ranks import finish
    started = [daemons.start([sys.executable, "-B", "-c", text, rank]) for rank in (0, 1)]
    assert [finish(process)[1].strip() for process in started] == ["11", "11"]


def test_without_numpy(daemons):
    """Where there is no numpy, results are memoryviews."""
    text = ("import sys; sys.modules['numpy'] = None\nimport commd, array\nwith commd.init() as comm:\n"
            " view = comm.all_reduce(array.array('d', [1, 2, 3])); assert isinstance(view, memoryview)\n"
            " grid = comm.empty((2, 3), 'int32'); grid[1, 2] = 7; assert grid.shape == (2, 3) and grid[1, 2] == 7\n"
            " print(view.tolist())")
    assert daemons.run(text)[1].strip() == "[1.0, 2.0, 3.0]"
