"""Arrays on GPUs, with doubles of the CUDA driver and its GPUs."""
import numpy
import pytest

from ranks import BUILD, Daemons

POISON = 77


@pytest.fixture(scope="module")
def gpus():
    """A daemon of a node with two doubles of GPUs."""
    if not (BUILD / "tests/libcuda_double.so").exists():
        pytest.skip("the double of the CUDA driver is not built (make tests)")
    made = Daemons(gpus=2)
    yield made
    made.close()


class OnGpu:
    """An array with __cuda_array_interface__ in memory that commd has allocated on the GPU."""

    def __init__(self, comm, count):
        self.comm, self.size = comm, count
        self.pointer = comm._client.allocate(8 * count, comm.local_rank)

    def free(self):
        self.comm._client.free(self.pointer, self.comm.local_rank)

    @property
    def __cuda_array_interface__(self):
        return {"version": 3, "shape": (self.size,), "typestr": "<f8", "data": (self.pointer, False), "stream": 1}


def data(rank, count):
    return numpy.arange(count) % 11 + 1.0 + rank * 3


def contents(comm, array):
    """Copies an array on the GPU to the host."""
    out = numpy.full(array.size, POISON, float)
    comm.send_recv(array, comm.rank, out, comm.rank)
    return out


def groups_that_run_as_one(comm, ranks):
    """Buffers on GPUs alone, and with some on the host."""
    for on_host in (False, True):
        source, block = OnGpu(comm, 1000), OnGpu(comm, 300)
        comm.scan(ranks[comm.rank] if comm.rank == 0 else ranks[comm.rank] - ranks[comm.rank - 1], out=source)
        whole = [OnGpu(comm, 1000 * comm.size) for _ in range(2)]
        host = [numpy.full(600 * comm.size, POISON, float) for _ in range(2)]
        with comm.group():
            for each in whole:
                comm.all_gather(source, out=each)
            if on_host:
                comm.all_gather(ranks[comm.rank][:600], out=host[0])
        with comm.group():
            comm.reduce_scatter(whole[0], out=source)
            if on_host:
                comm.reduce_scatter(host[0], out=host[1][:600])
            comm.reduce_scatter(numpy.tile(ranks[comm.rank][:300], comm.size), out=block)
        joined = numpy.concatenate(ranks)
        for each in whole:
            assert numpy.array_equal(contents(comm, each), joined)
        assert numpy.array_equal(contents(comm, source), ranks[comm.rank] * comm.size)
        assert numpy.array_equal(contents(comm, block), sum(ranks)[:300])
        if on_host:
            assert numpy.array_equal(host[0], numpy.concatenate([each[:600] for each in ranks]))
            assert numpy.array_equal(host[1][:600], ranks[comm.rank][:600] * comm.size)
        for each in (source, block, *whole):
            each.free()


def collectives(host):
    import commd
    with commd.init("gpus", device="cuda", timeout=20, op_timeout=20) as comm:
        assert comm.on_gpu and not host.on_gpu
        ranks = [data(rank, 1000) for rank in range(comm.size)]
        array = OnGpu(comm, 1000)
        comm.all_reduce(data(comm.rank, 1000), out=array)
        assert numpy.array_equal(contents(comm, array), sum(ranks))
        comm.all_reduce(array, out=array)
        assert numpy.array_equal(contents(comm, array), sum(ranks) * comm.size)
        with comm.group():
            comm.broadcast(array)
            comm.all_reduce(array, "max", out=array)
        assert numpy.array_equal(contents(comm, array), sum(ranks) * comm.size)
        for call in (lambda: comm.all_reduce(array), lambda: host.all_reduce(array, out=array), lambda: host.broadcast(array)):
            try:
                call()
            except (TypeError, ValueError):
                continue
            raise AssertionError("a GPU's array was accepted")
        groups_that_run_as_one(comm, ranks)
        part = comm.split(0)
        assert part.on_gpu and numpy.array_equal(part.all_reduce(data(comm.rank, 1000)), sum(ranks))
        part.destroy()
        array.free()


def test_collectives(gpus):
    gpus.run_ranks(collectives, 2)
