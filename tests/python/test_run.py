"""python -m commd.run, with commctl and without."""
import os
import signal
import subprocess
import sys
import time

import pytest

from ranks import BUILD, finish

PROGRAM = """
import sys, commd, numpy
with commd.init() as comm:
    total = comm.all_reduce(numpy.array([comm.rank + 1]))[0]
    part = comm.split(0)
    words = [comm.rank, comm.size, comm.local_rank, comm.local_size, total, *sys.argv[1:]]
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one write: lines of several ranks do not mix
"""
STARTERS = {"commctl": str(BUILD / "commctl"), "alone": ""}


@pytest.fixture(params=STARTERS, ids=str)
def starter(request):
    return STARTERS[request.param]


def start(daemons, starter, *arguments):
    return daemons.start([sys.executable, "-B", "-m", "commd.run", *arguments], COMMD_COMMCTL=starter)


def test_ranks(daemons, starter, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, output, problems = finish(start(daemons, starter, "-n", 3, program, "-n", "--hosts"))
    assert sorted(output.splitlines()) == [f"{rank} 3 {rank} 3 6 -n --hosts" for rank in range(3)]


def test_module(daemons, starter, tmp_path):
    (tmp_path / "my_module.py").write_text(PROGRAM)
    process = daemons.start([sys.executable, "-B", "-m", "commd.run", "-n", 2, "-m", "my_module"], COMMD_COMMCTL=starter,
                            PYTHONPATH=os.pathsep.join([str(tmp_path), daemons.environment()["PYTHONPATH"]]))
    assert len(finish(process)[1].splitlines()) == 2


def test_one_session(daemons, starter, tmp_path):
    """The kernel may group processes by session. Ranks that share processors take turns only within one. Each still has a process group of its own."""
    program = tmp_path / "program.py"
    program.write_text("import os, sys; sys.stdout.write(f'{os.getsid(0)} {os.getpgrp() == os.getpid()} {sys.stdin.read() or None}\\n')")
    process = start(daemons, starter, "-n", 3, program)
    session = os.getsid(process.pid)
    assert finish(process)[1].splitlines() == [f"{session} True None"] * 3


@pytest.mark.parametrize("wrapper, heard", [(["sh", "-c", 'echo words | "$0" "$@"'], "words"),
                                            ([sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"], "")], ids=["pipe", "terminal"])
def test_standard_input(daemons, starter, tmp_path, wrapper, heard):
    """Rank 0 has it unless it is a terminal, which only one process could read. The others have none."""
    program = tmp_path / "program.py"
    program.write_text("import os, sys; sys.stdout.write(os.environ['COMMD_RANK'] + ' ' + sys.stdin.read().strip() + '\\n')")
    process = daemons.start([*wrapper, sys.executable, "-B", "-m", "commd.run", "-n", 3, program], COMMD_COMMCTL=starter)
    assert sorted(line.rstrip() for line in finish(process)[1].splitlines()) == [f"0 {heard}".strip(), "1", "2"]


def test_a_rank_fails(daemons, starter, tmp_path):
    """If a rank fails, the others are ended. The exit code is that of the rank that failed."""
    program = tmp_path / "program.py"
    program.write_text("import commd, os, sys, numpy\ncomm = commd.init()\nif comm.rank == 1: os._exit(7)\ncomm.recv(numpy.zeros(3), 0, tag=5)")
    began = time.monotonic()
    code, _, problems = finish(start(daemons, starter, "-n", 2, program), check=False)
    assert code == 7 and time.monotonic() - began < 20, problems


def test_a_rank_is_killed(daemons, starter, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import commd, os, signal, numpy\ncomm = commd.init()\nif comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
                       "comm.recv(numpy.zeros(3), 0, tag=5)")
    assert finish(start(daemons, starter, "-n", 2, program), check=False)[0] == 128 + signal.SIGKILL


def test_interrupt(daemons, starter, tmp_path):
    """Ctrl-C ends the job: the ranks get the signal, and those that still run are killed."""
    program = tmp_path / "program.py"
    program.write_text("import sys, commd, numpy\ncomm = commd.init()\ncomm.barrier()\nsys.stdout.write('waiting\\n'); sys.stdout.flush()\ncomm.recv(numpy.zeros(3), 0, tag=5)")
    process = start(daemons, starter, "-n", 2, "--grace", "5", program)
    assert [process.stdout.readline().strip() for _ in range(2)] == ["waiting"] * 2
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    code, _, problems = finish(process, check=False)
    assert code != 0 and "KeyboardInterrupt" in problems and time.monotonic() - began < 15, (code, problems)


@pytest.mark.parametrize("arguments", ([], ["-n", "0", "x.py"], ["-n", "x", "x.py"], ["-n", "2"], ["-n", "2", "no-such-program.py"],
                                       ["x.py"], ["-n", "5000", "x.py"], ["-n", "2", "--hosts", "a", "x.py"]))
def test_wrong_arguments(arguments):
    from ranks import ROOT
    done = subprocess.run([sys.executable, "-B", "-m", "commd.run", *arguments], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, PYTHONPATH=str(ROOT / "client/python")))
    assert done.returncode == 2 and "usage:" in done.stderr and "Traceback" not in done.stderr


def test_needs_commctl(daemons, tmp_path):
    (tmp_path / "x.py").write_text("")
    code, _, problems = finish(start(daemons, "", "--hosts", "a:2", tmp_path / "x.py"), check=False)
    assert code == 2 and "commctl" in problems


def test_examples(daemons):
    """The examples run, and print their results."""
    from ranks import ROOT
    examples = ROOT / "client/python/examples"
    output = finish(start(daemons, STARTERS["commctl"], "-n", 3, examples / "kmeans.py", "--points", "3000"))[1]
    assert "centres" in output
    output = finish(start(daemons, STARTERS["commctl"], "-n", 2, examples / "overlap.py", "--steps", "5"))[1]
    assert "overlapped" in output
