#!/usr/bin/env python3
"""What an operator sees: metrics of a real pair of nodes, the dashboard and alert rules, commctl health and events."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from cluster import BUILD, ROOT, Cluster, StandaloneTest, run

WAITS = True
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
DASHBOARD = ROOT / "systemd/commd-dashboard.json"
ALERTS = ROOT / "systemd/commd-alerts.yml"
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*)\})? ([0-9.]+|[+]Inf)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"]}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def scrape(path, accept=OPEN_METRICS):
    with contextlib.closing(UnixConnection(path)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return text


def parse(text):
    """Parses OpenMetrics. Returns {(name, labels): value}; raises AssertionError for what the format forbids."""
    assert text.endswith("# EOF\n"), text[-100:]
    samples, family, types, seen_of_family, last_labels = {}, None, {}, set(), None
    for line in text[:-len("# EOF\n")].splitlines():
        if line.startswith("# "):
            _, what, name, value = line.split(" ", 3)
            if what == "HELP":
                assert name not in seen_of_family, f"{name} twice"
                seen_of_family.add(name)
                family = name
            assert name == family, line
            if what == "TYPE":
                types[name] = value
            elif what == "UNIT":
                assert name.endswith("_" + value), line
            else:
                assert what == "HELP" and value, line
            continue
        match = SAMPLE.match(line)
        assert match, line
        name, labels, value = match.groups()
        assert name in [family + suffix for suffix in SUFFIXES[types[family]]], f"{line} in {family}"
        labels = tuple(LABEL.findall(labels or ""))
        assert len({label for label, _ in labels}) == len(labels), line
        assert (name, labels) not in samples, f"{line} twice"
        samples[name, labels] = float(value)
        if name.endswith("_bucket"):
            before = {"": name, **dict(labels)}
            le = before.pop("le")
            if last_labels and last_labels[0] == before:
                assert float(value) >= last_labels[2] and (le == "+Inf" or float(le) > last_labels[1]), line
            last_labels = before, float(le.replace("+Inf", "inf")), float(value)
    return samples


def value(samples, name, **labels):
    """Returns the sum of the samples with these labels."""
    found = [number for (each, pairs), number in samples.items() if each == name and labels.items() <= dict(pairs).items()]
    assert found, f"no {name} with {labels}"
    return sum(found)


class Pair(unittest.TestCase):
    """Two nodes, two ranks on each."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["a", "b"], start=False, gpus=1)
        cls.addClassCleanup(cls.cluster.close)
        for name in "ab":
            cls.cluster.start(name, "--set", f"metrics={cls.place(name)}")
        cls.cluster.wait_ready()

    @classmethod
    def place(cls, name):
        return str(cls.cluster.folder / f"{name}-metrics.sock")

    def samples(self, name):
        return parse(scrape(self.place(name)))

    def all_reduce(self, comm, steps, count):
        ranks = [self.cluster.rank(node, comm, rank, 4, "loop", f"steps={steps}", f"count={count}") for rank, node in enumerate("aabb")]
        for rank in ranks:
            output, errors = rank.communicate(timeout=60)
            self.assertEqual(rank.returncode, 0, output + errors)

    def test_counters_add_up(self):
        before = {name: self.samples(name) for name in "ab"}
        self.all_reduce("sums", 20, 100000)
        after = {name: self.samples(name) for name in "ab"}
        labels = {"kind": "all_reduce", "size_max_bytes": "1048576"}

        def difference(node, name, **more):
            old = sum(number for (each, pairs), number in before[node].items() if each == name and {**more}.items() <= dict(pairs).items())
            return value(after[node], name, **more) - old

        for node, other in ("ab", "ba"):
            self.assertEqual(difference(node, "commd_operations_total", result="OK", **labels), 20)
            self.assertEqual(difference(node, "commd_operation_bytes_total", **labels), 20 * 800000)
            self.assertEqual(difference(node, "commd_operation_duration_seconds_count", **labels), 20)
            self.assertEqual(difference(node, "commd_operation_duration_seconds_bucket", le="+Inf", **labels), 20)
            self.assertEqual(difference(node, "commd_operation_bandwidth_bytes_per_second_count", **labels), 20)
            seconds = difference(node, "commd_operation_duration_seconds_sum", **labels)
            self.assertTrue(0 < seconds < 60, seconds)
            # Two nodes exchange at least half the vector each way, and not many times more than it.
            for what in ("sent", "received"):
                moved = difference(node, f"commd_link_{what}_bytes_total", peer=other)
                self.assertTrue(20 * 400000 <= moved <= 20 * 3200000, moved)
                self.assertGreater(difference(node, f"commd_link_{what}_packets_total", peer=other), 0)
            self.assertEqual(difference(node, "commd_communicators_formed_total"), 1)
            self.assertEqual(value(after[node], "commd_operations_pending"), 0)
            self.assertEqual(value(after[node], "commd_node_up", peer=other), 1)
            self.assertGreater(value(after[node], "commd_link_round_trip_seconds", peer=other), 0)
            self.assertGreater(value(after[node], "commd_certificate_expiry_timestamp_seconds", node=node), time.time() + 86400)
            self.assertEqual(value(after[node], "commd_certificate_expiry_timestamp_seconds", node=other),
                             value(after[other], "commd_certificate_expiry_timestamp_seconds", node=other))
        # Each node received what the other sent, except for bytes under way and bytes that a network's relays add.
        sent, received = value(after["a"], "commd_link_sent_bytes_total", peer="b"), value(after["b"], "commd_link_received_bytes_total", peer="a")
        self.assertLess(abs(sent - received), 0.05 * sent + 100000)

    def test_messages(self):
        ranks = [self.cluster.rank(node, "messages", rank, 2, "messages", "sizes=1000,100000", "steps=5") for rank, node in enumerate("ab")]
        for rank in ranks:
            self.assertEqual(rank.wait(60), 0)
        samples = self.samples("a")
        for kind in ("send", "recv"):
            for size, of_class in ((1000, "4096"), (100000, "1048576")):
                self.assertEqual(value(samples, "commd_operations_total", kind=kind, size_max_bytes=of_class, result="OK"), 5)
                self.assertEqual(value(samples, "commd_operation_bytes_total", kind=kind, size_max_bytes=of_class), 5 * size)

    def test_a_failure(self):
        failed = value(self.samples("a"), "commd_communicators_failed_total")
        ranks = [self.cluster.rank(node, "late", rank, 2, "once" if rank == 0 else "idle", "op_timeout_ms=300", "seconds=30") for rank, node in enumerate("ab")]
        output, _ = ranks[0].communicate(timeout=30)
        self.assertIn("TIMED_OUT", output)
        self.assertEqual(value(self.samples("a"), "commd_operations_total", result="TIMED_OUT"), 1)
        ranks[1].kill()
        ranks[1].wait()
        self.assertGreaterEqual(value(self.samples("b"), "commd_communicators_failed_total"), failed)

    def test_names_are_for_administrators(self):
        idle = self.cluster.rank("a", "secret-project", 0, 1, "idle", "seconds=60")
        self.assertEqual(idle.stdout.readline().strip(), "FORMED")
        public = scrape(self.place("a"))
        self.assertEqual(re.findall(r"secret-project|[{,]uid=", public), [])
        done = self.cluster.commctl("a", "metrics", "--open-metrics")
        self.assertEqual(done.returncode, 0, done.stderr)
        private = parse(done.stdout)
        self.assertEqual(value(private, "commd_communicator_operations_total", communicator="secret-project", uid=str(os.geteuid())), 0)
        self.assertGreater(value(private, "commd_user_used", uid=str(os.geteuid()), kind="sessions"), 0)
        self.assertLessEqual({name for name, _ in parse(public)}, {name for name, _ in private})
        refused = run(BUILD / "commctl", "--socket", self.cluster.socket("a"), "--admin-socket", "/nonexistent", "metrics", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("only administrators", refused.stderr)
        idle.kill()
        idle.wait()

    def names(self):
        """Checks all samples that two busy nodes with GPUs and users show."""
        self.all_reduce("names", 3, 1000)
        rank = self.cluster.rank("a", "on-a-gpu", 0, 1, "loop", "steps=3", "device=0")
        self.assertEqual(rank.wait(60), 0)
        return {name for name, _ in self.samples("a")}

    def test_dashboard_and_alerts_name_what_exists(self):
        names = self.names() | {"up"}
        board = json.loads(DASHBOARD.read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
        expressions += [each["query"]["query"] for each in board["templating"]["list"] if isinstance(each["query"], dict)]
        rules = re.findall(r"^ +expr: (.*)$", ALERTS.read_text(), re.MULTILINE)
        self.assertGreater(len(expressions), 40)
        self.assertGreater(len(rules), 10)
        used = {name for text in expressions + rules for name in re.findall(r"\b(?:commd|process)_[a-z_]+\b", text)}
        self.assertGreater(len(used), 40)
        self.assertEqual(used - names, set())
        identities = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(set(identities)), len(identities))
        # A label that a rule or a title uses is one of its metric's.
        labels = {label for (_, pairs) in self.samples("a") for label, _ in pairs}
        self.assertLessEqual(set(re.findall(r"\$labels\.([a-z_]+)", ALERTS.read_text())), labels | {"instance"})

    def test_dashboard_and_alerts_miss_nothing(self):
        """A new metric must appear on the dashboard or in an alert rule, or be listed here."""
        elsewhere = {"commd_uptime_seconds", "commd_draining", "commd_log_lines_lost_total", "commd_communicators_formed_total", "commd_link_received_packets_total",
                     "commd_replies_queued", "commd_gpu_info", "commd_gpu_memory_bytes", "commd_datagrams_received_total", "commd_calls_refused_total",
                     "commd_operations_in_cells_total"}
        text = DASHBOARD.read_text() + ALERTS.read_text()
        missing = {name for name in self.names() if name not in text and not name.endswith(("_sum", "_count"))}
        self.assertEqual(missing - elsewhere, set())

    @unittest.skipIf(shutil.which("promtool") is None, "promtool is not installed (package prometheus)")
    def test_promtool(self):
        self.names()
        text = scrape(self.place("a"), "text/plain")
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        done = run("promtool", "check", "rules", ALERTS, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SUCCESS", done.stdout)

    def test_a_python_parser(self):
        try:
            from prometheus_client.openmetrics.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("python3-prometheus-client is not installed")
        self.names()
        families = list(text_string_to_metric_families(scrape(self.place("a"))))
        self.assertGreater(len(families), 40)

    def test_a_hostile_crowd_delays_nobody(self):
        """Connections that never read, send garbage or send nothing, while ranks run operations."""
        crowd = []
        for i in range(100):
            each = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            each.setblocking(False)
            try:
                each.connect(self.place("b"))
                each.send((b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"\xff" * 3000, b"G")[i % 3])
            except (BlockingIOError, ConnectionError):
                pass
            crowd.append(each)
        started = time.monotonic()
        self.all_reduce("crowded", 200, 1000)
        self.assertLess(time.monotonic() - started, 30)
        self.assertEqual(self.cluster.commctl("b", "status").returncode, 0)
        for each in crowd:
            each.close()
        self.cluster.wait(lambda: self.answers("b"), "a scraper has its turn again", timeout_s=30)

    def answers(self, name):
        try:
            return bool(scrape(self.place(name)))
        except OSError:
            return False


class Rails(unittest.TestCase):
    def test_each_rail_has_its_counters(self):
        with Cluster(["a", "b"], settings='rails = 2; bulk_links = "quic";', start=False) as cluster:
            place = {name: str(cluster.folder / f"{name}-metrics.sock") for name in "ab"}
            for name in "ab":
                cluster.start(name, "--set", f"metrics={place[name]}")
            cluster.wait_ready()
            ranks = [cluster.rank(name, "wide", rank, 2, "loop", "steps=3", "count=2000000") for rank, name in enumerate("ab")]
            for rank in ranks:
                self.assertEqual(rank.wait(120), 0)

            def rows():
                return {dict(labels)["rail"]: number for (name, labels), number in parse(scrape(place["a"])).items() if name == "commd_link_sent_bytes_total"}

            cluster.wait(lambda: min(rows().get("0", 0), rows().get("1", 0)) > 3 * 1000000, "both rails have carried slices")  # rail 1 tells a moment later
            self.assertEqual(set(rows()), {"0", "1"})
            samples = parse(scrape(place["a"]))
            self.assertGreater(value(samples, "commd_link_sent_packets_total", peer="b", rail="1"), 100)
            self.assertGreater(value(samples, "commd_link_received_packets_total", peer="b", rail="1"), 100)
            self.assertGreater(value(samples, "commd_link_round_trip_seconds", peer="b", rail="1"), 0)
            totals = {row["name"]: row["sent_bytes"] for row in cluster.json("a", "nodes")["nodes"]}
            self.assertGreaterEqual(totals["b"] * 1.01 + 10000, sum(rows().values()))


class Port(StandaloneTest):
    def start(self, metrics):
        return subprocess.run([BUILD / "commd", "--standalone", "--set", "node_name=x", "--socket", f"{self.cluster.folder}/x.sock", "--set", f"metrics={metrics}"],
                              capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)

    def test_loopback_alone(self):
        for place in ("0.0.0.0:9464", "192.0.2.1:9464", "on", "9464", "[::]:9464"):
            done = self.start(place)
            self.assertNotEqual(done.returncode, 0, place)
            self.assertIn("a port of this machine alone", done.stderr)

    def test_a_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="commd-test-") as folder:
            command = [BUILD / "commd", "--standalone", "--set", "node_name=x", "--socket", f"{folder}/x.sock", "--set", f"metrics=127.0.0.1:{port}"]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                deadline = time.monotonic() + 20
                while not os.path.exists(f"{folder}/x.sock") and time.monotonic() < deadline:
                    time.sleep(0.02)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                    self.assertIn(b"commd_build_info{", answer.read())
                second = subprocess.run([*command[:4], "--socket", f"{folder}/y.sock", *command[-2:]], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
                self.assertNotEqual(second.returncode, 0)
                self.assertIn("Address already in use", second.stderr)
            finally:
                daemon.terminate()
                daemon.wait(20)


class Health(unittest.TestCase):
    def test_a_pair(self):
        with Cluster(["a", "b"]) as cluster:
            cluster.wait(lambda: cluster.commctl("a", "health").returncode == 0, "all is well")  # on a busy machine the loop lags at first
            done = cluster.commctl("a", "health")
            names = [line.split()[0] for line in done.stdout.splitlines()]
            self.assertEqual(names, ["answers", "drain", "loop", "mesh", "rails", "gpus", "certificates", "memory", "objects", "descriptors"])
            self.assertEqual({line.split()[1] for line in done.stdout.splitlines()}, {"ok"})
            checks = cluster.json("a", "health")
            self.assertTrue(checks["fine"])
            self.assertEqual(len(checks["checks"]), 10)
            one = cluster.commctl("a", "health", "mesh")
            self.assertEqual((one.returncode, len(one.stdout.splitlines())), (0, 1))
            self.assertEqual(cluster.commctl("a", "health", "answers").returncode, 0)
            self.assertEqual(cluster.commctl("a", "health", "luck").returncode, 4)
            self.assertEqual(cluster.commctl("a", "health", "mesh", "x").returncode, 2)
            cluster.daemons["b"].kill()
            cluster.daemons["b"].wait()
            cluster.wait(lambda: cluster.commctl("a", "health").returncode == 5, "the loss of a node is seen")
            self.assertIn("mesh          failed  0 of 1 other nodes are up; b is not", cluster.commctl("a", "health").stdout)
            self.assertEqual(cluster.commctl("a", "health", "loop").returncode, 0)
            self.assertEqual(cluster.commctl("a", "health", "mesh").returncode, 5)
            self.assertFalse(cluster.json("a", "health")["fine"])
            gone = cluster.commctl("b", "-f", "json", "health")
            self.assertEqual((gone.returncode, json.loads(gone.stdout)["fine"]), (3, False))
            self.assertEqual(cluster.commctl("b", "health", "answers").stdout, "answers       failed  no\n")


class Events(unittest.TestCase):
    def lines(self, cluster, name, *arguments):
        done = cluster.commctl(name, "events", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_what_happens_to_a_pair(self):
        with Cluster(["a", "b"]) as cluster:
            follow = subprocess.Popen([BUILD / "commctl", "--socket", cluster.socket("a"), "events", "--follow"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            try:
                ranks = [cluster.rank(node, "train", rank, 2, "loop", "seconds=60") for rank, node in enumerate("ab")]
                for rank in ranks:
                    self.assertEqual([rank.stdout.readline().strip() for _ in range(2)], ["FORMED", "READY"])
                cluster.daemons["b"].kill()
                cluster.daemons["b"].wait()
                for rank in ranks:
                    rank.wait(60)
                cluster.wait(lambda: "client_disconnected" in {each["event"] for each in self.lines(cluster, "a")}, "the rank's end")
                cluster.config_path("a").write_text("nonsense")
                cluster.daemons["a"].send_signal(signal.SIGHUP)
                cluster.wait(lambda: "reload_failed" in {each["event"] for each in self.lines(cluster, "a")}, "a reload that failed")
                events = self.lines(cluster, "a")
                kinds = [each["event"] for each in events]
                self.assertEqual([kind for kind in kinds if kind not in ("refused", "node_up")],
                                 ["started", "client_connected", "communicator_formed", "node_down", "communicator_failed", "client_disconnected", "reload_failed"])
                self.assertEqual([each["sequence"] for each in events], list(range(1, len(events) + 1)))
                for each in events:
                    self.assertRegex(each["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
                by_kind = {each["event"]: each for each in events}
                self.assertEqual(by_kind["node_down"]["node"], "b")
                self.assertTrue(by_kind["node_down"]["text"])
                self.assertEqual((by_kind["communicator_formed"]["communicator"], by_kind["communicator_formed"]["uid"]), ("train", os.geteuid()))
                self.assertEqual(by_kind["client_connected"]["pid"], ranks[0].pid)
                after = self.lines(cluster, "a", "--after", str(by_kind["node_down"]["sequence"]))
                self.assertEqual(after, events[by_kind["node_down"]["sequence"]:])
                for expected in events:
                    self.assertEqual(json.loads(follow.stdout.readline()), expected)
                cluster.daemons["a"].terminate()
                last = [json.loads(line)["event"] for line in follow.stdout]
                self.assertLessEqual(set(last), {"drain"})
                self.assertEqual(follow.wait(20), 3)
            finally:
                if follow.poll() is None:
                    follow.kill()
                follow.communicate()

    @unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
    def test_users_see_their_own(self):
        with Cluster(["solo"], namespaces=False, start=False) as cluster:
            os.chmod(cluster.folder, 0o755)
            cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cluster.socket("solo")}";\n')
            cluster.start("solo", "--standalone")
            cluster.wait_ready()
            nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
            mine = cluster.client("solo", *nobody, sys.executable, "-B", ROOT / "tests/system/rank.py", "theirs", 0, 1, "once")
            ours = cluster.rank("solo", "ours", 0, 1, "once")
            self.assertEqual((mine.wait(60), ours.wait(60)), (0, 0))
            shown = run(*nobody, BUILD / "commctl", "--socket", cluster.socket("solo"), "events", check=False)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn('"communicator":"theirs"', shown.stdout)
            self.assertNotIn('"communicator":"ours"', shown.stdout)
            self.assertIn('"event":"started"', shown.stdout)
            everything = cluster.commctl("solo", "events").stdout
            self.assertIn('"communicator":"ours"', everything)
            self.assertIn('"communicator":"theirs"', everything)

    def test_overwritten_ones_are_counted(self):
        with Cluster(["solo"], namespaces=False, start=False) as cluster:
            cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cluster.socket("solo")}";\n')
            cluster.start("solo", "--standalone")
            cluster.wait_ready()

            def overwritten():
                for _ in range(200):  # several that come at once count as one
                    cluster.daemons["solo"].send_signal(signal.SIGHUP)
                    time.sleep(0.003)
                return self.lines(cluster, "solo")[0]["sequence"] > 1

            cluster.wait(overwritten, "the first event is overwritten", timeout_s=120)
            time.sleep(0.2)
            first = self.lines(cluster, "solo")[0]["sequence"]
            lines = self.lines(cluster, "solo", "--after", "1")
            self.assertEqual(lines[0]["event"], "missed")
            self.assertEqual(lines[0]["count"], first - 2)
            self.assertEqual(len(lines), 1 + 1024)


if __name__ == "__main__":
    unittest.main()
