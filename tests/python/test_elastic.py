"""Jobs whose ranks come and go: join, grow, waiting, agree, and the elastic example."""
import os
import pathlib
import random
import re
import signal
import sys
import time

import pytest

from ranks import BUILD, Daemons, finish, new_job

WAITS = True
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "client/python/examples/elastic.py"
NODES = ("a", "b", "c")


@pytest.fixture(scope="module")
def daemons():
    made = Daemons(NODES)
    yield made
    made.close()


def start(daemons, node, text, *arguments):
    return daemons.start([sys.executable, "-u", "-c", "import sys, time\nimport numpy\nimport commd\n" + text, *map(str, arguments)], node=node)


def await_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"no line \"{beginning}\": {process.stderr.read()}")


JOINS = """
comm = commd.join(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), timeout=30, last_call=1)
total = comm.all_reduce(numpy.array([1.0, comm.rank]))
assert total[0] == comm.size and total[1] == comm.size * (comm.size - 1) / 2, total
print("rank", comm.rank, comm.size, comm.waiting, flush=True)
comm.destroy()
"""


def test_as_many_as_come(daemons):
    """Ranks of a node follow each other."""
    job = new_job()
    processes = [start(daemons, node, JOINS, job, 2, 40) for node in "cabca"]
    said = [finish(process)[1].split() for process in processes]
    assert [int(each[1]) for each in said] in ([3, 0, 2, 4, 1], [4, 0, 2, 3, 1], [3, 1, 2, 4, 0], [4, 1, 2, 3, 0]), said
    assert {each[2] for each in said} == {"5"}, said


REOPENS = """
comm = commd.init(sys.argv[1], rank=0, size=1)
kept, other = commd.zeros(100000), commd.empty(100000)
kept[:] = numpy.arange(100000)
commd.reopen()
print("CONNECTED", comm.all_reduce(kept[:3]).sum(), flush=True)
try:
    while True:
        comm.barrier()
except commd.DaemonLost:
    pass
try:
    commd.reopen()
except commd.Error as error:
    print("FIRST", error, flush=True)
comm.destroy()
commd.reopen(daemon_wait=30)
assert commd.is_shared(kept) and commd.is_shared(other)
comm = commd.init(sys.argv[1], rank=0, size=1)
comm.all_reduce(kept, out=other)
assert (other == numpy.arange(100000)).all()
print("AGAIN", commd.is_shared(commd.empty(1000)), flush=True)
"""


def test_arrays_outlive_the_daemon(daemons):
    process = start(daemons, "b", REOPENS, new_job())
    assert await_line(process, "CONNECTED").split()[1] == "3.0"
    daemons.cluster.daemons["b"].kill()
    daemons.cluster.daemons["b"].wait()
    assert "communicators" in await_line(process, "FIRST")
    daemons.cluster.start("b")
    assert await_line(process, "AGAIN").split()[1] == "True"
    assert process.wait(timeout=30) == 0, process.stderr.read()
    daemons.cluster.wait_ready()


def test_the_most(daemons):
    """Two generations of three: the second one begins when the first has left."""
    job = new_job()
    processes = [start(daemons, node, JOINS, job, 3, 3) for node in "abcabc"]
    said = sorted(tuple(finish(process)[1].split()[1:3]) for process in processes)
    assert said == sorted([(str(rank), "3") for rank in range(3)] * 2), said


def test_too_few(daemons):
    code, _, errors = finish(start(daemons, "a", "commd.join(sys.argv[1], 2, 3, timeout=0.5)", new_job()), check=False)
    assert code == 1 and "commd.errors.TimedOut" in errors and "1 processes wait: at least 2 are needed" in errors, errors


@pytest.mark.parametrize("arguments", ["'x', 0", "'x', 3, 2", "'with space'", "'n' * 81", "'x', 1, 65537"])
def test_wrong_arguments(daemons, arguments):
    program = f"""
try:
    commd.join({arguments})
except (ValueError, commd.InvalidArgument) as error:
    print("refused", error)
"""
    assert finish(start(daemons, "a", program))[1].startswith("refused")


