"""The place for attacks. It has two or three nodes, a well-behaved pair of ranks that run operations on them, a newcomer that connects again and
again, and the attack."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from cluster import Cluster  # noqa: E402
from failure_case import read_until  # noqa: E402
from pair import Samples  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
HOSTILE = "c"  # the node that lies, in arenas that have one
ATTACKER, PAIR, NEWCOMER = 40001, 40101, 40201  # user ids; these users need not exist
END_S = 30
LOOK_S = 0.2
ATTACKER_BYTES, COMMD_BYTES = 100 << 20, 400 << 20
FREEZE_S = 1.5


class Outcome:
    """What was measured during one attack, or during its control."""

    def __init__(self):
        self.counts, self.texts, self.errors = {}, {}, []
        self.took_s = []
        self.newcomer_s, self.newcomer_failure = [], ""
        self.grown_mib = 0.0
        self.lost = ""  # what the well-behaved programs lost: a daemon died, or an operation failed

    @staticmethod
    def percentile(of, share):
        return sorted(of)[min(len(of) - 1, int(share * len(of)))] if of else float("inf")

    @property
    def p50_ms(self):
        return 1e3 * self.percentile(self.took_s, 0.5)

    @property
    def p99_ms(self):
        return 1e3 * self.percentile(self.took_s, 0.99)

    @property
    def longest_ms(self):
        return 1e3 * max(self.took_s, default=float("inf"))

    @property
    def newcomer_ms(self):
        return 1e3 * self.percentile(self.newcomer_s, 0.5)


def private_mib(pid):
    """Returns the process's own memory. Memory that it maps of its clients does not count: it belongs to them."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+)", text, re.M)
    return int(found.group(1)) / 1024 if found else 0.0  # no such line: the process has just ended


