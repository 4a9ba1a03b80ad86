"""No argument crashes the interpreter. Each wrong argument raises an exception, and the communicator can be used afterwards."""
import array as standard_array
import copy
import ctypes
import gc
import mmap
import os
import pickle
import random
import sys

import numpy

from ranks import finish

HUGE = 1 << 63
WRONG = (TypeError, ValueError, OverflowError, BufferError, MemoryError, AttributeError, NotImplementedError)


class Liar:
    """An object with any array interface, true or not."""

    def __init__(self, **interface):
        self.interface = interface

    @property
    def __array_interface__(self):
        return {"version": 3, "shape": (4,), "typestr": "<f8", "data": (0, False), **self.interface}


class CudaLiar:
    __cuda_array_interface__ = {"version": 3, "shape": (4,), "typestr": "<f8", "data": (1 << 40, False)}


class Raises:
    def __getattribute__(self, name):
        raise RuntimeError("no attribute is safe")


class BadCapsule:
    def __dlpack__(self, **options):
        return "no capsule"


class ForeignCapsule:
    def __dlpack__(self, **options):
        import datetime
        return datetime.datetime_CAPI


def read_only():
    out = numpy.ones(4)
    out.flags.writeable = False
    return out


def unusable():
    """Things that no call accepts as an array."""
    released = memoryview(bytearray(8))
    released.release()
    return [None, "text", 5, 5.5, [1.0, 2.0], {1: 2}, object(), numpy.ones((4, 4))[:, 1], numpy.ones(8)[::2], numpy.ones(4)[::-1],
            numpy.ones((3, 4)).T, numpy.array(["a", "b"]), numpy.array([None, 1]), numpy.array([1], "datetime64[s]"), numpy.ones(4, ">f8"),
            numpy.ones(4, "f8,i4"), numpy.ones(4, numpy.longdouble), numpy.float64, numpy.dtype("f8"), memoryview(b"abcdefgh")[::2], released,
            Liar(data=(0, False)), Liar(data=(8, False)), Liar(data=(HUGE * 2 - 8, False)), Liar(data=(-1, False)), Liar(shape=(HUGE,)),
            Liar(data=("x", False)), Liar(shape="x"), Liar(shape=(-4,)), Liar(typestr="x"), Liar(typestr=5), Liar(strides=(3,)), Liar(data=None),
            CudaLiar(), Raises(), BadCapsule(), ForeignCapsule(), (ctypes.c_void_p * 3)(), sys, print]


def raises(call, *arguments, **options):
    """The call raises a fitting exception, and not one of the library's that would have reached other ranks."""
    try:
        call(*arguments, **options)
    except WRONG + (RuntimeError,) as error:
        return error
    raise AssertionError(f"{call.__name__}{arguments}{options} was accepted")


# --- Functions that the ranks run ---


def wrong_arrays(comm):
    good = numpy.ones(4)
    for bad in unusable():
        raises(comm.all_reduce, bad)
        raises(comm.broadcast, bad)
        raises(comm.send, bad, 0)
        raises(comm.recv, bad, 0)
        raises(comm.reduce_scatter, [bad] * comm.size)
        raises(comm.all_to_all, [bad] * comm.size)
        if bad is not None:
            raises(comm.all_reduce, good, out=bad)
            raises(comm.all_gather, good, out=bad)
        raises(comm.all_gather, good, out=[bad] * comm.size)
    assert comm.all_reduce(good)[0] == comm.size


def wrong_outputs(comm):
    good = numpy.ones(4)
    for out in (read_only(), b"12345678" * 4, numpy.ones(3), numpy.ones(5), numpy.ones(4, "float32"), numpy.ones(0), numpy.float64(1),
                memoryview(b"x" * 32)):
        raises(comm.all_reduce, good, out=out)
        raises(comm.scan, good, out=out)
        raises(comm.all_gather, good, out=out)
        if comm.rank == 0:
            raises(comm.reduce, good, out=out)
            raises(comm.gather, good, out=out)
    raises(comm.all_reduce, read_only(), out=None, op="sum", timeout="x")
    frozen = read_only()
    raises(comm.all_reduce, frozen, out=frozen)
    raises(comm.recv, frozen, 0)
    raises(comm.all_gather, good, out=[])
    raises(comm.all_gather, good, out=[good] * (comm.size + 1))
    if comm.size > 1:
        raises(comm.all_gather, good, out=[numpy.ones(4), *[numpy.ones(4, "f4")] * (comm.size - 1)])
    assert comm.all_reduce(good)[0] == comm.size


