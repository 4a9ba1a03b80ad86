"""Survivors of a lost rank or node go on: shrink, lost, last_seq."""
import signal
import sys
import time

import pytest

from ranks import Daemons, new_job

WAITS = True
NODES = ("a", "b", "c")


@pytest.fixture(scope="module")
def daemons():
    made = Daemons(NODES)
    yield made
    made.close()


# --- What ranks do ---

SHRINKER = """
import sys, time
import numpy
import commd

name, rank, size, victims = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(each) for each in sys.argv[4].split(",")]
comm = commd.init(name, rank, size, timeout=30, op_timeout=20)
data = numpy.zeros(1 << 16)
assert comm.lost == ()
for victim in victims:
    comm.all_reduce(data)
    if rank == victim:
        print("ready", flush=True)
        time.sleep(60)
    try:
        while True:
            comm.all_reduce(data)
    except commd.RankLost as error:
        failed, text = time.monotonic(), str(error)
    lost, last_seq = comm.lost, comm.last_seq
    following = comm.shrink()
    assert following.all_reduce(numpy.ones(3))[0] == following.size == comm.size - 1
    took = time.monotonic() - failed
    told = following.objects.allgather((text, lost, last_seq))
    assert all(each == told[0] for each in told), told
    assert len(lost) == 1 and f"rank {lost[0]}" in text, (lost, text)
    expected = comm.rank - (comm.rank > lost[0])
    assert following.rank == expected, (following.rank, expected)
    try:
        following.shrink(timeout=0.1)
    except commd.TimedOut:
        pass
    else:
        raise AssertionError("a healthy communicator was shrunk")
    comm.destroy()
    comm = following
    print(f"went on after {1e3 * took:.1f} ms", flush=True)
comm.destroy()
"""


def start(daemons, command, size):
    """Starts ranks, two on each node."""
    return [daemons.start([sys.executable, "-u", *(str(part) for part in command(rank))], node=NODES[rank // 2 % 3])
            for rank in range(size)]


def await_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"no line \"{beginning}\": {process.stderr.read()}")


def test_two_ranks_after_each_other(daemons):
    job, victims = new_job(), (4, 1)
    processes = start(daemons, lambda rank: ["-c", SHRINKER, job, rank, 6, ",".join(map(str, victims))], 6)
    for victim in victims:
        await_line(processes[victim], "ready")
        time.sleep(0.2)
        processes[victim].kill()
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=60)
        if rank not in victims:
            assert process.returncode == 0, f"rank {rank}: {output}{errors}"
            assert output.count("went on after") == 2
            print(rank, output)


# --- Two nodes ---

SURVIVOR = """
import sys
import numpy
import commd

comm = commd.init(sys.argv[1], int(sys.argv[2]), 2, timeout=30, op_timeout=20)
try:
    for count in range(1 << 30):
        comm.all_reduce(numpy.zeros(1))
        if count == 0:
            print("ready", flush=True)
except commd.Error as error:
    print(f"failed {type(error).__name__}: {error}", flush=True)
try:
    comm = comm.shrink(timeout=20)
    print(f"alone: {comm.size}", flush=True)
except commd.Error as error:
    print(f"refused {type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.parametrize(("how", "expected"), [("SIGTERM", "alone: 1"), ("SIGKILL", "alone: 1"), ("SIGSTOP", "refused Aborted: ")])
def test_what_proves_that_the_other_node_is_gone(how, expected):
    """Node a, the lower one of two, is gone. Node b goes on if it said goodbye, or if its host says that it is. Silence proves nothing."""
    daemons = Daemons(("a", "b"))
    try:
        job = new_job()
        ranks = [daemons.start([sys.executable, "-u", "-c", SURVIVOR, job, rank], node=node) for rank, node in enumerate("ab")]
        for rank in ranks:
            await_line(rank, "ready")
        daemons.cluster.daemons["a"].send_signal(getattr(signal, how))
        output, errors = ranks[1].communicate(timeout=60)
        print(output, errors)
        lines = output.splitlines()
        assert lines[-1].startswith(expected) and lines[-2].startswith("failed "), output + errors
        assert ("minority" in lines[-1]) == (how == "SIGSTOP"), output
    finally:
        daemons.cluster.daemons["a"].send_signal(signal.SIGCONT)
        daemons.close()
