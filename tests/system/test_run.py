#!/usr/bin/env python3
"""commctl run: ranks, their output, and how they end. Other hosts, with a program in the place of ssh or srun."""
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from cluster import BUILD, Cluster, StandaloneTest

COMMCTL = str(BUILD / "commctl")
# Joins by comm_init_env, and sums the ranks; prints it.
SUM = """
import ctypes, sys
sys.path.insert(0, %r)
from cluster import Library
library = Library()
result, client = library.open()
comm = ctypes.c_void_p()
result = result or library.comm_init_env(client, None, ctypes.byref(comm))
if result:
    sys.exit(library.error())
library.calls.comm_rank.argtypes = library.calls.comm_size.argtypes = [ctypes.c_void_p]
value = ctypes.c_int64(library.comm_rank(comm) + 1)
result = library.comm_all_reduce(comm, ctypes.byref(value), ctypes.byref(value), 1, 6, 0, None) or library.comm_sync(comm, 0)
print("sum", value.value, "of", library.comm_size(comm), result)
library.comm_destroy(comm)
library.comm_client_close(client)
""" % str(pathlib.Path(__file__).parent)


# Prints a line for each SIGUSR1 that it gets, and ends with SIGUSR2.
COUNT = """
import os, signal
signals = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
while signal.sigwait(signals) == signal.SIGUSR1:
    os.write(1, b"used\\n")
"""


def start(*arguments, environment=None, **options):
    return subprocess.Popen([COMMCTL, "run", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **(environment or {})}, **options)


def run(*arguments, timeout=30, **options):
    process = start(*arguments, stdin=subprocess.DEVNULL, **options)
    output, errors = process.communicate(timeout=timeout)
    return process.returncode, output, errors


def shell(text, *arguments):
    return ["--", "sh", "-c", text, "sh", *arguments]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pids, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


