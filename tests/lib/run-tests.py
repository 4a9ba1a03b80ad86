#!/usr/bin/env python3
"""Runs test programs (cmocka or any that print TAP), system tests (unittest files) and tests of the Python package (pytest files). Limits the time
of each, and counts the results.

usage: run-tests.py PROGRAM-OR-test_*.py ...
       run-tests.py --tap test_*.py [NAME ...]    one unittest file, in this process, reported as TAP
       run-tests.py --pytest test_*.py            one pytest file, likewise

Unittest files and then programs, which are shorter, run two at a time. Beside them run the tests that mostly wait, also two at a time. They keep less
than half a processor busy, and have WAITS = True at their top. A C file has that in a comment of its own. If few of one kind are left, four of the other
run. Files with ALONE = True at their top come last, one after the other. The line of each shows its seconds, and for how long it and its children kept processors
busy. Each skip is shown with its reason: that of unittest, or for cmocka the line "SKIP: reason" that the test prints before it calls skip(). Each failure is shown with the end of the output. All failures are shown once
more at the end, each with what its test printed. The last line is "N passed, N failed" or "N passed, N failed, N skipped". The exit code is 0 if tests
ran and none failed.

If COMMD_TEST_AGAIN is set, a file that failed runs once more when all others have ended, so that nothing else is busy. What it says then counts. Each
failure that was not repeated is shown at the end behind "flaky: ". A file that crashed, or wrote wrong data or a sanitizer's report, does not run again.
Nor does any if more than AGAIN_MAX have failed.

If COMMD_TEST_RUNNER is set, programs run under it, for example "qemu-aarch64" for programs of another machine.
A file in the same folder as a conftest.py is for pytest. It runs with the first of COMMD_PYTHON, this Python and /usr/bin/python3 that has numpy
and pytest. If none has them, the file is skipped.
A program may run COMMD_TEST_TIMEOUT_S seconds (300). A unittest file that needs longer sets TIMEOUT_S = seconds at its top.
"""
import contextlib
import functools
import importlib.util
import os
import pathlib
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TIMEOUT_S = int(os.environ.get("COMMD_TEST_TIMEOUT_S", "300"))
AT_ONCE = 2
CLEAN_UP_S = 10  # time for a stopped test to end its daemons and remove its network namespaces
TAIL_LINES = 80
AGAIN_LINES = 30  # of a failed test's own output, at the end of the run
AGAIN_MAX = 3
NEVER_FLAKY = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error: |\bWRONG\b|[Aa]ssertion .* failed")
RESULT = re.compile(r"(not )?ok (\d+)\b\s*(?:- )?(.*)")
NO_REASON = "no reason given"


class Stopped(Exception):
    """The run was interrupted."""


