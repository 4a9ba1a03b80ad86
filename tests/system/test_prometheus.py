#!/usr/bin/env python3
"""A real Prometheus scrapes two nodes, evaluates the alert rules, and answers the dashboard's queries. The dashboard fits Grafana's schema."""
import json
import re
import shutil
import socket
import subprocess
import unittest
import urllib.error
import urllib.parse
import urllib.request

from cluster import ROOT, Cluster

DASHBOARD = ROOT / "systemd/commd-dashboard.json"
ALERTS = ROOT / "systemd/commd-alerts.yml"
# The values that Grafana would put in the place of its variables.
VARIABLES = {"$job": "commd", "$instance": ".*", "$__rate_interval": "10s"}
# Queries without a result on two nodes without GPUs and without failures.
EMPTY = re.compile(r'commd_gpu_|result!="OK"|== 0$')
CONFIGURATION = """global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ "{alerts}" ]
scrape_configs: [ {{ job_name: commd, static_configs: [ {{ targets: {targets} }} ] }} ]
"""


def expressions():
    """Returns the queries of all panels, as Grafana sends them."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield panel["title"], text


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@unittest.skipIf(shutil.which("prometheus") is None, "prometheus is not installed (package prometheus)")
class Prometheus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # On loopback, so that one Prometheus reaches both.
        cls.cluster = Cluster(["a", "b"], namespaces=False, start=False)
        cls.addClassCleanup(cls.cluster.close)
        cls.port, *ports = free_ports(3)
        cls.instances = dict(zip("ab", (f"127.0.0.1:{port}" for port in ports)))
        for name, place in cls.instances.items():
            cls.cluster.start(name, "--set", f"metrics={place}")
        cls.cluster.wait_ready()
        folder = cls.cluster.folder / "prometheus"
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIGURATION.format(alerts=ALERTS, targets=json.dumps(list(cls.instances.values()))))
        with open(folder / "log", "wb") as log:
            cls.server = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                           f"--web.listen-address=127.0.0.1:{cls.port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        cls.cluster.processes.append(cls.server)
        cls.cluster.wait(cls.ready, "Prometheus is ready")

    @classmethod
    def ready(cls):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{cls.port}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def ask(self, what, **arguments):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as fault:
            self.fail(f"{what} {arguments}: {fault.read().decode()}")

    def samples(self, expression):
        return self.ask("query", query=expression)["result"]

    def alerts(self):
        return {(alert["labels"]["alertname"], alert["labels"].get("peer", "")) for alert in self.ask("alerts")["alerts"]}

    def test_all_that_operators_look_at(self):
        """The tests run in this order: first with busy nodes, then after the loss of a node."""
        ranks = [self.cluster.rank(node, "watched", rank, 4, "loop", "count=1000000", "seconds=60") for rank, node in enumerate("aabb")]
        worked = 'min(rate(commd_operations_total{kind="all_reduce", result="OK"}[10s]))'
        self.cluster.wait(lambda: self.samples(worked), "two scrapes of both nodes at work")
        targets = self.ask("targets")["activeTargets"]
        self.assertEqual({(each["labels"]["instance"], each["health"], each["lastError"]) for each in targets},
                         {(place, "up", "") for place in self.instances.values()})
        found = {(title, text): self.samples(text) for title, text in expressions()}
        self.assertGreater(len(found), 40)
        self.assertEqual({key for key, rows in found.items() if not rows and not EMPTY.search(key[1])}, set())
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        self.assertGreater(len(rules), 10)
        self.cluster.wait(lambda: {rule["health"] for group in self.ask("rules")["groups"] for rule in group["rules"]} == {"ok"}, "each rule was evaluated")
        self.assertEqual({name for name, _ in self.alerts()} & {"CommdDown", "CommdNodeDown", "CommdCertificateEnded", "CommdOperationsTimeOut"}, set())

        self.cluster.daemons["b"].kill()
        self.cluster.wait(lambda: {("CommdNodeDown", "b"), ("CommdDown", "")} <= self.alerts(), "the alerts of a lost node")
        for rank in ranks:
            rank.communicate(timeout=60)


class Grafana(unittest.TestCase):
    """Debian has no package of Grafana. But Grafana's makers publish the schema of its dashboards."""

    def test_the_dashboard_fits_the_model(self):
        try:
            from grafana_foundation_sdk.cog import encoder, plugins
            from grafana_foundation_sdk.models import dashboard
        except ImportError:
            self.skipTest("the Python package grafana-foundation-sdk is not installed")
        plugins.register_default_plugins()  # the models of queries and panels
        ours = json.loads(DASHBOARD.read_text())
        known = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(ours)))
        self.assertEqual(list(self.lost(ours, known, "")), [])

    def lost(self, ours, known, where):
        """Returns what the schema lacks, or defines in another way."""
        if isinstance(ours, dict) and isinstance(known, dict):
            for name, value in ours.items():
                if name in known:
                    yield from self.lost(value, known[name], f"{where}/{name}")
                else:
                    yield f"{where}/{name}"
        elif isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
            for i, (one, other) in enumerate(zip(ours, known)):
                yield from self.lost(one, other, f"{where}/{i}")
        elif ours != known:
            yield f"{where}: {ours} is {known}"


if __name__ == "__main__":
    unittest.main()