def test_growing_what_did_not_join(daemons):
    program = """
comm = commd.init("alone-" + sys.argv[1], 0, 1)
for call in (comm.grow, lambda: comm.waiting):
    try:
        call()
    except commd.InvalidArgument as error:
        print("refused", error)
assert comm.agree(6) == 6
import ctypes
library, flags, made = comm._library, ctypes.c_uint64(1), ctypes.c_void_p()
library.comm_group_begin()  # of this thread
for result in (library.comm_agree(comm._handle, ctypes.byref(flags), 0),
               library.comm_join(comm._client.use(), b"x", 1, 1, None, ctypes.byref(made))):
    assert result != 0 and b"a group is open" in library.comm_last_error()
    print("no group")
library.comm_group_end()
assert comm.agree(5) == 5
"""
    said = finish(start(daemons, "a", program, new_job()))[1]
    assert said.count("comm_join has not made it") == 2 and said.count("no group") == 2, said


def test_cancel(daemons):
    program = """
import threading
ends = []

def wait(call, *arguments):
    try:
        call(*arguments)
    except commd.Aborted as error:
        ends.append(str(error))

def start(*arguments):
    thread = threading.Thread(target=wait, args=arguments)
    thread.start()
    return thread

name = sys.argv[1]
comm = commd.init(name + "-there", 0, 1)
first, second, third = start(commd.join, name, 2), start(commd.init, name + "-i", 0, 2), start(commd.init, name + "-k", 0, 2)
time.sleep(0.3)
commd.cancel(name)
first.join(5)
assert len(ends) == 1 and "cancelled" in ends[0], ends
commd.cancel(name + "-k")
third.join(5)
assert len(ends) == 2, ends
commd.cancel()
second.join(5)
assert len(ends) == 3, ends
commd.cancel()
assert comm.all_reduce(numpy.ones(1))[0] == 1
print("ended")
"""
    assert finish(start(daemons, "a", program, new_job()))[1] == "ended\n"


GROWS = """
comm = commd.join(sys.argv[1], 2, 2 if sys.argv[2] == "first" else 8, timeout=60)
print("ready", comm.rank, comm.size, flush=True)
first = comm.size == 2
while first and comm.waiting < 2:
    time.sleep(0.01)
if first:
    comm.barrier()
    if comm.rank == 1:  # of this rank alone: neither waited for nor reported by grow
        pending = comm.recv(numpy.ones(1), source=0, tag=9, wait=False, timeout=20)
    following = comm.grow(8)
    assert comm.rank == 0 or not pending.test()
    assert following is not None and following.rank == comm.rank and comm.agree(3) == 3
    assert following.grow() is None
    comm.destroy()
    comm = following
else:
    assert comm.grow() is None
total = comm.all_reduce(numpy.array([comm.rank + 1.0]))
print("sum", comm.size, total[0], comm.objects.allgather(sys.argv[2]), flush=True)
"""


def test_growing(daemons):
    """The ranks keep their numbers, and the newcomers come last. A process that gave up waiting does not count."""
    job = new_job()
    first = [start(daemons, node, GROWS, job, "first") for node in "ab"]
    for process in first:
        await_line(process, "ready")
    gone = start(daemons, "c", GROWS, job, "gone")
    time.sleep(0.5)
    gone.kill()
    gone.wait()
    late = [start(daemons, node, GROWS, job, f"late-{node}") for node in "ca"]
    for process in first + late:
        said = finish(process)[1].splitlines()[-1]
        assert said == "sum 4 10.0 ['first', 'first', 'late-a', 'late-c']", said


