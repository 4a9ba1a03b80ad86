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
        part = comm.split(0)
        assert part.on_gpu and numpy.array_equal(part.all_reduce(data(comm.rank, 1000)), sum(ranks))
        part.destroy()
        array.free()


def test_collectives(gpus):
    gpus.run_ranks(collectives, 2)