class Local(unittest.TestCase):
    def test_places_and_labels(self):
        code, output, errors = run("-n", 4, *shell('echo out $COMMD_RANK of $COMMD_SIZE, $COMMD_LOCAL_RANK of $COMMD_LOCAL_SIZE; echo err $COMMD_RANK >&2'))
        self.assertEqual((code, sorted(output.splitlines()), sorted(errors.splitlines())),
                         (0, [f"[{rank}] out {rank} of 4, {rank} of 4" for rank in range(4)], [f"[{rank}] err {rank}" for rank in range(4)]))

    def test_the_job_is_new_for_each_run(self):
        jobs = [run("-n", 2, "--no-label", "--name", "night", *shell("echo $COMMD_JOB"))[1].split() for _ in range(2)]
        for job in jobs:
            self.assertEqual(job[0], job[1])
            self.assertRegex(job[0], r"^night\.[0-9a-f]{16}$")
        self.assertNotEqual(jobs[0], jobs[1])

    def test_an_outer_launcher_does_not_count(self):
        outer = {"TORCHELASTIC_RUN_ID": "x", "RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "7", "COMMD_LAUNCHER": "slurm", "COMMD_RANK": "5"}
        code, output, _ = run("-n", 1, "--no-label", *shell('echo "$COMMD_RANK/$RANK/$WORLD_SIZE/$COMMD_LAUNCHER/$TORCHELASTIC_RUN_ID"'), environment=outer)
        self.assertEqual((code, output), (0, "0////\n"))

    def test_whole_lines(self):
        """commctl prints whole lines, however the ranks write them. It prints a long line in parts, and ends the last line."""
        code, output, _ = run("-n", 3, *shell("i=0; while [ $i -lt 200 ]; do printf 'ab'; printf 'cd%s\\n' $i; i=$((i + 1)); done; printf last"))
        self.assertEqual(code, 0)
        lines = output.splitlines()
        for rank in range(3):
            self.assertEqual([line for line in lines if line.startswith(f"[{rank}] ")], [f"[{rank}] abcd{i}" for i in range(200)] + [f"[{rank}] last"])
        self.assertEqual(len(lines), 603)
        code, output, _ = run("-n", 1, "--", sys.executable, "-c", "print('x' * 200000); print('y')")
        self.assertEqual((code, output), (0, "[0] " + "x" * 200000 + "\n[0] y\n"))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output, errors = run("-n", 2, "--output-dir", folder, *shell("echo a $COMMD_RANK; echo b $COMMD_RANK >&2"))
            self.assertEqual((code, output, errors), (0, "", ""))
            found = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
            self.assertEqual(found, {"rank-0.out": "a 0\n", "rank-0.err": "b 0\n", "rank-1.out": "a 1\n", "rank-1.err": "b 1\n"})
            code, _, errors = run("-n", 2, "--output-dir", folder + "/none", *shell("true"))
            self.assertEqual(code, 1)
            self.assertIn("/none/rank-0.out: No such file", errors)

    def test_input(self):
        process = start("-n", 2, *shell("cat"), stdin=subprocess.PIPE)
        self.assertEqual(process.communicate("hello\n", timeout=10)[0], "[0] hello\n")

    def test_a_rank_that_fails_ends_the_others(self):
        began = time.monotonic()
        code, output, errors = run("-n", 3, *shell('if [ $COMMD_RANK = 1 ]; then sleep 0.3; exit 7; fi; trap "echo ended; exit 3" TERM; sleep 60 & wait'))
        self.assertEqual(code, 7)
        self.assertIn("commctl: run: rank 1 ended with exit code 7; ending the others", errors)
        self.assertEqual(sorted(output.splitlines()), ["[0] ended", "[2] ended"])
        self.assertLess(time.monotonic() - began, 5)

    def test_a_signal_is_128_and_its_number(self):
        code, _, errors = run("-n", 2, *shell("[ $COMMD_RANK = 0 ] && kill -SEGV $$; sleep 60"))
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn("rank 0 was ended by signal 11 (Segmentation fault); ending the others", errors)

    def test_a_rank_that_ignores_sigterm(self):
        code, _, errors = run("-n", 2, "--grace", "0.5", *shell('trap "" TERM; [ $COMMD_RANK = 0 ] && sleep 0.5 && exit 4; while :; do sleep 0.1; done'))
        self.assertEqual(code, 4)
        self.assertIn("not all have ended within 0.5 s: SIGKILL", errors)

    def test_signals_pass_through(self):
        """A shell that ends with a program may lose a SIGINT just before it becomes that program. tail is one program from its first line on."""
        with tempfile.NamedTemporaryFile("w") as ready:
            ready.write("ready\n")
            ready.flush()
            for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
                process = start("-n", 2, "--", "tail", "-f", ready.name)
                self.assertEqual(sorted(process.stdout.readline() for _ in range(2)), ["[0] ready\n", "[1] ready\n"])
                process.send_signal(number)
                process.communicate(timeout=10)
                self.assertEqual(process.returncode, code)
        process = start("-n", 2, *shell('trap "echo stopped; exit 0" INT; trap "echo used" USR1; echo ready; while :; do sleep 0.05; done'))
        [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(sorted(process.stdout.readline() for _ in range(2)), ["[0] used\n", "[1] used\n"])
        process.send_signal(signal.SIGINT)
        self.assertEqual((sorted(process.communicate(timeout=10)[0].splitlines()), process.returncode), (["[0] stopped", "[1] stopped"], 0))

    def test_a_signal_comes_once(self):
        """Programs take a second SIGINT as an order to end at once. The rank runs as soon as a signal wakes it, before commctl could send another."""
        processor = min(os.sched_getaffinity(0))
        process = start("-n", 1, "--no-label", "--", sys.executable, "-S", "-c", COUNT, preexec_fn=functools.partial(os.sched_setaffinity, 0, {processor}))
        self.assertEqual(process.stdout.readline(), "ready\n")
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.stdout.readline(), "used\n")
        process.send_signal(signal.SIGUSR2)
        self.assertEqual((process.communicate(timeout=20)[0], process.returncode), ("", 0))

    def test_a_signal_that_is_ignored_from_the_start_ends_nothing(self):
        """nohup ignores SIGHUP. A shell ignores SIGINT and SIGQUIT for what its scripts start with "&"."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            process = start("-n", 2, "--grace", "0.01", *shell('trap "echo used; exit 0" USR1; echo ready; while :; do sleep 0.05; done'),
                            preexec_fn=functools.partial(signal.signal, number, signal.SIG_IGN))
            [process.stdout.readline() for _ in range(2)]
            process.send_signal(number)
            time.sleep(0.2)  # longer than the grace time
            process.send_signal(signal.SIGUSR1)
            self.assertEqual((sorted(process.communicate(timeout=10)[0].splitlines()), process.returncode), (["[0] used", "[1] used"], 0), number)

    def test_no_orphans(self):
        """When a rank ends, the processes that it started end, too. If commctl is killed, the ranks are killed."""
        code, output, _ = run("-n", 2, "--no-label", *shell("sleep 61 & echo $!"))
        self.assertEqual((code, wait_gone(map(int, output.split()))), (0, []))
        process = start("-n", 2, "--no-label", *shell("echo $$; exec sleep 60"))
        pids = [int(process.stdout.readline()) for _ in range(2)]
        self.assertTrue(all(map(alive, pids)))
        process.kill()
        process.communicate(timeout=10)
        self.assertEqual(wait_gone(pids), [])

    def test_programs_that_cannot_run(self):
        code, _, errors = run("-n", 1, "--", "/no/such/program")
        self.assertEqual(code, 127)
        self.assertIn("/no/such/program: No such file", errors)
        self.assertEqual(run("-n", 1, "--", "/etc/passwd")[0], 126)

    def test_output_that_nobody_takes(self):
        with open("/dev/full", "w") as full:
            process = subprocess.Popen([COMMCTL, "run", "-n", "1", *shell("while :; do echo x; sleep 0.05; done")], stdout=full, stderr=subprocess.PIPE, text=True)
            errors = process.communicate(timeout=10)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("the output cannot be written: No space left", errors)

    def test_usage(self):
        for arguments, says in ((["-n", "0", "true"], "run: --ranks 0: expected a number of ranks, 1 to 4096"), (["-n", "2"], "run: nothing: expected a program"),
                                (["true"], "neither -n nor --hosts: expected how many ranks"), (["-n", "1", "--hosts", "a", "true"], "-n and --hosts: expected one of them"),
                                (["--hosts", "a:0", "true"], "--hosts a:0: expected hosts like"), (["--hosts", "-oX", "true"], "--hosts -oX: expected hosts"),
                                (["--hosts", "a,,b", "true"], "expected hosts"), (["-n", "1", "--grace", "x", "true"], "--grace x: expected seconds"),
                                (["-n", "1", "--launcher", "rsh", "true"], "--launcher rsh: expected ssh or srun"), (["--bogus"], "commctl: run: unrecognized option")):
            code, _, errors = run(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(says, errors)
        self.assertIn("commctl run -n RANKS", run("--help")[1])
        self.assertEqual(run("-n", 1, "--no-label", *shell('echo "$1"', "--help"))[1], "--help\n")


class WithCommd(StandaloneTest):
    def test_ranks_find_each_other(self):
        """The ranks need only comm_init_env. Two runs at the same time do not join each other."""
        runs = [start("-n", 4, "--no-label", "--", sys.executable, "-c", SUM, environment={"COMMD_SOCKET": self.cluster.socket("solo")}) for _ in range(2)]
        for process in runs:
            output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output), (0, "sum 10 of 4 0\n" * 4), errors)

    def test_the_option_socket(self):
        done = subprocess.run([COMMCTL, "--socket", self.cluster.socket("solo"), "run", "-n", "2", "--no-label", "--", sys.executable, "-c", SUM],
                              capture_output=True, text=True, timeout=60, env={key: value for key, value in os.environ.items() if key != "COMMD_SOCKET"})
        self.assertEqual((done.returncode, done.stdout), (0, "sum 3 of 2 0\n" * 2), done.stderr)

    def test_without_a_launcher(self):
        environment = {key: value for key, value in self.cluster.environment("solo").items() if key not in ("RANK", "WORLD_SIZE", "SLURM_PROCID")}
        done = subprocess.run([sys.executable, "-c", SUM], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("comm_init_env: no launcher has set this process's rank and size", done.stderr)


# Joins on the GPU of its local rank, and waits until the test has looked.
ON_GPU = """
import ctypes, sys
sys.path.insert(0, %r)
from cluster import Library
class EnvOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("name", ctypes.c_char_p), ("init", ctypes.c_void_p)]
library = Library()
result, client = library.open()
comm = ctypes.c_void_p()
options = EnvOptions(ctypes.sizeof(EnvOptions), -2, b"gpus", None)
result = result or library.comm_init_env(client, ctypes.byref(options), ctypes.byref(comm))
print(library.error() if result else "joined", flush=True)
if not result:
    open(sys.argv[1]).read()
    result = library.comm_barrier(comm, None)
    library.comm_destroy(comm)