GROWS_TWICE = """
import os
comm = commd.join(sys.argv[1], 2, 3, timeout=60, last_call=1)
print("ready", flush=True)
if comm.size == 2:
    while comm.waiting == 0:
        time.sleep(0.01)
    print("waited for", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    assert comm.grow(timeout=1) is None
    assert comm.all_reduce(numpy.ones(1))[0] == 2
    print("refused", flush=True)
    while (following := comm.grow(timeout=10)) is None:
        time.sleep(0.1)
    comm.destroy()
    comm = following
print("sum", comm.all_reduce(numpy.ones(1))[0], flush=True)
"""


def test_a_newcomer_that_hangs(daemons, tmp_path):
    """The ranks go on without it, and take it in once it runs again."""
    job, go = new_job(), tmp_path / "go"
    ranks = [start(daemons, node, GROWS_TWICE, job, go) for node in "ab"]
    for process in ranks:
        await_line(process, "ready")
    late = start(daemons, "c", GROWS_TWICE, job, go)
    for process in ranks:
        await_line(process, "waited for")
    late.send_signal(signal.SIGSTOP)
    go.touch()
    for process in ranks:
        await_line(process, "refused")
    late.send_signal(signal.SIGCONT)
    assert [finish(process)[1].splitlines()[-1] for process in ranks + [late]] == ["sum 3.0"] * 3


POLLS = """
import ctypes, select
comm = commd.join(sys.argv[1], 1, 8, timeout=60, last_call=0.05)
library, queue, count = comm._library, ctypes.c_void_p(), ctypes.c_size_t()
assert library.comm_queue_create(comm._client.use(), ctypes.byref(queue)) == 0
room, ready = ctypes.create_string_buffer(4096), select.poll()
ready.register(library.comm_queue_fd(queue), select.POLLIN)
print("ready", flush=True)
while comm.waiting == 0:
    library.comm_queue_next(queue, room, 1, ctypes.byref(count), 0)
    if comm.waiting == 0:
        assert ready.poll(20000), "nothing came"
print("waiting", comm.waiting, flush=True)
comm = comm.grow()
print("size", comm.size, flush=True)
comm.barrier()
"""


def test_a_descriptor_says_that_somebody_waits(daemons):
    job = new_job()
    process = start(daemons, "a", POLLS, job)
    await_line(process, "ready")
    time.sleep(0.3)
    late = start(daemons, "b", "comm = commd.join(sys.argv[1], 1, 8, timeout=60)\ncomm.barrier()", job)
    assert finish(process)[1] == "waiting 1\nsize 2\n"
    finish(late)


LOSES = """
import ctypes, select
comm = commd.init(sys.argv[1], int(sys.argv[2]), 3)
comm.barrier()
print("ready", flush=True)
if comm.rank == 2:
    time.sleep(60)
library, queue, count = comm._library, ctypes.c_void_p(), ctypes.c_size_t()
assert library.comm_queue_create(comm._client.use(), ctypes.byref(queue)) == 0
room, ready = ctypes.create_string_buffer(4096), select.poll()
ready.register(library.comm_queue_fd(queue), select.POLLIN)
while comm.lost == ():
    library.comm_queue_next(queue, room, 1, ctypes.byref(count), 0)
    if comm.lost == ():
        assert ready.poll(20000), "nothing came"
print("lost", comm.lost, comm.shrink().size, flush=True)
"""


def test_a_descriptor_says_that_a_rank_is_lost(daemons):
    """Also if nothing is under way: a program need not start an operation to find out."""
    job = new_job()
    processes = [start(daemons, node, LOSES, job, rank) for rank, node in enumerate("aab")]
    for process in processes:
        await_line(process, "ready")
    processes[2].kill()
    for process in processes[:2]:
        assert finish(process)[1] == "lost (2,) 2\n"


SHRINKS_LATE = """
import os
comm = commd.init(sys.argv[1], int(sys.argv[2]), 2, timeout=30)
print("ready", flush=True)
try:
    comm.recv(numpy.zeros(1), 1 - comm.rank)
except commd.RankLost:
    print("lost", comm.lost, flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
try:
    comm.shrink(timeout=30)
except commd.Error as error:
    print(type(error).__name__, comm.lost)
"""


