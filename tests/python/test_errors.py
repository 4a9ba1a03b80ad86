"""Each failure raises an exception of the right class, with data. Signals end a wait at once. Calls in a child of fork are refused."""
import os
import pickle
import signal
import sys
import threading
import time

import numpy
import pytest

from ranks import Daemons, finish

AT_ONCE_S = 2.0  # a wait that did not end by itself would take 20 s


def expect(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


# --- Functions that the ranks run ---


def mismatch(comm):
    import commd
    for name, call in (("split", lambda: comm.split(0)), ("agree", lambda: comm.agree(1))):  # what they call inside is not all that the text says
        error = expect(commd.Mismatch, call if comm.rank == 0 else comm.barrier)
        assert str(error).startswith(f"comm_{name}: op " if comm.rank == 0 else "op "), error
    error = expect(commd.Mismatch, comm.all_reduce, numpy.ones(3 + comm.rank))
    assert isinstance(error, ValueError) and error.result == commd.Result.MISMATCH and error.operation == "all_reduce"
    assert len(error.ranks) >= 2 and set(error.ranks) <= set(range(comm.size)), error.ranks
    assert comm.all_reduce(numpy.ones(3))[0] == comm.size  # the communicator goes on


def timed_out(comm):
    import commd
    if comm.rank == 0:
        began = time.monotonic()
        error = expect(commd.TimedOut, comm.all_reduce, numpy.ones(3), timeout=0.3)
        assert 0.2 < time.monotonic() - began < AT_ONCE_S
        assert isinstance(error, TimeoutError) and error.operation == "all_reduce" and error.ranks == (1,), error.ranks
        assert error.seq > 0
        comm.objects.send("go on", 1)
        request = comm.recv(numpy.zeros(3), 1, wait=False)
        late = expect(commd.TimedOut, request.wait, 0.05)
        assert "goes on" in str(late) and not request.done
        comm.objects.send("send", 1)
        assert request.wait().count == 2
    else:
        assert comm.objects.recv(0) == "go on"
        expect(commd.TimedOut, comm.all_reduce, numpy.ones(3))
        assert comm.objects.recv(0) == "send"
        comm.send(numpy.ones(2), 0)
    comm.barrier()


def aborted(comm):
    import commd
    if comm.rank == 0:
        assert comm.objects.recv(1) == "I wait"
        comm.abort("the data are wrong")
        expect(commd.Aborted, comm.barrier)
    else:
        comm.objects.send("I wait", 0)
        began = time.monotonic()
        error = expect(commd.Aborted, comm.recv, numpy.zeros(3), 0)
        assert "the data are wrong" in str(error) and time.monotonic() - began < AT_ONCE_S, str(error)


def aborted_by_exception(comm):
    """An exception that leaves the block tells the other ranks why."""
    import commd
    part = comm.split(0)
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError):
            with part:
                1 / 0
    else:
        error = expect(commd.Aborted, part.recv, numpy.zeros(3), 0)
        assert "rank 0: ZeroDivisionError" in str(error), str(error)
    comm.barrier()


def rank_lost(comm):
    import commd
    if comm.rank == 1:
        for other in (0, 2):  # until both are there: a barrier of the communicator might end with the loss
            comm.recv(numpy.zeros(1), other)
        os._exit(0)
    request = comm.all_reduce(numpy.ones(3), wait=False)  # under way before rank 1 may end
    comm.send(numpy.ones(1), 1)
    began = time.monotonic()
    error = expect(commd.RankLost, request.wait)
    assert isinstance(error, ConnectionError) and "rank 1" in str(error), str(error)
    again = expect(commd.RankLost, comm.all_reduce, numpy.ones(3))  # what is submitted later tells the same
    for told in (error, again):
        assert told.ranks == (1,) and told.node == comm.node_of(1), (told.ranks, told.node, str(told))
    assert time.monotonic() - began < 10


