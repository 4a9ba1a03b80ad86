#!/usr/bin/env python3
"""Nodes that come from a file that is watched, or from the SRV records of DNS."""
import json
import re
import subprocess
import sys
import time
import unittest

from cluster import ROOT, Cluster, namespaces_work, run
from failure_case import FailureCase
from test_configuration import own_files_work

WAITS = True
SERVICE = "_commd._udp.commd.test"
RESOLV_CONF = 'mount --bind "$0/resolv.conf" /etc/resolv.conf && exec "$@"'
GONE_S = 25  # three answers without a node, on a busy machine


def names(cluster, node):
    return {row["name"] for row in cluster.json(node, "nodes")["nodes"]}


def state(cluster, node, other):
    return next((row["state"] for row in cluster.json(node, "nodes")["nodes"] if row["name"] == other), None)


class SourceCase(FailureCase):
    def set_source(self, cluster, setting, value):
        for name in cluster.names:
            path = cluster.config_path(name)
            path.write_text(re.sub(r"nodes = \(.*\);\n", f'{setting} = "{value}";\n', path.read_text()))

    def at_work(self, cluster):
        """Ranks of nodes a and b, which call collectives as long as they may."""
        return self.start(cluster, "ab", "work", "loop", "seconds=600", "count=1000", "pause=0.01")

    def check_alive(self, processes):
        for process in processes:
            self.assertIsNone(process.poll(), "a change of another node ends no communicator")

    def wait_up(self, cluster, node, other):
        cluster.wait(lambda: state(cluster, node, other) == "up", f"{other} is up at {node}")

    def wait_gone(self, cluster, node, other, timeout_s=10):
        cluster.wait(lambda: other not in names(cluster, node), f"{other} is gone at {node}", timeout_s=timeout_s)