def wrong_numbers(comm):
    good, size = numpy.ones(4 * comm.size), comm.size
    for root in (-1, size, HUGE, -HUGE, HUGE * HUGE, "0", None, 1.5, [0]):
        raises(comm.broadcast, good, root)
        raises(comm.reduce, good, root=root)
        raises(comm.gather, good, root)
        raises(comm.scatter, good, good, root)
        raises(comm.send, good, root)
        raises(comm.node_of, root)
        raises(comm.objects.bcast, 1, root)
        if root != -1:
            raises(comm.recv, good, root)
    for tag in (-1, 1 << 31, HUGE, "x", None, 0.5):
        raises(comm.send, good, 0, tag)
        raises(comm.recv, good, 0, tag)
        raises(comm.objects.send, 1, 0, tag)
    for op in ("", "plus", None, 0, b"sum", ["sum"], numpy.add):
        raises(comm.all_reduce, good, op)
        raises(comm.reduce_scatter, good, op)
    for timeout in (0, -1, float("nan"), float("inf"), "1", [], True, -HUGE):
        raises(comm.all_reduce, good, timeout=timeout)
        raises(comm.recv, good, 0, timeout=timeout)
    for counts in ([-1] * size, [HUGE] * size, [1] * (size + 1), [], None, 5, ["a"] * size, [good.size] * (size - 1) + [1 << 61], [1.5] * size,
                   [1 << 63] + [1] * (size - 1)):
        raises(comm.all_gather_v, good, counts)
        raises(comm.reduce_scatter_v, good, counts)
        raises(comm.all_to_all_v, good, counts, [4] * size)
        raises(comm.all_to_all_v, good, [4] * size, counts)
        raises(comm.all_to_all_v, good, [4] * size, [4] * size, numpy.ones(good.size), counts if counts is not None else "x")
        if comm.rank == 0:
            raises(comm.gather_v, good, counts)
            raises(comm.scatter_v, good, counts)
    for color, key in ((-1, 0), (1 << 31, 0), ("x", 0), (1.5, 0), (0, 1 << 31), (0, "x"), (0, None)):
        raises(comm.split, color, key)
    raises(comm.reduce_scatter, numpy.ones(size * 2 + 1) if size > 1 else None)
    raises(comm.all_reduce, good, compression="zip")
    raises(comm.all_reduce, good.astype("f4"), compression="top_k", top_k_permille=1001)
    raises(comm.all_reduce, good, compression="f8", residual=numpy.zeros(3, "f4"))
    raises(comm.all_reduce, good, "premul_sum", factor="x")
    for stream in ("x", [], 1.5, good, 0, 12345, -1, HUGE * 2):  # a rank on the host has no streams
        raises(comm.all_reduce, good, stream=stream)
        raises(comm.send, good, 0, stream=stream)
    assert comm.all_reduce(good)[0] == size


def wrong_memory(comm):
    for shape in (-1, (2, -1), "x", None, 1.5, (1.5,), 1 << 60, HUGE, (HUGE, HUGE), (1 << 40, 1 << 40), [None], {}):
        raises(comm.empty, shape)
        raises(comm.zeros, shape)
    for dtype in ("x", "float31", object, 5, [], "O", "S3,O", numpy.dtype("O")):
        raises(comm.empty, 3, dtype)
    assert comm.empty(3).size == 3


def memory_is_safe(comm):
    """Arrays are freed in any order, from any place, while operations use them."""
    chance = random.Random(comm.rank)
    kept = []
    for step in range(300):
        array = comm.empty(chance.randrange(1, 50000))
        array[:] = step
        kept.append(array[::2] if chance.random() < 0.5 else array)
        if chance.random() < 0.6:
            kept.pop(chance.randrange(len(kept)))
        own = comm.empty(1000)
        own[:] = comm.rank + step
        request = comm.all_reduce(own, out=own, wait=False)
        del own
        if step % 3:
            assert (request.wait() == comm.size * step + sum(range(comm.size))).all()
        del request
    gc.collect()
    comm.barrier()


def resized(comm):
    """While an operation uses an array, the array cannot be resized or closed."""
    growing, numbers, mapped = bytearray(100), standard_array.array("d", [1.0] * 10), mmap.mmap(-1, 4096)
    started = [comm.recv(each, comm.size - 1, tag=6, wait=False) for each in (growing, numbers, mapped)] if comm.rank == 0 else []
    if comm.rank == 0:
        raises(growing.extend, b"x" * 10000)
        raises(numbers.append, 1.0)
        raises(mapped.close)
        comm.objects.send(1, comm.size - 1)
    if comm.rank == comm.size - 1:
        comm.objects.recv(0)
        comm.send(b"a" * 100, 0, tag=6)
        comm.send(numpy.full(10, 2.5), 0, tag=6)
        comm.send(b"c" * 4096, 0, tag=6)
    for request in started:
        request.wait()
    if comm.rank == 0:
        assert growing == b"a" * 100 and list(numbers) == [2.5] * 10 and mapped[:] == b"c" * 4096
        growing.extend(b"x")
        mapped.close()
        raises(comm.send, mapped, 0)
    comm.barrier()


