"""Starts the ranks of a program: python -m commd.run -n 4 program.py [ARGUMENT...]

`commctl run` starts them, where it is installed. Otherwise this program starts them itself, on this machine, with the
same environment: COMMD_RANK, COMMD_SIZE, COMMD_LOCAL_RANK, COMMD_LOCAL_SIZE and COMMD_JOB, which commd.init() reads. If
a rank fails, the others are ended. The exit code is that of the first rank that failed, or 128 + the number of the
signal that ended it.
"""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Sequence

RANKS_MAX = 4096
_POLL_S = 0.02
_OUTER = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def find_commctl() -> str | None:
    """Returns the path of commctl: $COMMD_COMMCTL, that of the build that COMMD_LIBRARY names, or that of PATH."""
    named = os.environ.get("COMMD_COMMCTL")
    if named is not None:
        return named or None
    library = os.environ.get("COMMD_LIBRARY")
    if library:
        beside = os.path.join(library if os.path.isdir(library) else os.path.dirname(os.path.abspath(library)), "commctl")
        if os.access(beside, os.X_OK):
            return beside
    return shutil.which("commctl")


def _parse(arguments: Sequence[str] | None) -> Namespace:
    import argparse
    parser = argparse.ArgumentParser(prog="python -m commd.run", description="Starts the ranks of a Python program.")
    parser.add_argument("-n", "--ranks", type=int, help="how many ranks to start on this machine")
    parser.add_argument("--hosts", help="HOST[:RANKS],...: start the ranks on these hosts (needs commctl)")
    parser.add_argument("--launcher", choices=("ssh", "srun"), help="how hosts are reached (needs commctl)")
    parser.add_argument("--env", action="append", default=[], help="a variable for ranks on other hosts (needs commctl)")
    parser.add_argument("--name", help="first part of the job's name (default: the program's)")
    parser.add_argument("--label", action="store_true", help="print [RANK] before each line of output (needs commctl)")
    parser.add_argument("--output-dir", help="write output to DIR/rank-N.out and DIR/rank-N.err (needs commctl)")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL (default 5)")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a Python program, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if (options.ranks is None) == (options.hosts is None):
        parser.error("give either -n or --hosts")
    if options.ranks is not None and not 0 < options.ranks <= RANKS_MAX:
        parser.error(f"-n must be between 1 and {RANKS_MAX}")
    if not options.module and not options.hosts and not os.path.exists(options.program):
        parser.error(f"there is no program {options.program}")
    return options


def _program(options: Namespace) -> list[str]:
    return [sys.executable, *(["-m"] if options.module else []), options.program, *options.arguments]


def _job_name(options: Namespace) -> str:
    text = options.name or os.path.splitext(os.path.basename(options.program))[0]
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in text)[:64]


def _commctl_command(commctl: str, options: Namespace) -> list[str]:
    command = [commctl, "run", "--name", _job_name(options), "--grace", f"{options.grace:g}"]
    command += ["-n", str(options.ranks)] if options.ranks is not None else ["--hosts", options.hosts]
    command += [] if options.label else ["--no-label"]
    command += ["--launcher", options.launcher] if options.launcher else []
    command += ["--output-dir", options.output_dir] if options.output_dir else []
    for variable in options.env:
        command += ["--env", variable]
    return [*command, "--", *_program(options)]


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    code = process.poll()
    return 0 if code is None else 128 - code if code < 0 else code


class _Job:
    """The ranks on this machine, where there is no commctl."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.signal = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items()
                       if name != "COMMD_LAUNCHER" and not (name in _OUTER and _OUTER[0] in os.environ)}
        environment.update(COMMD_SIZE=str(self.options.ranks), COMMD_LOCAL_SIZE=str(self.options.ranks),
                           COMMD_JOB=f"{_job_name(self.options)}-{os.urandom(8).hex()}")
        for rank in range(self.options.ranks):
            # A process group each, but one session: Linux may group processes by session, and then a rank that yields
            # passes its processor on only within it. Out of the foreground, a rank cannot read a terminal.
            reads = rank == 0 and sys.stdin is not None and not sys.stdin.isatty()
            self.processes.append(subprocess.Popen(
                _program(self.options), preexec_fn=os.setpgrp, stdin=None if reads else subprocess.DEVNULL,
                env=dict(environment, COMMD_RANK=str(rank), COMMD_LOCAL_RANK=str(rank))))

    def run(self) -> int:
        """Waits for all ranks. Returns the exit code."""
        code = 0
        while any(process.poll() is None for process in self.processes) and code == 0 and self.signal == 0:
            time.sleep(_POLL_S)
            codes = [_exit_code(process) for process in self.processes]
            code = max(codes)  # a signal is the cause rather than an exit code
        code = code or max((_exit_code(process) for process in self.processes), default=0)
        if code != 0:
            rank = [_exit_code(process) for process in self.processes].index(code)
            print(f"commd.run: rank {rank} ended with exit code {code}; the others are ended", file=sys.stderr)
        return code or (128 + self.signal if self.signal else 0)

    def end(self) -> None:
        """Ends the ranks that still run: SIGTERM (or the signal that came here), and SIGKILL after the grace time."""
        self.send(self.signal or signal.SIGTERM)
        limit = time.monotonic() + self.options.grace
        while any(process.poll() is None for process in self.processes) and time.monotonic() < limit:
            time.sleep(_POLL_S)
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def send(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    pass

    def note_signal(self, number: int, _frame: object) -> None:
        self.signal = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    options = _parse(arguments)
    commctl = find_commctl()
    if commctl is not None:
        command = _commctl_command(commctl, options)
        try:
            os.execv(commctl, command)
        except OSError as error:
            print(f"commd.run: {commctl}: {error.strerror}", file=sys.stderr)
            return 127
    if options.hosts or options.output_dir or options.label:
        print("commd.run: --hosts, --output-dir and --label need commctl, which is not installed", file=sys.stderr)
        return 2
    job = _Job(options)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, job.note_signal)
    try:
        job.start()
        return job.run()
    finally:
        job.end()


if __name__ == "__main__":
    sys.exit(main())