class File(SourceCase):
    def cluster(self):
        cluster = Cluster("abc", "reconnect_max_ms = 500;", namespaces=False, start=False)
        self.addCleanup(cluster.close)
        self.file = cluster.folder / "nodes"
        self.set_source(cluster, "nodes_file", self.file)
        return cluster

    def text(self, cluster, nodes):
        return "# the cluster\n" + "".join(f"{name}\t{cluster.addresses[name]}  # node {name}\n" for name in nodes)

    def rename_into_place(self, text):
        other = self.file.with_name("nodes.new")
        other.write_text(text)
        other.rename(self.file)

    def test_nodes_come_and_go(self):
        cluster = self.cluster()
        self.file.write_text(self.text(cluster, "ab"))
        for name in "ab":
            cluster.start(name)
        cluster.wait_ready("ab")
        ranks = self.at_work(cluster)
        self.assertEqual(names(cluster, "a"), {"a", "b"})
        shown = {row["key"]: row for row in cluster.json("a", "config", "show")["settings"]}
        self.assertEqual(shown["nodes.b"]["source"], f"{self.file}:3")
        # Written in place: node c comes.
        self.file.write_text(self.text(cluster, "abc"))
        cluster.start("c")
        for name in "ab":
            self.wait_up(cluster, name, "c")
        self.check_alive(ranks)
        for process in self.ranks(cluster, "abc", "three", "once"):
            self.expect(process, "OK", within_s=20)
        # By a rename: node c goes.
        self.rename_into_place(self.text(cluster, "ab"))
        for name in "ab":
            self.wait_gone(cluster, name, "c")
            cluster.wait_logged(name, f"{self.file}: node c: removed")
        self.check_alive(ranks)
        # It comes again.
        self.rename_into_place(self.text(cluster, "abc"))
        self.wait_up(cluster, "a", "c")
        self.check_alive(ranks)

    def test_a_broken_file(self):
        cluster = self.cluster()
        self.file.write_text(self.text(cluster, "ab"))
        cluster.write_config("b")  # in this file, there are all nodes
        for name in "ab":
            cluster.start(name)
        cluster.wait(lambda: cluster.commctl("a", "wait", "nodes", "--timeout", "5").returncode == 0, "a and b are up")
        ranks = self.at_work(cluster)
        broken = {self.text(cluster, "ab") + "c 127.0.0.1\n": f'{self.file}:4: address "127.0.0.1": expected an address',
                  "a 127.0.0.1:1\na 127.0.0.1:9\n": 'nodes: "a" is listed twice',
                  "": "no node is listed",
                  self.text(cluster, "b"): 'this node, "a", is not among them'}
        for text, reason in broken.items():
            self.file.write_text(text)
            cluster.wait(lambda reason=reason: reason in cluster.log("a"), reason)
            self.assertEqual(names(cluster, "a"), {"a", "b"})
        self.file.unlink()
        cluster.wait(lambda: "No such file" in cluster.log("a"), "the file is gone")
        time.sleep(6)  # it is looked at again
        self.assertEqual(cluster.log("a").count("No such file"), 1, "said once")
        self.assertEqual(names(cluster, "a"), {"a", "b"})
        self.check_alive(ranks)
        self.rename_into_place(self.text(cluster, "abc"))
        cluster.wait(lambda: "c" in names(cluster, "a"), "the file is right again")
        cluster.wait_logged("a", f"{self.file} names the nodes again")
        self.check_alive(ranks)

    def test_links_as_kubernetes_makes_them(self):
        cluster = self.cluster()
        folder = cluster.folder / "map"
        for version, nodes in (("1", "ab"), ("2", "abc")):
            (folder / version).mkdir(parents=True)
            (folder / version / "nodes").write_text(self.text(cluster, nodes))
        (folder / "..data").symlink_to("1")
        self.file.symlink_to("map/..data/nodes")
        (folder / "nodes").symlink_to("..data/nodes")
        path = cluster.config_path("a")
        path.write_text(path.read_text().replace(f'"{self.file}"', f'"{folder}/nodes"'))
        for name in "ab":
            cluster.start(name)
        cluster.wait_ready("ab")
        (folder / "..data_new").symlink_to("2")
        began = time.monotonic()
        (folder / "..data_new").rename(folder / "..data")
        cluster.wait(lambda: "c" in names(cluster, "a"), "seen in its folder", timeout_s=5)
        self.assertLess(time.monotonic() - began, 4, "inotify, not the look every 5 s")
        cluster.wait(lambda: "c" in names(cluster, "b"), "a link into another folder is looked at now and then", timeout_s=15)

    def test_a_start(self):
        cluster = self.cluster()
        for text, reason in (("b 127.0.0.1:7400\n", 'this node, "a", is not among them'), ("a nowhere\n", f"{self.file}:1: address"), (None, "No such file")):
            if text is None:
                self.file.unlink()
            else:
                self.file.write_text(text)
            checked = run(cluster.build / "commd", "--check-config", "--config", cluster.config_path("a"), check=False)
            self.assertEqual(checked.returncode, 78)
            self.assertIn(reason, checked.stderr)

    def test_a_reload_changes_the_source(self):
        cluster = self.cluster()
        self.file.write_text(self.text(cluster, "abc"))
        cluster.names = list("ab")
        cluster.write_config("a")
        cluster.start("a")
        cluster.wait(lambda: cluster.commctl("a", "nodes").returncode in (0, 5), "a runs")
        self.assertEqual(names(cluster, "a"), {"a", "b"})
        self.set_source(cluster, "nodes_file", self.file)
        self.assertEqual(cluster.commctl("a", "reload").returncode, 0)
        self.assertEqual(names(cluster, "a"), {"a", "b", "c"})
        self.file.write_text(self.text(cluster, "ac"))
        self.wait_gone(cluster, "a", "b")


