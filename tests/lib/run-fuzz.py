#!/usr/bin/env python3
"""Runs fuzz targets that are built with libFuzzer, or merges what they found into the committed corpora.

usage: run-fuzz.py run BUILD SECONDS [TARGET ...]
       run-fuzz.py merge BUILD [TARGET ...]

BUILD is the folder of the programs fuzz_TARGET. Without TARGET: all of tests/fuzz.

`run` gives each target SECONDS, and runs COMMD_FUZZ_JOBS targets at a time (2). Each target has a growing corpus of its own,
BUILD/corpus/TARGET. It begins with the committed corpus and grows from run to run. A line for each target says how many inputs ran, how fast,
how much they cover, and how many new ones the corpus gained. An input that crashes, leaks or hangs is a finding. For each finding, its path and
how to reproduce it are printed. The target's output is in BUILD/logs, and the exit code is 1.

`merge` adds the fewest inputs of BUILD/corpus/TARGET that cover what tests/fuzz/corpus/TARGET does not. Files that a person named stay. Files
of an earlier merge are chosen anew. At most MERGED_FILES_MAX files are taken, of at most MERGED_FILE_BYTES_MAX bytes each and MERGED_BYTES_MAX
in all. Those that cover most come first; what is left out is counted.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "fuzz"
MERGED_FILES_MAX = 200
MERGED_FILE_BYTES_MAX = 8 << 10
MERGED_BYTES_MAX = 256 << 10
INPUT_TIMEOUT_S = 25  # an input that takes longer hangs
MEMORY_LIMIT_MIB = 2048
STOP_S = 60  # a target that still runs this long after its time is stopped
FINDING_LINES = 40
MERGED_NAME = re.compile(r"[0-9a-f]{40}")  # libFuzzer names an input by its SHA-1
STAT = re.compile(r"^stat::(\w+):\s+(\d+)", re.MULTILINE)
COVERAGE = re.compile(r"\bcov: (\d+) ft: (\d+)")

# Some targets make allocations fail, so ASan must return null instead of ending the process. It must also report the input that leaked.
ENVIRONMENT = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1:abort_on_error=0:symbolize=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def all_targets():
    return sorted(path.stem.removeprefix("fuzz_") for path in SOURCES.glob("fuzz_*.c"))


def work_corpus(build, target):
    """Returns the folder of the target's growing corpus, with all committed files in it."""
    folder = build / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    committed = SOURCES / "corpus" / target
    for path in committed.iterdir() if committed.is_dir() else ():
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    return folder


def dictionary(target):
    path = SOURCES / "corpus" / f"{target}.dict"
    return [f"-dict={path}"] if path.exists() else []


class Outcome:
    """The outcome of one target's run."""

    def __init__(self, target, code, text, new_inputs, findings, log):
        stats = {name: int(value) for name, value in STAT.findall(text)}
        coverage = COVERAGE.findall(text)
        self.target, self.code, self.text, self.findings, self.log = target, code, text, findings, log
        self.new_inputs = new_inputs
        self.executions = stats.get("number_of_executed_units", 0)
        self.executions_per_s = stats.get("average_exec_per_sec", 0)
        self.edges, self.features = (int(number) for number in coverage[-1]) if coverage else (0, 0)

    def failed(self):
        return self.code != 0 or bool(self.findings)

    def line(self):
        return (f"{self.target:<22}{self.executions:>12}{self.executions_per_s:>10}{self.edges:>9}{self.features:>10}"
                f"{self.new_inputs:>8}{len(self.findings) or (1 if self.failed() else 0):>10}")


HEADING = f"{'target':<22}{'executions':>12}{'each s':>10}{'edges':>9}{'features':>10}{'new':>8}{'findings':>10}"


