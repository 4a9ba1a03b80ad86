"""Requests that are awaited."""
import asyncio
import os
import signal
import sys
import time

import numpy
import pytest

from ranks import finish

POISON = 77


def data(rank, count=1000):
    return numpy.arange(count) % 11 + 1.0 + rank * 3


# --- Functions that the ranks run ---


def awaited(comm):
    async def main():
        total = await comm.all_reduce(data(comm.rank), wait=False)
        assert numpy.array_equal(total, sum(data(rank) for rank in range(comm.size)))
        out = numpy.full(10, POISON, float)
        following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        receive = comm.recv(out, before, tag=3, wait=False)
        assert not receive.done or comm.size == 1
        await comm.send(data(comm.rank, 7), following, tag=3, wait=False)
        source, count = await receive
        assert (source, count) == (before, 7) and numpy.array_equal(out[:7], data(before, 7)) and (out[7:] == POISON).all()
        await comm.barrier(wait=False)

    for _ in range(3):  # a loop of its own each time
        asyncio.run(main())


def many_at_once(comm):
    async def one(number):
        total = await comm.all_reduce(data(comm.rank + number, 50 + number), wait=False)
        assert numpy.array_equal(total, sum(data(rank + number, 50 + number) for rank in range(comm.size)))
        return number

    async def main():
        # Tasks start in this order on all ranks, so their collectives are in one order, too.
        assert await asyncio.gather(*[one(number) for number in range(300)]) == list(range(300))
        return len(comm._pending)

    assert asyncio.run(main()) == 0


def other_work_goes_on(comm):
    async def main():
        ticks = 0
        if comm.rank == 0:
            out = numpy.full(5, POISON, float)
            request = comm.recv(out, comm.size - 1, wait=False)
            while not request.done:
                await asyncio.sleep(0.001)
                ticks += 1
                if ticks == 20:
                    await comm.send(numpy.ones(1), comm.size - 1, tag=1, wait=False)
            await request
            assert ticks >= 20 and numpy.array_equal(out, data(comm.size - 1, 5))
        if comm.rank == comm.size - 1:
            # The message is sent only after rank 0 has counted.
            await comm.recv(numpy.zeros(1), 0, tag=1, wait=False)
            await comm.send(data(comm.rank, 5), 0, wait=False)

    asyncio.run(main())


def grouped(comm):
    async def main():
        arrays = [data(comm.rank + number) for number in range(4)]
        async with comm.group() as group:
            for each in arrays:
                comm.all_reduce(each, out=each, wait=False)
        assert all(request.done for request in group.requests)
        for number, each in enumerate(arrays):
            assert numpy.array_equal(each, sum(data(rank + number) for rank in range(comm.size)))

    asyncio.run(main())


def cancelled(comm):
    """If a task is cancelled, its operation goes on, and the array stays alive."""
    async def main():
        request = comm.all_reduce(data(comm.rank), wait=False)
        if comm.rank == 0:
            async def wait():
                await request
            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
        assert numpy.array_equal(await request, sum(data(rank) for rank in range(comm.size)))

    asyncio.run(main())


def mixed(comm):
    """Requests may be waited for in any way, wherever they were started."""
    outside = comm.all_reduce(data(comm.rank), wait=False)

    async def main():
        inside = comm.all_reduce(data(comm.rank + 1), wait=False)
        assert numpy.array_equal(inside.wait(10), sum(data(rank + 1) for rank in range(comm.size)))
        assert numpy.array_equal(await outside, sum(data(rank) for rank in range(comm.size)))
        later = comm.all_reduce(data(comm.rank + 2), wait=False)
        in_thread = await asyncio.get_running_loop().run_in_executor(None, later.wait)
        assert in_thread is later.output
        return comm.all_reduce(data(comm.rank + 3), wait=False)

    left = asyncio.run(main())
    assert numpy.array_equal(left.wait(10), sum(data(rank + 3) for rank in range(comm.size)))