@unittest.skipUnless(own_files_work() and namespaces_work(), "needs root, to have its own /etc/resolv.conf and name server")
class Dns(SourceCase):
    def cluster(self):
        cluster = Cluster("abc", "reconnect_max_ms = 500;", start=False)
        self.addCleanup(cluster.close)
        cluster.daemon_command = ["unshare", "-m", "sh", "-c", RESOLV_CONF, cluster.folder]
        (cluster.folder / "resolv.conf").write_text("nameserver 10.97.0.1\noptions timeout:1 attempts:1\n")
        self.set_source(cluster, "nodes_dns", SERVICE)
        self.zone = cluster.folder / "zone.json"
        self.say("ab")
        server = subprocess.Popen(cluster.in_node("a", sys.executable, "-B", ROOT / "tests/system/dns_server.py", "10.97.0.1", self.zone), stdout=subprocess.PIPE)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.addCleanup(server.stdout.close)
        self.assertEqual(server.stdout.readline(), b"here\n")
        return cluster

    def say(self, nodes, mode="ok"):
        hosts = {f"{name}.commd.test": f"10.97.0.{number}" for number, name in enumerate("abc", 1)}
        zone = {"services": {SERVICE: [[f"{name}.commd.test", 7400] for name in nodes]} if nodes else {}, "hosts": hosts, "ttl": 1, "mode": mode}
        new = self.zone.with_name("zone.new")
        new.write_text(json.dumps(zone))
        new.rename(self.zone)

    def test_nodes_come_and_go(self):
        cluster = self.cluster()
        for name in "abc":
            cluster.start(name)
        cluster.wait_ready("ab")
        self.assertEqual(names(cluster, "a"), {"a", "b"})
        ranks = self.at_work(cluster)
        cluster.wait(lambda: 'this node, "c", is not among them' in cluster.log("c"), "c waits for DNS to list it")
        self.assertIsNone(cluster.daemons["c"].poll())
        self.say("cab", mode="cut")  # by TCP, and in another order
        for name in "ab":
            self.wait_up(cluster, name, "c")
        cluster.wait_ready("c")
        shown = {row["key"]: row for row in cluster.json("a", "config", "show")["settings"]}
        self.assertEqual((shown["nodes.c"]["value"], shown["nodes.c"]["source"]), ("c.commd.test:7400", "DNS"))
        for process in self.ranks(cluster, "abc", "three", "once"):
            self.expect(process, "OK", within_s=20)
        # Answers that are no good remove nobody.
        for nodes, mode, reason in (("", "ok", "there is no such name"), ("abc", "refuse", "SRV records of"), ("abc", "loop", "SRV records of")):
            before = cluster.log("a").count("the nodes stay as they were")
            self.say(nodes, mode)
            cluster.wait(lambda before=before: cluster.log("a").count("the nodes stay as they were") > before, f"{mode}: {reason}", timeout_s=GONE_S)
            cluster.wait_logged("a", reason)
            self.assertEqual(names(cluster, "a"), {"a", "b", "c"})
        self.check_alive(ranks)
        self.say("abc")
        cluster.wait(lambda: f"{SERVICE} names the nodes again" in cluster.log("a"), "DNS is right again", timeout_s=GONE_S * 2)
        # Answers without c, one after the other.
        self.say("ab")
        began = time.monotonic()
        for name in "ab":
            self.wait_gone(cluster, name, "c", timeout_s=GONE_S)
        self.assertGreater(time.monotonic() - began, 3.5, "an answer alone removes no node")
        cluster.wait_logged("a", f"{SERVICE}: node c: removed")
        self.check_alive(ranks)

    def test_dns_cannot_fake_a_node(self):
        """Another address under a node's name: the certificate decides."""
        cluster = self.cluster()
        for name in "ab":
            cluster.start(name)
        cluster.wait_ready("ab")
        zone = json.loads(self.zone.read_text())
        zone["services"][SERVICE].append(["d.commd.test", 7400])
        zone["hosts"]["d.commd.test"] = "10.97.0.2"  # really b
        self.zone.write_text(json.dumps(zone))
        cluster.wait(lambda: "d" in names(cluster, "a"), "listed")
        time.sleep(2)
        self.assertNotEqual(state(cluster, "a", "d"), "up")
        self.assertEqual(state(cluster, "a", "b"), "up")


if __name__ == "__main__":
    unittest.main()