def run_target(build, target, seconds):
    corpus = work_corpus(build, target)
    before = len(list(corpus.iterdir()))
    findings = build / "findings" / target
    findings.mkdir(parents=True, exist_ok=True)
    known = set(findings.iterdir())
    log = build / "logs" / f"{target}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(build / f"fuzz_{target}"), f"-max_total_time={seconds}", "-print_final_stats=1", f"-timeout={INPUT_TIMEOUT_S}",
               f"-rss_limit_mb={MEMORY_LIMIT_MIB}", f"-artifact_prefix={findings}/", *dictionary(target), str(corpus)]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=dict(ENVIRONMENT, **os.environ), start_new_session=True)
        try:
            code = process.wait(timeout=seconds + INPUT_TIMEOUT_S + STOP_S)
        except BaseException as stopped:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            code = None  # it did not end, which is a finding too
    text = log.read_text(errors="replace")
    new_inputs = max(0, len(list(corpus.iterdir())) - before)
    return Outcome(target, code, text, new_inputs, sorted(set(findings.iterdir()) - known), log)


def show_finding(build, outcome):
    began = re.search(r"^(==\d+==.*(ERROR|WARNING)|.*runtime error:|.*Assertion)", outcome.text, re.MULTILINE)
    lines = (outcome.text[began.start():] if began else outcome.text).splitlines()
    shown = lines[:FINDING_LINES] if began else lines[-FINDING_LINES:]
    print(f"\n{outcome.target}: " + ("did not end" if outcome.code is None else f"exit code {outcome.code}"))
    print("\n".join("    " + line for line in shown))
    print(f"    the whole output: {outcome.log}")
    for path in outcome.findings:
        print(f"    reproduce: {os.path.relpath(build)}/fuzz_{outcome.target} {os.path.relpath(path)}")


def run(build, seconds, targets):
    jobs = int(os.environ.get("COMMD_FUZZ_JOBS", "2"))
    began = time.monotonic()
    outcomes = []
    print(HEADING, flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda target: run_target(build, target, seconds), targets):
            print(outcome.line(), flush=True)
            outcomes.append(outcome)
    failed = [outcome for outcome in outcomes if outcome.failed()]
    for outcome in failed:
        show_finding(build, outcome)
    print(f"{len(outcomes)} targets, {len(failed)} with findings, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def merge_target(build, target):
    """Chooses anew which merged files are committed beside those that a person named. Returns whether the target could run."""
    grown = work_corpus(build, target)
    committed = SOURCES / "corpus" / target
    committed.mkdir(parents=True, exist_ok=True)
    for path in committed.iterdir():
        if MERGED_NAME.fullmatch(path.name):
            path.unlink()
    chosen = build / "merged" / target
    shutil.rmtree(chosen, ignore_errors=True)
    shutil.copytree(committed, chosen)
    result = subprocess.run([str(build / f"fuzz_{target}"), "-set_cover_merge=1", f"-timeout={INPUT_TIMEOUT_S}",
                             f"-rss_limit_mb={MEMORY_LIMIT_MIB}", f"-max_len={MERGED_FILE_BYTES_MAX}", str(chosen), str(grown)],
                            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=dict(ENVIRONMENT, **os.environ), check=False)
    if result.returncode != 0:
        print(result.stdout.decode(errors="replace")[-4000:])
        print(f"{target}: the merge failed")
        return False
    found = [path for path in chosen.iterdir() if MERGED_NAME.fullmatch(path.name)]
    kept = left_out = kept_bytes = 0
    # libFuzzer chooses greedily, and writes in that order, so the inputs that add most come first.
    for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name)):
        size = path.stat().st_size
        if kept >= MERGED_FILES_MAX or size > MERGED_FILE_BYTES_MAX or kept_bytes + size > MERGED_BYTES_MAX:
            left_out += 1
            continue
        shutil.copy(path, committed / path.name)
        kept += 1
        kept_bytes += size
    print(f"{target}: {kept} inputs, {kept_bytes} bytes, {left_out} left out")
    return True


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("run", "merge"):
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[2]).resolve()
    names = sys.argv[4:] if sys.argv[1] == "run" else sys.argv[3:]
    targets = [name.removeprefix("fuzz_") for name in names] or all_targets()
    missing = [target for target in targets if not (build / f"fuzz_{target}").exists()]
    if missing:
        sys.exit(f"fuzz: not built in {build}: {' '.join(missing)}")
    if sys.argv[1] == "merge":
        sys.exit(0 if all([merge_target(build, target) for target in targets]) else 1)
    sys.exit(run(build, int(sys.argv[3]), targets))


if __name__ == "__main__":
    main()