def test_shrinking_after_the_daemon_is_lost(daemons, tmp_path):
    """The reason is the daemon, not the rank that was lost before. Who was lost is still known."""
    job, go = new_job(), tmp_path / "go"
    processes = [start(daemons, node, SHRINKS_LATE, job, rank, go) for rank, node in enumerate("ca")]
    for process in processes:
        await_line(process, "ready")
    processes[1].kill()
    await_line(processes[0], "lost (1,)")
    daemons.cluster.daemons["c"].kill()
    daemons.cluster.daemons["c"].wait()
    go.touch()
    assert finish(processes[0])[1] == "DaemonLost (1,)\n"
    daemons.cluster.start("c")
    daemons.cluster.wait_ready()


DRAINS = """
import ctypes, select
comm = commd.init(sys.argv[1], 0, 1)
library, queue, count = comm._library, ctypes.c_void_p(), ctypes.c_size_t()
assert library.comm_queue_create(comm._client.use(), ctypes.byref(queue)) == 0
room, ready = ctypes.create_string_buffer(4096), select.poll()
ready.register(library.comm_queue_fd(queue), select.POLLIN)

def await_change(draining):
    while (comm.draining is not None) != draining:
        library.comm_queue_next(queue, room, 1, ctypes.byref(count), 0)
        if (comm.draining is not None) != draining:
            assert ready.poll(20000), "nothing came"

print("now", comm.draining, flush=True)
await_change(True)
reason, left = comm.draining
assert reason == "new kernel" and 0 < left <= 500, (reason, left)
print("drains", flush=True)
await_change(False)
print("goes on", comm.all_reduce(numpy.ones(1))[0], flush=True)
"""


def test_ranks_are_told_that_their_node_drains(daemons):
    def control(*command):
        finish(daemons.start([BUILD / "commctl", "--socket", f"{daemons.cluster.socket('a')}.admin", *command], node="a"))

    process = start(daemons, "a", DRAINS, new_job())
    assert await_line(process, "now") == "now None\n"
    control("drain", "--reason", "new kernel", "--timeout", "500")
    await_line(process, "drains")
    after = start(daemons, "a", "comm = commd._library\nfrom commd import client\nimport ctypes\nfound = comm.Draining(ctypes.sizeof(comm.Draining))\n"
                  "owner = client.shared_client(None, None)\nowner.calls.comm_draining(owner.use(), ctypes.byref(found))\nprint(found.draining)")
    assert finish(after)[1] == "1\n"  # a client that comes later is told at once
    control("undrain")
    assert finish(process)[1] == "goes on 1.0\n"


AGREES = """
import random
comm = commd.join(sys.argv[1], 5, 5, timeout=30)
victim, chance = comm.rank == int(sys.argv[2]), random.Random(int(sys.argv[3]))
mine = 0b111111 & ~(1 << comm.rank)
time.sleep(chance.random() * 0.002)
if victim:
    import os, signal, threading
    kind = chance.randrange(3)
    threading.Timer(chance.random() * 0.003, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if kind == 0:
        time.sleep(10)
agreed = comm.agree(mine)
again = comm.agree(1 << 63 | comm.rank + 8)
try:
    while True:
        comm.all_reduce(numpy.ones(1))
except commd.RankLost:
    following = comm.shrink()
print("agreed", agreed, again, following.all_reduce(numpy.ones(1))[0], flush=True)
"""


