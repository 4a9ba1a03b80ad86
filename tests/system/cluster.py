"""Runs real daemons and clients for the system tests. If the user is root and may make network namespaces, each node has its own. Otherwise all
nodes are on loopback. close() removes everything that a Cluster has made: processes, namespaces and files.
"""
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from client_library import Library  # noqa: F401 (for those that import it from here)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("COMMD_BUILD", "build/release")).resolve()
READY_TIMEOUT_S = 20
GPU_FOLDER_BYTES = 512 << 20
RELAY_ADDRESS = "10.97.0.250"  # of the bridge between the namespaces, if there are relays


def run(*command, check=True, **options):
    return subprocess.run([str(part) for part in command], check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def cpu_s(pid):
    """Returns the processor time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ip(namespace, *commands):
    """Runs commands of ip in a network namespace, all of them by one process."""
    subprocess.run(["ip", "-n", namespace, "-batch", "-"], check=True, capture_output=True, text=True, input="\n".join(commands))


@functools.cache
def namespaces_work():
    """Returns whether this user may make network namespaces and join them by veth."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"commd-probe-{os.getpid()}"
    made = run("ip", "netns", "add", name, check=False).returncode == 0
    works = made and run("ip", "-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1", check=False).returncode == 0
    works = works and run("ip", "netns", "exec", name, "true", check=False).returncode == 0  # this fails in some containers
    if made:
        run("ip", "netns", "del", name, check=False)
    return works


def memory_folder(folder):
    """Returns a folder in memory for the GPUs' doubles: commd does not accept files on a disk as memory. Skips the test if there is none."""
    if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > GPU_FOLDER_BYTES:
        return pathlib.Path(tempfile.mkdtemp(prefix="commd-test-gpus-", dir="/dev/shm"))
    mounted = folder / "gpus"
    mounted.mkdir()
    if run("stat", "-f", "-c", "%T", mounted).stdout.strip() != "tmpfs":
        done = run("mount", "-t", "tmpfs", "-o", f"size={2 * GPU_FOLDER_BYTES}", "commd-test", mounted, check=False)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise unittest.SkipTest(f"/dev/shm has less than {GPU_FOLDER_BYTES >> 20} MiB free, and no tmpfs may be mounted: {done.stderr.strip()}")
    return mounted


class Cluster:
    """`names` are the names of the nodes. All certificates are issued by one authority unless `issue` says otherwise."""

    next_port = 17400 + os.getpid() % 997 * 32
    # For checks on a machine with a GPU. Then all clusters of the process share the machine's GPUs, and use loopback. A test that needs a double is
    # skipped.
    real_gpus = False
    daemon_command = []  # words put in front of commd's command line

    def __init__(self, names, settings="", namespaces=None, start=True, relays=None, rails=1, client_environment=None, gpus=0,
                 daemon_environment=None, build=BUILD, cards=1, processors=None):
        """relays: {(a, b): (loss, delay_ms)}. The traffic between these two nodes passes a relay with this loss and delay. There is one relay for
        each of `rails`. The nodes are on loopback, unless `namespaces` is True.

        gpus: how many doubles of GPUs (tests/cuda_double) each node has.

        build: the folder with commd and commctl.

        cards: how many network cards each node has in its namespace. Card 1 is veth1 with an address in 10.98.0.0/24 on a bridge of its own, and so on.
        The configuration names them as rail_addresses.

        processors: {name: the processors on which that node's processes may run}, as `taskset -c` takes them. By default, on all.
        """
        self._need_doubles(client_environment, daemon_environment)
        self.gpus = gpus
        self.build = build
        self.cards = cards
        self.processors = processors or {}
        self.programs = {}  # by node: a program to run instead of commd
        self.client_environment = client_environment or {}
        self.daemon_environment = daemon_environment or {}
        self.relays = relays or {}
        self.rails = rails
        self.relay_processes = {}
        namespaces = False if self.relays and namespaces is None else namespaces
        self.names = list(names)
        self.settings = settings
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-test-"))
        self.gpu_folder = memory_folder(self.folder) if gpus > 0 and not self.real_gpus else self.folder
        self.processes = []
        self.daemons = {}
        self.seen = {}
        self.namespaces = {}
        namespaces = False if self.real_gpus else namespaces
        self.use_namespaces = namespaces_work() if namespaces is None else namespaces
        try:
            self._make_network()
            commctl = self.build / "commctl"
            run(commctl, "pki", "init", "--dir", self.folder / "pki")
            for name in self.names:
                run(commctl, "pki", "issue", name, "--dir", self.folder / "pki")
            for name in self.names:
                self.write_config(name)
            for number, (pair, conditions) in enumerate(self.relays.items()):
                self._start_relay(pair, *conditions, seed=number)
            if start:
                for name in self.names:
                    self.start(name)
                self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _need_doubles(self, *environments):
        for name in (name for environment in environments for name in environment or {}):
            if self.real_gpus and name.startswith(("CUDA_DOUBLE_", "COMMD_CUDA_LIBRARY", "COMMD_NCCL_LIBRARY")):
                raise unittest.SkipTest(f"it needs a double of a GPU ({name})")

    def _make_network(self):
        self.addresses = {}
        if not self.use_namespaces:
            for name in self.names:
                self.addresses[name] = f"127.0.0.1:{Cluster.next_port}"
                Cluster.next_port += 4  # the next ports are for its rails
            return
        tag = f"commd-{os.getpid()}-{self.folder.name[-6:]}"
        hub = f"{tag}-hub"
        run("ip", "netns", "add", hub)
        self.namespaces["*hub"] = hub
        ip(hub, "link add bridge0 type bridge", "link set bridge0 up")
        for index, name in enumerate(self.names):
            namespace = f"{tag}-{name}"
            run("ip", "netns", "add", namespace)
            self.namespaces[name] = namespace
            ip(namespace, f"link add veth0 type veth peer name port{index} netns {hub}", "link set lo up", "link set veth0 up",
               f"addr add 10.97.0.{index + 1}/24 dev veth0")
            self.addresses[name] = f"10.97.0.{index + 1}:7400"
        ip(hub, *(f"link set port{index} master bridge0 up" for index in range(len(self.names))))
        if self.relays:
            ip(hub, "link set lo up", f"addr add {RELAY_ADDRESS}/24 dev bridge0")
        for card in range(1, self.cards):
            self._make_card(hub, card)

    def card_address(self, name, card):
        return f"10.{97 + card}.0.{self.names.index(name) + 1}"

    def _make_card(self, hub, card):
        ip(hub, f"link add bridge{card} type bridge", f"link set bridge{card} up")
        for index, name in enumerate(self.names):
            ip(self.namespaces[name], f"link add veth{card} type veth peer name port{index}-{card} netns {hub}", f"link set veth{card} up",
               f"addr add {self.card_address(name, card)}/24 dev veth{card}")
        ip(hub, *(f"link set port{index}-{card} master bridge{card} up" for index in range(len(self.names))))

    def set_card(self, name, card, state):
        """state: "up" or "down". Takes the port off the bridge, so that the node itself sees nothing but silence."""
        port = f"port{self.names.index(name)}" + (f"-{card}" if card else "")
        run("ip", "-n", self.namespaces["*hub"], "link", "set", port, *(["master", f"bridge{card}"] if state == "up" else ["nomaster"]))

    def card_bytes(self, name, card):
        """How many bytes the node has sent through that card."""
        return int(self.read_in_node(name, f"/sys/class/net/veth{card}/statistics/tx_bytes"))

    def rail_addresses(self, name):
        return ", ".join(self.card_address(name, card) for card in range(1, self.cards))

    def _start_relay(self, pair, loss, delay_ms, seed):
        """Either node may open the connection. So each node's configuration has a relay's address in place of the other node's."""
        for dialler, other in (pair, pair[::-1]):
            self._start_relay_to(dialler, other, loss, delay_ms, seed)

    def _start_relay_to(self, dialler, other, loss, delay_ms, seed):
        port = Cluster.next_port
        Cluster.next_port += self.rails
        host, first = self.addresses[other].rsplit(":", 1)
        ours = RELAY_ADDRESS if self.use_namespaces else "127.0.0.1"
        for rail in range(self.rails):
            relay = subprocess.Popen(self.in_node("*hub", BUILD / "tests/system/relay", f"{ours}:{port + rail}", f"{host}:{int(first) + rail}", loss, delay_ms, seed),
                                     stdin=subprocess.DEVNULL)
            self.processes.append(relay)
            self.relay_processes[(dialler, other, rail)] = relay
        self.seen[(dialler, other)] = f"{ours}:{port}"
        self.write_config(dialler)

    def cut_rail(self, a, b, rail, cut=True):
        """With `cut`, that rail carries nothing any more, and neither node is told. Without it, the rail delivers what waited, and carries
        traffic again."""
        for dialler, other in ((a, b), (b, a)):
            self.relay_processes[(dialler, other, rail)].send_signal(signal.SIGSTOP if cut else signal.SIGCONT)

    def rebind(self, name):
        """All others see this node at other ports, as if a NAT had lost its table. They cannot dial it there. Rebinding it once more ends that."""
        for (dialler, other, _), relay in self.relay_processes.items():
            if name in (dialler, other):
                relay.send_signal(signal.SIGUSR1 if name == dialler else signal.SIGUSR2)

    def config_path(self, name):
        return self.folder / f"{name}.conf"

    def socket(self, name):
        return str(self.folder / f"{name}.sock")

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self, most_characters=3000):
        """Returns the end of each node's log, for the text of a failure."""
        return "\n".join(f"--- {name}\n{self.log(name)[-most_characters:]}" for name in self.names)

    def wait_logged(self, name, text, is_pattern=False):
        """Waits until the log has the text, or a match of the pattern. A thread writes it, so it comes a moment after what it tells."""
        pattern = text if is_pattern else re.escape(text)
        self.wait(lambda: re.search(pattern, self.log(name)), f"the log of node {name} has {text!r}")

    def tuning_setting(self):
        """Nothing is measured, and nothing is written to the machine's /var/lib, unless a test says how."""
        return 'gpu_tuning = "off";\n' if self.gpus > 0 and "gpu_tuning" not in self.settings else ""

    def write_config(self, name, certificate=None, key=None, authority=None, node_name=None):
        pki = self.folder / "pki"
        rails = {each: f' rail_addresses = "{self.rail_addresses(each)}";' if self.cards > 1 else "" for each in self.names}
        nodes = ", ".join(f'{{ name = "{each}"; address = "{self.seen.get((name, each), self.addresses[each])}";{rails[each]} }}' for each in self.names)
        self.config_path(name).write_text(
            f'node_name = "{node_name or name}";\ncluster_name = "test";\nnodes = ( {nodes} );\n'
            f'certificate = "{certificate or pki / (name + ".crt")}";\nkey = "{key or pki / (name + ".key")}";\n'
            f'authority = "{authority or pki / "ca.crt"}";\nsocket_path = "{self.socket(name)}";\n{self.tuning_setting()}{self.settings}\n')

    def in_node(self, name, *command):
        prefix = ["ip", "netns", "exec", self.namespaces[name]] if self.use_namespaces else []
        if name in self.processors:
            prefix += ["taskset", "-c", self.processors[name]]
        return [str(part) for part in [*prefix, *command]]

    def read_in_node(self, name, path):
        return subprocess.run(self.in_node(name, "cat", path), check=True, stdout=subprocess.PIPE, text=True).stdout

    def start(self, name, *options, environment=None):
        self._need_doubles(environment)
        log = open(self.folder / f"{name}.log", "ab")
        # NCCL's calls can block, and must not be made on the loop's thread.
        doubles = {"CUDA_DOUBLE_NCCL_OFF_MAIN": "1"} if self.gpus > 0 and not self.real_gpus else {}
        process = subprocess.Popen(self.in_node(name, *self.daemon_command, self.programs.get(name, self.build / "commd"), "--config", self.config_path(name), *options),
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(self.environment(name), **doubles, **self.daemon_environment, **(environment or {})))
        log.close()
        self.daemons[name] = process
        self.processes.append(process)
        return process

    def environment(self, name):
        environment = dict(os.environ, COMMD_SOCKET=self.socket(name), PYTHONDONTWRITEBYTECODE="1")
        if self.gpus > 0 and not self.real_gpus:
            machine = self.gpu_folder / f"{name}-gpus"
            machine.mkdir(exist_ok=True)
            environment.update(COMMD_CUDA_LIBRARY=str(BUILD / "tests/libcuda_double.so"), COMMD_NCCL_LIBRARY=str(BUILD / "tests/libnccl_double.so"),
                               CUDA_DOUBLE_FOLDER=str(machine), CUDA_DOUBLE_DEVICES=str(self.gpus))
        return environment

    def commctl(self, name, *arguments):
        return run(self.build / "commctl", "--socket", self.socket(name), *arguments, check=False)

    def json(self, name, *arguments):
        ended = self.commctl(name, "-f", "json", *arguments)
        if not ended.stdout:
            raise AssertionError(f"commctl {' '.join(arguments)} at {name}: exit code {ended.returncode}: {ended.stderr}\n{self.log(name)[-3000:]}")
        return json.loads(ended.stdout)

    def wait(self, condition, what, timeout_s=READY_TIMEOUT_S):
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self.logs()}")
            time.sleep(0.02)

    def wait_ready(self, names=None):
        """Waits until every node reports that all others are up."""
        for name in names or self.names:
            self.wait(lambda: self.commctl(name, "status").returncode == 0, f"node {name} ready")

    def wait_gpus_idle(self, names=None):
        """Waits until the nodes hold nothing on their GPUs for anybody."""
        for name in names or self.names:
            self.wait(lambda: all((gpu["memories"], gpu["memory_imported_bytes"], gpu["clients"], gpu["comms"], gpu["error"]) == (0, 0, [], [], "")
                                  for gpu in self.json(name, "gpus")["gpus"]), f"node {name} has let go of all memory", timeout_s=10)

    def client(self, name, *command):
        """Starts a client process on a node, and collects its output."""
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(self.environment(name), **self.client_environment))
        self.processes.append(process)
        return process

    def rank(self, name, comm, rank, size, mode, *options):
        # -S: it needs no packages, and to look for them would take half of the time in which it starts.
        process = self.client(name, sys.executable, "-S", ROOT / "tests/system/rank.py", comm, rank, size, mode, *options)
        process.cluster = self
        return process

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            try:
                process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        for namespace in self.namespaces.values():
            run("ip", "netns", "del", namespace, check=False)
        if os.path.ismount(self.gpu_folder):
            run("umount", "-l", self.gpu_folder, check=False)
        shutil.rmtree(self.gpu_folder, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class StandaloneTest(unittest.TestCase):
    """One daemon for all tests of a class. Each test must find it running, whatever the earlier tests did."""

    gpus = 0  # the number of doubles of GPUs

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["solo"], namespaces=False, start=False, gpus=cls.gpus)
        cls.cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cls.cluster.socket("solo")}";\n{cls.cluster.tuning_setting()}')
        cls.cluster.start("solo", "--standalone")
        cls.cluster.wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