def failing(comm):
    import commd

    async def main():
        try:
            await comm.all_reduce(data(comm.rank, 10 + comm.rank), wait=False)
        except commd.Mismatch as error:
            assert error.operation == "all_reduce" and error.result == commd.Result.MISMATCH and "rank" in str(error)
        else:
            raise AssertionError("a mismatch was not noticed")
        assert (await comm.all_reduce(numpy.ones(3), wait=False))[0] == comm.size
        if comm.rank == 0:
            try:
                await comm.recv(numpy.zeros(3), comm.size - 1, tag=8, wait=False, timeout=0.2)
            except commd.TimedOut as error:
                assert error.operation == "recv"
            else:
                raise AssertionError("nothing was sent")
        await comm.barrier(wait=False)

    asyncio.run(main())


FUNCTIONS = [awaited, many_at_once, other_work_goes_on, grouped, cancelled, mixed, failing]


@pytest.mark.parametrize("size", (2, 3))
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_node(daemons, function, size):
    daemons.run_ranks(function, size)


def test_two_nodes(two_nodes):
    for function in FUNCTIONS:
        two_nodes.run_ranks(function, 2)


def test_no_thread_waits(daemons):
    """A request that is awaited needs no thread of Python."""
    text = ("import asyncio, threading, numpy, commd\n"
            "async def main():\n"
            "    before = threading.active_count()\n"
            "    request = comm.recv(numpy.zeros(2), 0, wait=False)\n"
            "    task = asyncio.ensure_future(wait(request)); await asyncio.sleep(0.05)\n"
            "    assert threading.active_count() == before\n"
            "    await comm.send(numpy.ones(2), 0, wait=False); assert (await task).count == 2\n"
            "async def wait(request): return await request\n"
            "with commd.init() as comm: asyncio.run(main())")
    daemons.run(text)


def test_loops_leave_nothing(daemons):
    """Each event loop has a queue, which is closed with the loop."""
    text = ("import asyncio, gc, os, numpy, commd\n"
            "async def main(): await comm.all_reduce(numpy.ones(2), wait=False)\n"
            "def descriptors(): gc.collect(); return len(os.listdir('/proc/self/fd'))\n"
            "with commd.init() as comm:\n"
            "    asyncio.run(main()); before = descriptors()\n"
            "    for _ in range(50): asyncio.run(main())\n"
            "    print(descriptors() - before)")
    assert daemons.run(text)[1].strip() == "0"


def test_daemon_lost_while_awaiting():
    from ranks import Daemons
    daemons = Daemons()
    try:
        text = ("import asyncio, numpy, commd, sys\n"
                "async def main():\n"
                "    requests = [comm.recv(numpy.zeros(2), 0, wait=False) for _ in range(3)]\n"
                "    print('waiting', flush=True)\n"
                "    done = await asyncio.gather(*[wait(request) for request in requests])\n"
                "    print([type(each).__name__ for each in done])\n"
                "async def wait(request):\n"
                "    try: await request\n"
                "    except commd.Error as error: return error\n"
                "comm = commd.init(); asyncio.run(main())")
        process = daemons.start([sys.executable, "-B", "-c", text])
        assert process.stdout.readline().strip() == "waiting"
        daemons.cluster.daemons["solo"].send_signal(signal.SIGKILL)
        assert finish(process)[1].strip() == "['DaemonLost', 'DaemonLost', 'DaemonLost']"
    finally:
        daemons.close()


def test_interrupt_while_awaiting(daemons):
    """Ctrl-C ends asyncio.run at once, though an operation is pending."""
    text = ("import asyncio, numpy, commd\n"
            "async def main():\n"
            "    request = comm.recv(numpy.zeros(2), 0, wait=False)\n"
            "    print('waiting', flush=True)\n"
            "    await request\n"
            "comm = commd.init()\n"
            "try: asyncio.run(main())\n"
            "except KeyboardInterrupt: print('interrupted', len(comm._pending)); comm.abort()")
    process = daemons.start([sys.executable, "-B", "-c", text])
    assert process.stdout.readline().strip() == "waiting"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    assert finish(process)[1].strip() == "interrupted 1"
    assert time.monotonic() - began < 5