class Runner:
    def __init__(self):
        self.processes = set()
        self.lock = threading.Lock()
        self.stopping = False
        self.passed = self.failed = self.skipped = 0
        self.failures = []  # the lines that are shown once more at the end
        self.runs_again = bool(os.environ.get("COMMD_TEST_AGAIN"))
        self.postponed = []  # what `report` got for files that run again

    def run(self, path):
        """Runs one program in a process group of its own. Returns (path, output, exit code or None when out of time, seconds, seconds of processors or None)."""
        if not os.path.exists(path):
            return path, "there is no such file", 127, 0.0, None
        environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1")
        command = [*os.environ.get("COMMD_TEST_RUNNER", "").split(), os.path.abspath(path)]
        limit_s = TIMEOUT_S
        if path.endswith(".py"):
            command = python_command(path)
            longer = re.search(r"^TIMEOUT_S\s*=\s*(\d+)", pathlib.Path(path).read_text(), re.MULTILINE)
            limit_s = max(limit_s, int(longer.group(1)) if longer else 0)
        started = time.monotonic()
        # A file, not a pipe: a process that a test leaves behind may keep it open, and this run need not wait for it.
        with tempfile.TemporaryFile() as output:
            with self.lock:
                if self.stopping:
                    raise Stopped
                try:
                    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                               env=environment, start_new_session=True)
                except OSError as error:
                    return path, str(error), 127, 0.0, None
                self.processes.add(process)
            used_s = wait_unreaped(process, limit_s)
            code = process.wait() if used_s is not None else None
            if code is None:
                self.stop(process)
            with self.lock:
                self.processes.discard(process)
            kill_group(process)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if self.stopping:
            raise Stopped
        return path, text, code, time.monotonic() - started, used_s

    def stop(self, process):
        """Ends a process. Interrupts a unittest file, so that it can clean up. Then kills whatever is left of the group."""
        if process.args[1:2] == [os.path.abspath(__file__)]:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=CLEAN_UP_S)
            except subprocess.TimeoutExpired:
                pass
        kill_group(process)
        process.wait()

    def stop_all(self):
        with self.lock:
            self.stopping = True
            processes = list(self.processes)
        for process in processes:
            self.stop(process)

    def report(self, path, output, code, seconds, used_s):
        passed, failed, skipped, planned = count_tap(output)
        ended = passed + len(failed) + len(skipped)
        if code is None:
            failed.append(f"stopped after {seconds:.0f} s: out of time")
        elif code < 0:
            failed.append(f"ended by {signal.Signals(-code).name}")
        elif code != 0 and not failed:
            failed.append(f"exit code {code}")
        elif ended == 0:
            failed.append("ran no test")
        elif planned is not None and ended < planned:
            failed.append(f"{planned} tests were announced, {ended} ended")
        again = self.runs_again and failed and code is not None and 0 <= code != 127 and not NEVER_FLAKY.search(output)
        if again:
            self.postponed.append((path, output, code, seconds, used_s, failed))
        else:
            self.passed += passed
            self.failed += len(failed)
            self.skipped += len(skipped)
        processors = f", {used_s:.1f} s of processors" if used_s is not None else ""
        counts = [f"{passed} passed"] + [f"{len(some)} {word}" for some, word in ((failed, "failed"), (skipped, "skipped")) if some]
        print(f"{'FAIL' if failed else 'ok  '} {short(path)}: {', '.join(counts)} ({seconds:.1f} s{processors})")
        for name, reason in skipped:
            print(f"     skipped: {name}: {reason}")
        for name in failed:
            print(f"     failed: {name}")
        if failed:
            lines = output.splitlines()
            if len(lines) > TAIL_LINES:
                print(f"     | ... {len(lines) - TAIL_LINES} lines before")
            print("".join(f"     | {line}\n" for line in lines[-TAIL_LINES:]), end="")
        if not again:
            self.show_once_more("failed", path, failed, output)
        sys.stdout.flush()

    def show_once_more(self, how, path, names, output):
        for name in names:
            self.failures.append(f"{how}: {short(path)}: {name}")
            self.failures += [f"{how}:     {line}" for line in output_of(name, output)[-AGAIN_LINES:]]

    def run_postponed(self):
        """Runs the files that have failed once more, one after the other."""
        self.runs_again = False
        few = len(self.postponed) <= AGAIN_MAX
        for path, output, code, seconds, used_s, names in self.postponed:
            if not few:
                self.report(path, output, code, seconds, used_s)
                continue
            print(f"again: {short(path)}")
            failed = self.failed
            self.report(*self.run(path))
            if self.failed == failed:
                self.show_once_more("flaky", path, names, output)

    def run_all(self, paths):
        kinds = {"WAITS": [], "ALONE": [], None: []}
        for path in sorted(paths, key=lambda path: not path.endswith(".py")):
            kinds[kind_of(path)].append(path)
        self.run_some(*[[kinds[None], kinds["WAITS"]]] * AT_ONCE, *[[kinds["WAITS"], kinds[None]]] * AT_ONCE)
        self.run_some([kinds["ALONE"]])
        self.run_postponed()

    def run_some(self, *workers):
        """Each worker has lists of paths. It runs one file after the other, of the first of its lists that still has some. Workers share lists."""
        ended = queue.SimpleQueue()
        threads = [threading.Thread(target=self.work, args=(lists, ended), daemon=True) for lists in workers]
        for thread in threads:
            thread.start()
        at_work = len(threads)
        try:
            while at_work:
                done = ended.get()
                if done is None:
                    at_work -= 1
                elif isinstance(done, Exception):
                    raise done
                else:
                    self.report(*done)
        except KeyboardInterrupt:
            self.stop_all()  # otherwise the workers would first run all the others
            raise

    def work(self, lists, ended):
        try:
            while path := self.take(lists):
                ended.put(self.run(path))
        except Stopped:
            pass
        except Exception as error:  # a fault of this program
            ended.put(error)
        finally:
            ended.put(None)

    def take(self, lists):
        with self.lock:
            return next((paths.pop(0) for paths in lists if paths), None)