def wrong_use(comm):
    import commd
    request = comm.all_reduce(numpy.ones(3), wait=False)
    for timeout in (-1, "x", float("nan"), [], True):
        raises(request.wait, timeout) if not request.done else None
    request.wait()
    with comm.group() as group:
        inner = comm.all_reduce(numpy.ones(3))
        try:
            inner.wait(1)
        except commd.Error:
            pass
        else:
            raise AssertionError("a request was waited for in its group")
        try:
            comm.objects.bcast(1)
        except (commd.Error, AssertionError, AttributeError, TypeError, ValueError, EOFError):
            pass
        except Exception as error:
            assert "pickle" in type(error).__name__.lower(), error
    assert inner.wait()[0] == comm.size and len(group.requests) >= 1
    for held in (comm, request, group, comm._client):
        for copying in (copy.copy, copy.deepcopy, pickle.dumps):
            raises(copying, held)
    gc.collect()
    assert comm.all_reduce(numpy.ones(3))[0] == comm.size
    raises(commd.Communicator)
    raises(commd.Buffer, 0, 1, "x")
    raises(commd.init, "a b", rank=0, size=1)
    raises(commd.init, "x", rank=0)
    raises(commd.init, rank=0, size=1)
    for rank, size in ((1, 1), (-1, 1), (0, 0), (0, -1), (0, 1 << 32), ("0", 1), (0, HUGE)):
        raises(commd.init, "x", rank=rank, size=size)
    for device in ("gpu", "cuda:x", -5, 1.5, [], True):
        raises(commd.init, "x", device=device)
    raises(commd.init, "x" * 200, rank=0, size=1)
    raises(commd.init, 5, rank=0, size=1)
    raises(commd.init, "x", rank=0, size=1, algorithms="nonsense")
    raises(commd.init, "x", rank=0, size=1, timeout=-1)
    raises(commd.wait_all, 5)
    assert comm.all_reduce(numpy.ones(3))[0] == comm.size


FUNCTIONS = [wrong_arrays, wrong_outputs, wrong_numbers, wrong_memory, memory_is_safe, resized, wrong_use]


def test_two_ranks(daemons):
    for function in FUNCTIONS:
        daemons.run_ranks(function, 2)


def test_one_rank(daemons):
    for function in FUNCTIONS:
        daemons.run_ranks(function, 1)


def test_random_calls(daemons):
    """Any method with any arguments gives a result or raises an exception. It never ends the process."""
    text = f"""
import random, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import numpy, commd, test_hostile
chance = random.Random(int(sys.argv[1]))
comm = commd.init("random-" + sys.argv[1], rank=0, size=1, op_timeout=0.05)
values = test_hostile.unusable() + [0, 1, -1, "sum", "max", True, False, 1 << 63, numpy.ones(4), numpy.ones(4), comm.empty(4), bytearray(32),
                                    [numpy.ones(4)], [1], [4], (), 0.01, numpy.zeros((2, 0))]
names = ["all_reduce", "reduce", "broadcast", "scan", "exclusive_scan", "reduce_scatter", "reduce_scatter_v", "all_gather", "all_gather_v",
         "gather", "gather_v", "scatter", "scatter_v", "all_to_all", "all_to_all_v", "barrier", "send", "recv", "send_recv", "empty", "zeros",
         "split", "node_of"]
accepted = 0
for _ in range(4000):
    call = getattr(comm, chance.choice(names))
    arguments = [chance.choice(values) for _ in range(chance.randrange(5))]
    try:
        made = call(*arguments)
        accepted += 1
        if isinstance(made, commd.Communicator):
            made.destroy()
    except Exception:
        pass
with commd.init("after-" + sys.argv[1], rank=0, size=1) as after:
    assert after.all_reduce(numpy.ones(3))[0] == 1
print(accepted)
"""
    started = [daemons.start([sys.executable, "-B", "-c", text, str(seed)]) for seed in range(4)]
    for process in started:
        assert int(finish(process)[1]) > 0


def test_exit_while_threads_wait(daemons):
    """The process may end while its threads are in the library."""
    text = ("import threading, numpy, commd\ncomm = commd.init()\n"
            "for tag in range(4): threading.Thread(target=lambda: comm.recv(numpy.zeros(3), 0), daemon=True).start()\n"
            "pending = [comm.recv(comm.empty(10), 0, wait=False) for _ in range(10)]\nprint('end')")
    assert daemons.run(text)[1].strip() == "end"