def refused_after_a_loss(comm):
    """commd refuses what it gets after the loss. The refusal may come before the library has read that the rank is lost."""
    import commd
    if comm.rank == 1:
        for other in (0, 2):
            comm.recv(numpy.zeros(1), other)
        os._exit(0)
    comm.send(numpy.ones(1), 1)
    time.sleep(0.5)

    def group(*calls):
        with comm.group():
            for call in calls:
                call()

    one, many, into = numpy.ones(3), numpy.ones(3 * comm.size), numpy.ones(3)
    calls = (lambda: comm.all_reduce(one), lambda: comm.all_reduce(numpy.ones(1 << 18)), lambda: comm.reduce_scatter(many), lambda: comm.scan(one),
             lambda: comm.all_to_all([one] * comm.size), comm.barrier, lambda: comm.send(one, 1), lambda: comm.recv(into, 2 - comm.rank),
             lambda: comm.recv(into, commd.ANY_SOURCE), lambda: comm.send_recv(one, 1, into, 1), lambda: comm.objects.bcast(1), lambda: comm.split(0),
             lambda: group(lambda: comm.all_reduce(one)), lambda: group(lambda: comm.all_reduce(one), lambda: comm.all_gather(one)),
             lambda: group(lambda: comm.send(one, 1), lambda: comm.recv(into, 1)))
    for place, call in enumerate(calls):
        error = expect(commd.RankLost, call)
        assert error.ranks == (1,) and len(error.pids) == 1 and error.node == comm.node_of(1), (place, error.ranks, error.node, str(error))


def messages_after_ranks_have_left(comm):
    """A rank that has left ends only the messages with it. The failure says which rank that is."""
    import commd
    one, into = numpy.ones(3), numpy.zeros(3)
    if comm.rank == 2:
        assert comm.recv(into, 0).count == 3
        return
    if comm.rank == 1:
        return
    time.sleep(0.5)  # rank 1 has left
    calls = (lambda: comm.send(one, 1), lambda: comm.recv(into, 1), lambda: comm.send_recv(one, 1, into, 1))
    for call in calls:
        error = expect(commd.RankLost, call)
        assert error.ranks == (1,) and error.node == comm.node_of(1), (error.ranks, error.node, str(error))
    comm.send(one, 2)
    waiting = comm.recv(into, commd.ANY_SOURCE, wait=False)
    for error in (expect(commd.RankLost, waiting.wait), expect(commd.RankLost, comm.recv, into, commd.ANY_SOURCE)):
        assert error.ranks == (1, 2) and error.operation == "recv", (error.ranks, error.operation, str(error))


def closed(comm):
    import commd
    part = comm.split(0)
    waiting = part.recv(numpy.zeros(3), 0, wait=False)
    array = part.empty(10)
    started, failures = threading.Event(), []

    def wait():
        started.set()
        failures.append(expect(commd.Closed, part.recv, numpy.zeros(3), 0, tag=1))

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    part.destroy()
    thread.join()
    assert part.closed and isinstance(failures[0], ValueError)
    expect(commd.Closed, waiting.wait)
    for call in (part.barrier, part.abort, lambda: part.split(0), lambda: part.all_reduce(array), part.__enter__,
                 lambda: part.objects.bcast(1), lambda: part.send(array, 0)):
        expect(commd.Closed, call)
    array[:] = 1
    comm.all_reduce(array, out=array)
    assert array[0] == comm.size and repr(part).endswith("closed>")


def forked(comm):
    import commd
    array = comm.empty(1000)
    array[:] = comm.rank
    request = comm.all_reduce(array, wait=False)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            expect(commd.Closed, comm.all_reduce, array)
            expect(commd.Closed, comm.empty, 10)
            expect(commd.Closed, request.wait)
            expect(commd.Closed, comm.barrier)
            del array
            with commd.init(f"child-of-{comm.rank}", rank=0, size=1) as own:
                assert own.all_reduce(numpy.ones(2))[0] == 1 and own.empty(3).size == 3
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert request.wait()[0] == sum(range(comm.size)) and comm.all_reduce(array)[5] == sum(range(comm.size))


def threads(comm):
    """Each thread has a communicator of its own; they wait at the same time."""
    parts = [comm.split(0) for _ in range(4)]
    failures = []

    def work(part, number):
        try:
            for step in range(50):
                out = part.all_reduce(numpy.full(100 + number, step + number + comm.rank, float))
                assert (out == comm.size * (step + number) + sum(range(comm.size))).all()
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, args=(part, number)) for number, part in enumerate(parts)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures, failures


FUNCTIONS = [mismatch, timed_out, aborted, aborted_by_exception, closed, forked, threads]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_node(daemons, function):
    daemons.run_ranks(function, 2)


@pytest.mark.parametrize("function", (mismatch, timed_out, aborted), ids=lambda function: function.__name__)
def test_two_nodes(two_nodes, function):
    two_nodes.run_ranks(function, 2)