def wait_unreaped(process, timeout_s):
    """Waits until the process ends. Returns how long it and its children occupied processors, or None if it has not ended in time."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return None
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    finally:
        os.close(descriptor)
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def kind_of(path):
    """Returns what the source of a test says of itself at its top: "WAITS", "ALONE" or None."""
    source = pathlib.Path(path if path.endswith(".py") else f"{short(path)}.c")
    text = source.read_text() if source.exists() else ""
    found = re.search(r"^(?:/\* )?(WAITS|ALONE) = True\b", text, re.MULTILINE)
    return found.group(1) if found else None


def is_for_pytest(path):
    return pathlib.Path(path).with_name("conftest.py").exists()


@functools.lru_cache
def python_for_pytest():
    """Returns a Python that has what the tests of the Python package need, or None."""
    for python in filter(None, (os.environ.get("COMMD_PYTHON"), sys.executable, "/usr/bin/python3")):
        try:
            if subprocess.run([python, "-c", "import numpy, pytest"], capture_output=True, timeout=60).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    return None


def python_command(path):
    """Returns the command that runs a Python file of tests."""
    mode, python = "--tap", sys.executable
    if is_for_pytest(path):
        python = python_for_pytest()
        mode, python = ("--pytest", python) if python is not None else ("--without-pytest", sys.executable)
    return [python, os.path.abspath(__file__), mode, path]


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def short(path):
    build = os.environ.get("COMMD_BUILD", "")
    absolute = os.path.abspath(path)
    return os.path.relpath(absolute, build) if build and absolute.startswith(build + os.sep) else path


def output_of(name, output):
    """Returns the lines that a failed test printed: those around its result, up to the results before and behind. Without a result: the last lines."""
    lines, found = [], False
    for line in output.splitlines():
        result = RESULT.match(line)
        if result is None:
            lines.append(line)
        elif found:
            break
        elif result.group(1) and result.group(3).strip() == name:
            found = True
        else:
            lines = []
    return lines


def count_tap(output):
    """Returns (passed, names of failures, [(name, reason)] of skips, announced number or None)."""
    passed, failed, skipped, planned = 0, [], [], None
    reasons = []  # reasons that were printed, and that no skip has taken yet
    for line in output.splitlines():
        reason = re.match(r"\s*#?\s*SKIP: (.*)", line)
        if reason:
            reasons.append(reason.group(1).strip())
            continue
        plan = re.match(r"1\.\.(\d+)\s*$", line)
        if plan:
            planned = (planned or 0) + int(plan.group(1))  # there is one plan for each group of tests
            continue
        result = RESULT.match(line)
        if not result:
            continue
        name = result.group(3).strip()
        # cmocka prints "not ok 2 # SKIP name"; TAP prints "ok 2 - name # SKIP reason".
        skip = re.match(r"(.*?)\s*#\s*SKIP\b\s*(.*)", name, re.IGNORECASE)
        if skip:
            before, after = skip.group(1), skip.group(2)
            if before:
                skipped.append((before, after or (reasons.pop(0) if reasons else NO_REASON)))
            else:
                skipped.append((after, reasons.pop(0) if reasons else NO_REASON))
        elif result.group(1):
            failed.append(name or f"number {result.group(2)}")
        else:
            passed += 1
    return passed, failed, skipped, planned


class TapResult(unittest.TestResult):
    """Reports a unittest run as TAP, one line a test."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream
        self.number = 0
        self.subtest_failed = False

    def say(self, result, test, directive="", details=""):
        self.number += 1
        name = test.id() if hasattr(test, "id") else str(test)
        self.stream.write(details.rstrip("\n") + "\n" if details else "")
        self.stream.write(f"{result} {self.number} - {name}{directive}\n")
        self.stream.flush()

    def startTest(self, test):
        super().startTest(test)
        self.subtest_failed = False

    def addSuccess(self, test):
        if not self.subtest_failed:
            self.say("ok", test)

    def addSkip(self, test, reason):
        self.say("ok", test, f" # SKIP {' '.join(reason.split())}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("not ok", test, details=self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say("not ok", test, details=self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.subtest_failed = True
            self.say("not ok", subtest, details=(self.failures or self.errors)[-1][1])

    def addExpectedFailure(self, test, err):
        self.say("ok", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.say("not ok", test, details="succeeds, and was expected to fail")


def run_unittest_file(path, names):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module_name = pathlib.Path(path).stem
    specification = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    result = TapResult(sys.stdout)
    try:
        specification.loader.exec_module(module)
    except unittest.SkipTest as skip:
        result.say("ok", module_name, f" # SKIP {skip}")
        return 0
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    suite.run(result)
    return 0 if result.wasSuccessful() and result.number else 1


class TapPlugin:
    """Reports a pytest run as TAP, one line a test."""

    def __init__(self):
        self.number = 0
        self.stream = os.fdopen(os.dup(1), "w")  # pytest takes the standard output for itself

    def say(self, result, name, directive="", details=""):
        self.number += 1
        self.stream.write(details.rstrip("\n") + "\n" if details else "")
        self.stream.write(f"{result} {self.number} - {name}{directive}\n")
        self.stream.flush()

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("/")[-1].replace("#", "")
        if report.failed:
            self.say("not ok", f"{name} ({report.when})" if report.when != "call" else name, details=report.longreprtext)
        elif report.skipped:
            self.say("ok", name, f" # SKIP {' '.join(str(report.longrepr[-1]).removeprefix('Skipped: ').split())}")
        elif report.when == "call":
            self.say("ok", name)

    def pytest_collectreport(self, report):
        if report.failed:
            self.say("not ok", f"collecting {report.nodeid}", details=report.longreprtext)
        elif report.skipped:
            self.say("ok", report.nodeid, f" # SKIP {' '.join(str(report.longrepr[-1]).removeprefix('Skipped: ').split())}")


def run_pytest_file(path):
    import pytest
    plugin = TapPlugin()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # pytest's own report
        code = pytest.main([path, "-p", "no:cacheprovider"], plugins=[plugin])
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED and plugin.number else int(code)


def interrupt(_number, _frame):
    raise KeyboardInterrupt


def main():
    if sys.argv[1:2] == ["--tap"]:
        return run_unittest_file(sys.argv[2], sys.argv[3:])
    if sys.argv[1:2] == ["--pytest"]:
        return run_pytest_file(sys.argv[2])
    if sys.argv[1:2] == ["--without-pytest"]:
        print(f"ok 1 - {sys.argv[2]} # SKIP no Python here has numpy and pytest (Debian: python3-numpy, python3-pytest)")
        return 0
    runner = Runner()
    signal.signal(signal.SIGINT, interrupt)  # in a background job it is ignored, and tests would inherit that
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    status = 0
    try:
        runner.run_all(sys.argv[1:])
    except (KeyboardInterrupt, Stopped):
        print("interrupted")
        status = 130
    finally:
        runner.stop_all()
    print("".join(f"{line}\n" for line in runner.failures), end="")
    counts = f"{runner.passed} passed, {runner.failed} failed"
    print(counts + (f", {runner.skipped} skipped" if runner.skipped else ""), flush=True)
    return status or (1 if runner.failed or not runner.passed else 0)


if __name__ == "__main__":
    sys.exit(main())