library.comm_client_close(client)
sys.exit(result)
""" % str(pathlib.Path(__file__).parent)


class WithGpus(StandaloneTest):
    gpus = 2

    def test_the_gpu_of_the_local_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(folder + "/gate")
            process = start("-n", 2, "--no-label", "--", sys.executable, "-c", ON_GPU, folder + "/gate", environment=self.cluster.environment("solo"))
            self.assertEqual([process.stdout.readline() for _ in range(2)], ["joined\n"] * 2)
            gpus = self.cluster.json("solo", "gpus")["gpus"]
            self.assertEqual([[(comm["name"].startswith("commctl:"), comm["ranks"]) for comm in gpu["comms"]] for gpu in gpus], [[(True, 1)]] * 2)
            with open(folder + "/gate", "w"):
                time.sleep(0.2)
            process.communicate(timeout=20)
            self.assertEqual(process.returncode, 0)

    def test_no_such_gpu(self):
        code, output, _ = run("-n", 3, "--no-label", *shell('[ $COMMD_RANK = 2 ] || exit 0; exec "$@"', sys.executable, "-c", ON_GPU),
                              environment=self.cluster.environment("solo"))
        self.assertNotEqual(code, 0)
        self.assertIn("device 2: this process sees 2 GPUs", output)


# Stands for ssh and srun. It records how it was called. As sshd does, it runs the command in a shell, with a separate environment.
FAKE = """#!/bin/sh
echo "$0 $*" >>"$FAKE_FOLDER/calls"
case $0 in
*ssh) while [ $# -gt 2 ]; do shift; done; host=$1; shift ;;
*) for each; do case $each in --nodelist=*) host=${each#*=} ;; esac; done; while [ $# -gt 1 ]; do shift; done ;;
esac
[ "$host" = lost ] && { echo "no route to host" >&2; exit 255; }
exec env -i PATH="$PATH" FAKE_FOLDER="$FAKE_FOLDER" HOST="$host" COMMD_SOCKET="$FAKE_FOLDER/$host.sock" sh -c "$1"
"""


class Hosts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="commd-test-")
        self.addCleanup(self.folder.cleanup)
        self.fake(self.folder.name)

    def fake(self, folder):
        for name in ("ssh", "srun"):
            path = pathlib.Path(self.folder.name) / name
            path.write_text(FAKE)
            path.chmod(0o755)
        self.environment = {"PATH": f"{self.folder.name}:{os.environ['PATH']}", "FAKE_FOLDER": str(folder)}
        os.environ.pop("COMMD_SOCKET", None)

    def test_ranks_on_hosts(self):
        for launcher in ("ssh", "srun"):
            code, output, errors = run("--hosts", "alpha:2,user@beta", "--launcher", launcher, "--env", "EXTRA=it's", "--env", "GIVEN",
                                       *shell('echo $HOST $COMMD_RANK/$COMMD_SIZE $COMMD_LOCAL_RANK/$COMMD_LOCAL_SIZE "$EXTRA" $GIVEN $PWD "$1"', "an 'argument' $x"),
                                       environment={**self.environment, "GIVEN": "7"})
            rest = f"it's 7 {os.getcwd()} an 'argument' $x"
            self.assertEqual((code, sorted(output.splitlines())),
                             (0, [f"[0] alpha 0/3 0/2 {rest}", f"[1] alpha 1/3 1/2 {rest}", f"[2] user@beta 2/3 0/1 {rest}"]), errors)
        calls = (pathlib.Path(self.folder.name) / "calls").read_text()
        self.assertIn("BatchMode=yes", calls)
        self.assertIn("--nodelist=alpha", calls)

    def test_one_job(self):
        code, output, _ = run("--hosts", "a:2,b:2", "--no-label", *shell("echo $COMMD_JOB"), environment=self.environment)
        self.assertEqual((code, len(output.split()), len(set(output.split()))), (0, 4, 1))

    def test_a_failure_ends_all_hosts(self):
        code, output, errors = run("--hosts", "a:2,b:2", *shell('if [ $COMMD_RANK = 3 ]; then sleep 0.5; exit 9; fi; trap "echo ended; exit 0" TERM; sleep 60 & wait'),
                                   environment=self.environment)
        self.assertEqual(code, 9, errors)
        self.assertEqual(sorted(output.splitlines()), ["[0] ended", "[1] ended", "[2] ended"])
        self.assertIn("rank 3 ended with exit code 9", errors)
        self.assertIn("host b ended with exit code 9; ending the others", errors)

    def test_a_host_that_cannot_be_reached(self):
        code, _, errors = run("--hosts", "a:2,lost", *shell("sleep 60"), environment=self.environment)
        self.assertEqual(code, 255)
        self.assertIn("no route to host", errors)
        self.assertIn("host lost ended with exit code 255; ending the others", errors)

    def test_signals_and_the_end_of_commctl(self):
        for end in ("interrupt", "kill"):
            process = start("--hosts", "a:2,b", "--no-label", *shell("echo $$; exec sleep 60"), environment=self.environment)
            pids = [int(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
            process.communicate(timeout=10)
            if end == "interrupt":
                self.assertEqual(process.returncode, 130)
            self.assertEqual(wait_gone(pids, 8), [], end)

    def test_two_nodes(self):
        with Cluster("ab") as cluster:
            self.fake(cluster.folder)
            code, output, errors = run("--hosts", "a:2,b:2", "--no-label", "--env", f"COMMD_BUILD={BUILD}", "--", sys.executable, "-c", SUM,
                                       environment=self.environment, timeout=60)
            self.assertEqual((code, output), (0, "sum 10 of 4 0\n" * 4), errors)


if __name__ == "__main__":
    unittest.main()