def test_rank_lost(daemons, two_nodes):
    for case in (rank_lost, refused_after_a_loss):
        for nodes in (daemons, two_nodes):
            finished = [finish(process, check=False) for process in nodes.start_ranks(case, 3)]
            assert finished[0][0] == 0 and finished[2][0] == 0, finished


def test_messages_after_ranks_have_left(daemons, two_nodes):
    for nodes in (daemons, two_nodes):
        nodes.run_ranks(messages_after_ranks_have_left, 3)


INTERRUPTED = """
import numpy, commd, sys, time
comm = commd.init({init})
array = numpy.zeros(3)
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
{after}
"""
CALLS = {"recv": "comm.recv(array, 0)", "request": "comm.recv(array, 0, wait=False).wait()", "objects": "comm.objects.recv(0)",
         "group": "with comm.group(): comm.recv(array, 0)"}


@pytest.mark.parametrize("name", CALLS)
def test_interrupt(daemons, name):
    """Ctrl-C ends a wait at once. The communicator can be used afterwards."""
    after = "out = comm.all_reduce(numpy.ones(2)); assert out[0] == 1; comm.send(numpy.ones(3), 0); comm.barrier()"
    process = daemons.start([sys.executable, "-B", "-c", INTERRUPTED.format(init="", call=CALLS[name], after=after)])
    assert process.stdout.readline().strip() == "waiting"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline().strip() == "interrupted"
    assert time.monotonic() - began < AT_ONCE_S
    finish(process)


AT_EVERY_STEP = """
import numpy, commd, sys
from commd import _group
comm = commd.init("group-steps-" + sys.argv[1], rank=0, size=1)
ones = numpy.ones(2)
# The requests of interrupted blocks stay pending: nobody has waited for them. That must not disturb later groups.

def step(frame, event, argument):
    frame.f_trace_opcodes = frame.f_code.co_filename == _group.__file__
    if frame.f_trace_opcodes and event in ("call", "opcode"):
        steps[0] += 1
        if steps[0] == at:
            raise KeyboardInterrupt
    return step if frame.f_trace_opcodes else None

def call(kind):
    if kind == "nested":
        with comm.group(), comm.group():
            return comm.all_reduce(ones)
    with comm.group(wait=kind == "wait"):
        return comm.all_reduce(ones)

for kind in ("wait", "later", "nested"):
    at, interrupted = 1, True
    while interrupted:
        steps, interrupted = [0], False
        sys.settrace(step)
        try:
            call(kind)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        assert not _group.any_open and not _group._thread.groups, at
        assert comm.all_reduce(ones)[0] == 1, at
        at += 1
    assert at > 50, at
    print(kind, flush=True)
"""


def test_interrupt_at_every_step_of_a_group(daemons):
    """At whatever line of a group Ctrl-C comes, no group stays open afterwards."""
    process = daemons.start([sys.executable, "-B", "-c", AT_EVERY_STEP, str(os.getpid())])
    assert finish(process)[1].split() == ["wait", "later", "nested"]


def test_interrupt_of_init(daemons):
    """Ctrl-C also ends the wait for ranks that do not come."""
    text = ("import commd, time\n\ntry:\n print('waiting', flush=True); commd.init('never', rank=0, size=2)\n"
            "except KeyboardInterrupt: print('interrupted', flush=True)\n"
            "with commd.init('after', rank=0, size=1) as comm: comm.barrier()")
    process = daemons.start([sys.executable, "-B", "-c", text])
    assert process.stdout.readline().strip() == "waiting"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline().strip() == "interrupted"
    finish(process)
    assert time.monotonic() - began < 10


def test_interrupt_of_split(daemons):
    """Ctrl-C ends split, though the other rank does not come. The communicator can then be destroyed."""
    text = ("import commd, sys\nrank = int(sys.argv[1])\ncomm = commd.init('split-' + sys.argv[2], rank=rank, size=2)\n"
            "if rank == 0:\n"
            "    try:\n        print('waiting', flush=True); comm.split(0)\n"
            "    except KeyboardInterrupt: print('interrupted', flush=True)\n"
            "    comm.destroy()\n"
            "else:\n"
            "    try: comm.objects.recv(0)\n"
            "    except commd.Error as error: print(type(error).__name__)\n")
    name = str(os.getpid())
    first, second = (daemons.start([sys.executable, "-B", "-c", text, str(rank), name]) for rank in (0, 1))
    assert first.stdout.readline().strip() == "waiting"
    os.kill(first.pid, signal.SIGINT)
    assert first.stdout.readline().strip() == "interrupted"
    began = time.monotonic()
    finish(first)
    assert finish(second)[1].strip() in ("Aborted", "RankLost") and time.monotonic() - began < 10


