#!/usr/bin/env python3
"""Runs test programs (cmocka, TAP) and system tests (unittest), each bounded in time, and counts.

usage: run-tests.py PROGRAM-OR-test_*.py ...

Shows every failure with its output and every skip with its reason; ends with "N passed, N failed[, N skipped]".
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time

TIMEOUT_S = int(os.environ.get("COMMD_TEST_TIMEOUT_S", "600"))
TAIL_LINES = 60


def run(path):
    """Runs one program in a process group of its own; returns (path, output, exit code or None, seconds)."""
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", PYTHONDONTWRITEBYTECODE="1")
    command = [os.path.abspath(path)]
    if path.endswith(".py"):
        command = [sys.executable, path, "-v"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    return path, output.decode(errors="replace"), code, time.monotonic() - started


def count_tap(output):
    passed, failed, skipped, reasons = 0, [], [], []
    for line in output.splitlines():
        if line.startswith("SKIP: "):
            reasons.append(line[6:])
        match = re.match(r"(not )?ok \d+( - )?(.*)", line)
        if not match:
            continue
        name = match.group(3)
        if re.search(r"# SKIP", name, re.IGNORECASE):
            skipped.append((name.split("#")[0].strip(), reasons.pop() if reasons else "no reason given"))
        elif match.group(1):
            failed.append(name)
        else:
            passed += 1
    return passed, failed, skipped


def count_unittest(output):
    passed, failed, skipped = 0, [], []
    for match in re.finditer(r"^(FAIL|ERROR): (.*)$", output, re.MULTILINE):
        failed.append(match.group(2))
    for match in re.finditer(r"^(\S+) .*\.\.\. (?:.*\n)*?skipped ['\"](.*)['\"]$", output, re.MULTILINE):
        skipped.append((match.group(1), match.group(2)))
    ran = re.search(r"^Ran (\d+) tests?", output, re.MULTILINE)
    skips = re.search(r"skipped=(\d+)", output)
    if ran:
        passed = int(ran.group(1)) - len(failed) - (int(skips.group(1)) if skips else 0)
    return max(passed, 0), failed, skipped


def main():
    programs = sys.argv[1:]
    parallel = [p for p in programs if not p.endswith(".py")]
    serial = [p for p in programs if p.endswith(".py")]
    total_passed, total_failed, total_skipped = 0, 0, 0

    def report(result):
        nonlocal total_passed, total_failed, total_skipped
        path, output, code, seconds = result
        passed, failed, skipped = (count_unittest if path.endswith(".py") else count_tap)(output)
        if code is None:
            failed.append(f"killed after {TIMEOUT_S} s")
        elif code != 0 and not failed:
            failed.append(f"died with signal {-code}" if code < 0 else f"exit code {code}")
        elif passed + len(failed) + len(skipped) == 0:
            failed.append("ran no test")
        total_passed += passed
        total_failed += len(failed)
        total_skipped += len(skipped)
        print(f"{'FAIL' if failed else 'ok  '} {path}: {passed} passed"
              f"{f', {len(failed)} failed' if failed else ''}{f', {len(skipped)} skipped' if skipped else ''} ({seconds:.1f} s)")
        for name, reason in skipped:
            print(f"     skipped {name}: {reason}")
        if failed:
            for name in failed:
                print(f"     failed: {name}")
            print("\n".join("     | " + line for line in output.splitlines()[-TAIL_LINES:]))
        sys.stdout.flush()

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for result in pool.map(run, parallel):
            report(result)
    for path in serial:
        report(run(path))
    line = f"{total_passed} passed, {total_failed} failed"
    print(line + (f", {total_skipped} skipped" if total_skipped else ""))
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