def test_survivors_agree(daemons):
    """A rank is killed at any moment of an agreement: all survivors get the same."""
    seed = int(os.environ.get("COMMD_SEED", random.randrange(1 << 32)))
    chance = random.Random(seed)
    for _ in range(4):
        victim = chance.randrange(5)
        processes = [start(daemons, NODES[i % 3], AGREES, job := new_job() if i == 0 else job, victim, chance.randrange(1 << 30))
                     for i in range(5)]
        said = [finish(process, check=False) for process in processes]
        ends = [output.split("agreed ")[1].split() for code, output, _ in said if code == 0]
        assert len(ends) == 4, f"COMMD_SEED={seed}: {said}"
        assert all(each == ends[0] for each in ends), f"COMMD_SEED={seed}: {said}"
        without = sum(1 << bit for bit in range(6) if bit >= 5 or bit == victim)
        assert int(ends[0][0]) in (without & ~(1 << victim), without), f"COMMD_SEED={seed}: {ends[0]}"
        assert ends[0][2] == "4.0", f"COMMD_SEED={seed}: {ends[0]}"


def test_a_rank_that_does_not_agree(daemons):
    program = """
comm = commd.join(sys.argv[1], 2, 2, timeout=30)
comm.barrier()
if comm.rank == 1:
    try:
        comm.recv(numpy.zeros(1), 0)  # until the other rank has given up
    except commd.Aborted:
        pass
try:
    comm.agree(1, timeout=0.5)
    print("agreed")
except (commd.TimedOut, commd.Aborted) as error:
    print("refused", error)
"""
    job = new_job()
    ends = [finish(process)[1] for process in [start(daemons, node, program, job) for node in "ab"]]
    assert ends[0].startswith("refused"), ends  # the other one may agree with itself, once this one has left


def losses(output):
    return [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+) ranks \d+ loss ([0-9.]+)$", output, re.MULTILINE)]


def test_the_elastic_example(daemons):
    """Ranks, a daemon and a whole node are killed at random, and two processes come later. The loss goes on falling."""
    seed = int(os.environ.get("COMMD_SEED", random.randrange(1 << 32)))
    chance = random.Random(seed)
    job, steps = new_job(), 260

    def run(node):
        return daemons.start([sys.executable, "-u", EXAMPLE, job, steps, 0.02, 2], node=node)

    ranks = {name: run(name[0]) for name in ("a0", "a1", "b0", "b1", "c0", "c1")}
    await_line(ranks["a0"], "step 3 ")
    time.sleep(chance.uniform(0.0, 0.4))
    killed = [chance.choice(("a1", "b0", "b1"))]
    ranks[killed[0]].kill()
    time.sleep(chance.uniform(0.0, 0.4))
    daemons.cluster.daemons["c"].send_signal(signal.SIGKILL)  # its two processes come back
    daemons.cluster.daemons["c"].wait()
    ranks.update({name: run(name[0]) for name in ("a2", "b2")})
    time.sleep(chance.uniform(0.3, 0.6))
    daemons.cluster.start("c")
    daemons.cluster.wait_ready()
    time.sleep(chance.uniform(0.5, 1.0))
    killed += [name for name in ranks if name[0] == "b" and name not in killed]
    for name in killed[1:]:
        ranks[name].kill()
    daemons.cluster.daemons["b"].send_signal(signal.SIGKILL)
    daemons.cluster.daemons["b"].wait()
    said = {}
    for name, process in ranks.items():
        output, errors = process.communicate(timeout=90)
        if name not in killed:
            assert process.returncode == 0, f"COMMD_SEED={seed}, {name}: {output[-1000:]}{errors}"
            said[name] = output
    daemons.cluster.start("b")
    daemons.cluster.wait_ready()
    curve = losses(said["a0"])
    assert curve[-1][0] == steps, f"COMMD_SEED={seed}: {said['a0'][-500:]}"
    assert all(after[1] <= before[1] * 1.01 + 1e-6 for before, after in zip(curve, curve[1:])), f"COMMD_SEED={seed}: {curve}"
    sizes = [int(size) for size in re.findall(r"ranks (\d+) ", said["a0"])]
    assert any(after > before for before, after in zip(sizes, sizes[1:])), f"COMMD_SEED={seed}: nobody was taken in: {sizes}"
    for name, output in said.items():
        assert losses(output)[-1] == curve[-1], f"COMMD_SEED={seed}, {name}: {output[-500:]}"