def test_signal_handler_runs(daemons):
    """A handler that does not raise runs while the program waits, and the wait goes on."""
    text = ("import signal, numpy, commd\ncomm = commd.init()\n"
            "signal.signal(signal.SIGUSR1, lambda *_: comm.send(numpy.ones(3), 0))\nout = numpy.zeros(3)\n"
            "print('waiting', flush=True)\ncomm.recv(out, 0)\nassert out.all()\nprint('received')")
    process = daemons.start([sys.executable, "-B", "-c", text])
    assert process.stdout.readline().strip() == "waiting"
    os.kill(process.pid, signal.SIGUSR1)
    assert finish(process)[1].strip() == "received"


def test_no_daemon(tmp_path):
    """If no daemon runs, init raises one clear exception."""
    import subprocess
    text = "import commd\ntry: commd.init()\nexcept commd.DaemonLost as error: print(isinstance(error, ConnectionError), error)"
    from ranks import BUILD, ROOT
    environment = dict(os.environ, COMMD_SOCKET=str(tmp_path / "none.sock"), PYTHONPATH=str(ROOT / "client/python"),
                       COMMD_LIBRARY=str(BUILD / "libcommclient.so"))
    done = subprocess.run([sys.executable, "-B", "-c", text], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("True") and "none.sock" in done.stdout, (done.stdout, done.stderr)


def test_no_library(tmp_path):
    import subprocess
    from ranks import ROOT
    (tmp_path / "text.so").write_text("no library")
    text = "import commd\ntry: commd.init()\nexcept commd.LibraryMissing as error: print(isinstance(error, ImportError), error)"
    for path in (tmp_path / "none.so", tmp_path / "text.so", "libm.so.6"):
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "client/python"), COMMD_LIBRARY=str(path))
        done = subprocess.run([sys.executable, "-B", "-c", text], env=environment, capture_output=True, text=True, timeout=30)
        assert done.stdout.startswith("True"), (done.stdout, done.stderr)


def test_daemon_lost():
    """If the daemon ends while ranks wait, each rank gets one clear exception. The next init finds a new daemon."""
    daemons = Daemons()
    try:
        text = ("import numpy, commd, time\ncomm = commd.init()\narray = comm.empty(1000); array[:] = 3\nprint('waiting', flush=True)\n"
                "try: comm.recv(numpy.zeros(3), 0)\nexcept commd.DaemonLost as error: print('lost', flush=True)\n"
                "for call in (comm.barrier, lambda: comm.all_reduce(array)):\n"
                "    try: call()\n"
                "    except commd.DaemonLost: pass\n"
                "    else: raise AssertionError\n"
                "comm.destroy(); assert array[5] == 3\ninput()\n"
                "with commd.init(daemon_wait=20) as comm: print(comm.all_reduce(array)[0], comm.empty(3).size)")
        import subprocess
        process = subprocess.Popen([sys.executable, "-B", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=daemons.environment())
        assert process.stdout.readline().strip() == "waiting"
        daemons.cluster.daemons["solo"].kill()
        daemons.cluster.daemons["solo"].wait()
        assert process.stdout.readline().strip() == "lost"
        daemons.cluster.start("solo", "--standalone")
        output, problems = process.communicate("\n", timeout=60)
        assert output.split() == ["3.0", "3"], problems
    finally:
        daemons.close()


def test_exceptions_travel():
    """Exceptions can be pickled, so that they pass multiprocessing and concurrent.futures."""
    import commd
    error = commd.RankLost("rank 3 has left", commd.Result.RANK_LOST, "all_reduce", 17, (3,), (99,), "alpha")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is commd.RankLost and str(again) == "rank 3 has left" and again.ranks == (3,) and again.node == "alpha"
    assert again.seq == 17 and again.result == commd.Result.RANK_LOST
    for name in commd.__all__:
        kind = getattr(commd, name)
        if isinstance(kind, type) and issubclass(kind, commd.Error):
            assert str(kind("text")) == "text" and kind("text").ranks == ()