class Watch(threading.Thread):
    """Measures the most private memory that a process has from the start to end()."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.going = pid, True
        self.before = self.most = private_mib(pid)
        self.start()

    def run(self):
        while self.going:
            try:
                self.most = max(self.most, private_mib(self.pid))
            except OSError:
                return
            time.sleep(LOOK_S)

    def end(self):
        self.going = False
        self.join()
        return self.most - self.before


class Groups:
    """Cgroups of one controller, of version 1 or 2. On a machine without them, nothing is limited."""

    MEMORY = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
    PROCESSORS = (("/sys/fs/cgroup/cpu", "cpu.shares"), ("/sys/fs/cgroup", "cpu.weight"))

    def __init__(self, name, roots):
        self.made, self.name = [], name
        self.root = next(((pathlib.Path(root), limit) for root, limit in roots if self.works(pathlib.Path(root), limit)), None)

    def works(self, root, limit):
        try:
            place = root / f"{self.name}-probe"
            place.mkdir()
            works = (place / limit).exists()
            place.rmdir()
            return works
        except OSError:
            return False

    def place(self, name, most=None):
        """Returns a cgroup, and makes it if it does not exist. most: its limit; None: the kernel's default."""
        if self.root is None:
            return None
        root, limit = self.root
        place = root / f"{self.name}-{name}"
        if not place.exists():
            place.mkdir()
            self.made.append(place)
            if most is not None:
                (place / limit).write_text(str(most))
        return place

    def own(self):
        """Returns the cgroup of this process."""
        if self.root is None:
            return None
        name = "cpu" if self.root[0].name == "cpu" else ""
        found = re.search(rf"^\d+:{name}[^:]*:/(.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        return self.root[0] / found.group(1) if found else self.root[0]

    def move(self, place, pid):
        if place is not None:
            (place / "cgroup.procs").write_text(str(pid))

    def close(self):
        for place in self.made:
            for _ in range(100):
                try:
                    place.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


class Arena:
    """Context manager. Local attacks happen on node a. restore() replaces a daemon that died, or a pair that failed."""

    def __init__(self, nodes="ab", settings="", build=None, pause_s=0):
        """pause_s: how long the pair leaves the processors to others after each operation."""
        options = {} if build is None else {"build": build}
        self.cluster = Cluster(nodes, 'log_level = "warning";\n' + settings, start=False, **options)
        self.pair, self.runs, self.pause_s = [], 0, pause_s
        name = f"commd-attacks-{self.cluster.folder.name[-8:]}"
        self.groups = Groups(name, Groups.MEMORY)
        # Daemons and users have a processor cgroup each, as a service and its users have slices. So neither side gets more time by having more
        # processes.
        self.processors = Groups(name, Groups.PROCESSORS)
        self.begin_in = self.processors.own()
        self.processors.move(self.processors.place("users"), os.getpid())
        self.lies = self.cluster.folder / "lies"
        self.log_before = 0  # length of node a's log before this attack
        if HOSTILE in self.cluster.names:
            self.cluster.programs[HOSTILE] = self.cluster.build / "tests/attacks/hostile_commd"
            self.cluster.daemon_environment["COMMD_HOSTILE"] = str(self.lies)
        try:
            self.cluster.folder.chmod(0o755)
            for node in self.cluster.names:
                self.start_daemon(node)
            self.cluster.wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.end_pair()
        finally:
            self.close()

    def close(self):
        self.cluster.close()
        self.groups.close()
        self.processors.move(self.begin_in, os.getpid())
        self.processors.close()

    def start_daemon(self, node):
        self.processors.move(self.processors.place("daemons"), self.cluster.start(node).pid)

    def program(self, name, *arguments):
        """Starts a program of this folder as root. The program gives up root itself."""
        process = subprocess.Popen([sys.executable, "-S", "-B", str(FOLDER / name), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.cluster.processes.append(process)
        return process

    def start_pair(self):
        self.runs += 1
        path = self.cluster.folder / f"samples-{self.runs}"
        Samples.make(path)
        self.pair = [self.program("pair.py", self.cluster.socket(node), PAIR, f"pair-{self.runs}", rank, path, self.pause_s) for rank, node in enumerate("ab")]
        for process in self.pair:
            read_until(process, "READY")
        self.samples = Samples(path)

    def end_pair(self):
        """Ends the pair. Returns what its ranks say, except OK."""
        said = []
        for process in self.pair:
            process.stdin.close()
        for process in self.pair:
            process.stdin = None
            try:
                output = process.communicate(timeout=END_S)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + "an operation did not end"
            said.append(output.strip())
        self.pair = []
        # One rank ends first, and the other loses its partner. That alone does not count as a loss.
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text != "OK" and not ("OK" in said and "LOST" in text))

    def restore(self):
        """Starts daemons that died again, and sees that a pair works. If a node has lied, restarts all daemons: each offence holds that node off
        for longer."""
        if self.runs and HOSTILE in self.cluster.names:
            self.end_pair()
            for daemon in self.cluster.daemons.values():
                daemon.kill()
                daemon.wait()
            self.lies.write_text("")
        for node, daemon in list(self.cluster.daemons.items()):
            if daemon.poll() is not None:
                self.start_daemon(node)
            elif HOSTILE in self.cluster.names:
                daemon.send_signal(signal.SIGHUP)  # ends the time for which the daemon refuses node c
        self.cluster.wait_ready()
        self.log_before = len(self.cluster.log("a"))
        if not self.pair or any(process.poll() is not None for process in self.pair):
            self.end_pair()
            self.start_pair()

    def run(self, start_attack, seconds, freeze=False):
        """start_attack(seconds) returns the processes of the attack. Each of them prints what commd answered. freeze: node b is stopped for
        FREEZE_S."""
        self.restore()
        outcome = Outcome()
        watches = [Watch(self.cluster.daemons[node].pid) for node in "ab"]
        first = self.samples.count()
        began_s = time.monotonic()
        processes = start_attack(seconds)
        newcomer = self.program("bystander.py", self.cluster.socket("a"), NEWCOMER, seconds)
        if freeze:
            self.freeze(0.3, FREEZE_S)
        self.finish(outcome, processes, newcomer, seconds)
        self.await_operations(outcome)
        outcome.grown_mib = max(watch.end() for watch in watches)
        outcome.took_s = [took for began, took in self.samples.since(first) if began >= began_s]
        return outcome

    def freeze(self, after_s, for_s):
        time.sleep(after_s)
        self.cluster.daemons["b"].send_signal(signal.SIGSTOP)
        time.sleep(for_s)
        self.cluster.daemons["b"].send_signal(signal.SIGCONT)

    def finish(self, outcome, processes, newcomer, seconds):
        for process in processes:
            try:
                output, errors = process.communicate(timeout=seconds + END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
            for line in output.splitlines():
                if line.startswith("{"):
                    said = json.loads(line)
                    outcome.texts.update(said["texts"])
                    for name, count in said["counts"].items():
                        outcome.counts[name] = outcome.counts.get(name, 0) + count
            if errors.strip():
                outcome.errors.append(errors.strip()[-1000:])
        try:
            output, errors = newcomer.communicate(timeout=seconds + END_S)
        except subprocess.TimeoutExpired:
            newcomer.kill()
            output, errors = newcomer.communicate()[0], "it did not end"
        said = json.loads(output) if output.startswith("{") else {"took": [], "failure": errors[-300:]}
        outcome.newcomer_s, outcome.newcomer_failure = said["took"], said.get("failure", "")

    def await_operations(self, outcome):
        """Checks that the pair goes on: operations that begin after the attack must end well."""
        count, end_s = self.samples.count(), time.monotonic() + END_S
        while self.samples.count() < count + 3 and time.monotonic() < end_s and all(process.poll() is None for process in self.pair):
            time.sleep(0.01)
        lost = [f"commd on {node} ended with {daemon.returncode}: {self.cluster.log(node)[-400:]}"
                for node, daemon in self.cluster.daemons.items() if daemon.poll() is not None and node != HOSTILE]
        if self.samples.count() < count + 3:
            lost.append("the pair: " + self.end_pair())
        outcome.lost = "; ".join(lost)

    def local(self, name, processes, limited=False):
        """Returns a function that starts an attack of this folder's modules on node a, in that many processes.

        limited: the attack runs in a memory cgroup of ATTACKER_BYTES, and commd in one of COMMD_BYTES, if the machine has such cgroups.
        """
        def start(seconds):
            place = self.groups.place("attacker", ATTACKER_BYTES) if limited else None
            if limited:
                self.groups.move(self.groups.place("commd", COMMD_BYTES), self.cluster.daemons["a"].pid)
            started = [self.program("local_attack.py", self.cluster.socket("a"), ATTACKER, name, seconds, index) for index in range(processes)]
            for process in started:
                self.groups.move(place, process.pid)
            return started
        return start

    def node(self, lie, kind, nodes="a" + HOSTILE, patience=0):
        """Returns a function that makes node c lie, and starts a user's job on the given nodes."""
        def start(seconds):
            self.lies.write_text(lie)
            return [self.program("job.py", self.cluster.socket(node), ATTACKER, rank, seconds, kind, patience) for rank, node in enumerate(nodes)]
        return start

    def known_of_hostile(self):
        """Returns what node a says of node c, and node a's log since the attack began."""
        rows = self.cluster.json("a", "nodes")["nodes"]
        return "\n".join([row["last_error"] for row in rows if row["name"] == HOSTILE] + [self.cluster.log("a")[self.log_before:]])

    def burners(self, processes):
        """Returns a function that starts processes which only use processor time. This is the control: any attack on a shared machine costs as
        much."""
        return lambda seconds: [self.burner(seconds) for _ in range(processes)]

    def beside_burner(self, start_others):
        """The same as start_others, with one more burner in the daemons' cgroup."""
        def start(seconds):
            burner = self.burner(seconds)
            self.processors.move(self.processors.place("daemons"), burner.pid)
            return [*start_others(seconds), burner]
        return start

    def burner(self, seconds):
        program = "import os, sys, time\nos.setuid(int(sys.argv[1]))\nend = time.monotonic() + float(sys.argv[2])\nwhile time.monotonic() < end: pass"
        started = subprocess.Popen([sys.executable, "-c", program, str(ATTACKER), str(seconds)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.cluster.processes.append(started)
        return started
