#!/usr/bin/env python3
"""Releases of different protocol versions together: they speak the newest version that both know, or say why they cannot.

Two builds stand for other releases (tests/rules.mk). `next` speaks this release's versions and one more. `later` speaks only that one more.
"""
import re
import unittest

from cluster import BUILD, ROOT, Cluster, StandaloneTest, run

WAITS = True
NEXT, LATER = BUILD / "versions/next", BUILD / "versions/later"


def defined(name):
    return int(re.search(rf"^#define {name} (\d+)$", (ROOT / "proto/version.h").read_text(), re.M).group(1))


CLIENT, MESH = defined("CLIENT_PROTOCOL_VERSION"), defined("MESH_PROTOCOL_VERSION")


def spoken(oldest, newest):
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def with_library(cluster, build, name, rank, size, *options, node="solo"):
    """A rank that uses the library of that build."""
    cluster.client_environment = {"COMMD_TEST_LIBRARY": str(build / "libcommclient.so")}
    process = cluster.rank(node, name, rank, size, *options)
    cluster.client_environment = {}
    return process


def outcome(process):
    said, errors = process.communicate(timeout=30)
    return said + errors


class Programs(StandaloneTest):
    """A library and a commd of different releases."""

    def commd(self, build):
        """Runs that commd from now on."""
        daemon = self.cluster.daemons["solo"]
        daemon.terminate()
        self.assertEqual(daemon.wait(timeout=20), 0)
        self.cluster.programs["solo"] = build / "commd"
        self.cluster.start("solo")
        self.cluster.wait_ready()

    def test_programs_of_two_releases_share_a_communicator(self):
        for daemon in (BUILD, NEXT):
            self.commd(daemon)
            ranks = [with_library(self.cluster, build, f"mixed-{daemon.name}", rank, 3, "once") for rank, build in enumerate((BUILD, NEXT, BUILD))]
            for rank in ranks:
                self.assertIn("OK", outcome(rank), daemon)

    def test_a_library_that_is_too_new(self):
        self.commd(BUILD)
        said = outcome(with_library(self.cluster, LATER, "late", 0, 1, "once"))
        self.assertIn("VERSION", said)
        self.assertIn(f"speaks {spoken(defined('CLIENT_PROTOCOL_OLDEST'), CLIENT)} of the client protocol", said)
        self.assertIn(f"the library {spoken(CLIENT + 1, CLIENT + 1)}", said)
        self.assertIn("OK", outcome(with_library(self.cluster, BUILD, "right", 0, 1, "once")))  # it did commd no harm

    def test_a_library_that_is_too_old(self):
        self.commd(NEXT)
        self.assertIn("OK", outcome(with_library(self.cluster, LATER, "late", 0, 1, "once")))
        daemon = self.cluster.daemons["solo"]
        daemon.terminate()
        daemon.wait(timeout=20)
        self.cluster.programs["solo"] = LATER / "commd"
        self.cluster.start("solo")
        self.cluster.wait(lambda: run(LATER / "commctl", "--socket", self.cluster.socket("solo"), "status", check=False).returncode == 0, "commd ready")
        said = outcome(with_library(self.cluster, BUILD, "old", 0, 1, "once"))
        self.assertIn("VERSION", said)
        self.assertIn(f"speaks {spoken(CLIENT + 1, CLIENT + 1)} of the client protocol", said)
        self.assertIn(f"the library {spoken(defined('CLIENT_PROTOCOL_OLDEST'), CLIENT)}", said)
        # commctl says the same, and with which code.
        done = self.cluster.commctl("solo", "status")
        self.assertEqual(done.returncode, 1)
        self.assertIn("of the client protocol", done.stderr)
        self.commd(BUILD)


class Nodes(unittest.TestCase):
    """Nodes of different releases."""

    def restart(self, cluster, name, build):
        daemon = cluster.daemons[name]
        daemon.terminate()
        self.assertEqual(daemon.wait(timeout=20), 0)
        cluster.programs[name] = build / "commd"
        cluster.start(name)
        for each in "ab":
            commctl = cluster.programs.get(each, BUILD / "commd").with_name("commctl")
            cluster.wait(lambda: run(commctl, "--socket", cluster.socket(each), "status", check=False).returncode == 0, f"node {each} sees all nodes")

    def check(self, cluster, what):
        """Each node's rank has the library of its node's release."""
        ranks = [with_library(cluster, cluster.programs.get(name, BUILD / "commd").parent, f"job-{what}", rank, 2, "once", node=name)
                 for rank, name in enumerate("ab")]
        for rank in ranks:
            self.assertIn("OK", outcome(rank), what)

    def test_a_rolling_upgrade_there_and_back(self):
        with Cluster("ab") as cluster:
            self.check(cluster, "start")
            for step, (name, build) in enumerate((("a", NEXT), ("b", NEXT), ("a", LATER), ("a", NEXT), ("a", BUILD), ("b", BUILD))):
                self.restart(cluster, name, build)
                self.check(cluster, step)

    def test_nodes_that_have_no_version_in_common(self):
        with Cluster("ab", start=False) as cluster:
            cluster.programs["b"] = LATER / "commd"
            for name in "ab":
                cluster.start(name)
            ours, theirs = spoken(defined("MESH_PROTOCOL_OLDEST"), MESH), spoken(MESH + 1, MESH + 1)
            why = rf"(node b speaks {theirs} of the mesh protocol, node a {ours})|(node a speaks {ours} of the mesh protocol, node b {theirs})"
            cluster.wait(lambda: all(re.search(why, cluster.log(name)) for name in "ab"), "both logs say why")
            row = next(row for row in cluster.json("a", "nodes")["nodes"] if row["name"] == "b")
            self.assertNotEqual(row["state"], "up")
            self.assertRegex(row["last_error"], why)
            self.assertEqual(cluster.commctl("a", "status").returncode, 5)
            # Work on the node alone goes on, and a communicator with the other node says who is missing.
            self.assertIn("OK", outcome(cluster.rank("a", "alone", 0, 1, "once")))
            self.assertIn("TIMED_OUT", outcome(cluster.rank("a", "both", 0, 2, "once", "timeout_ms=1500")))


if __name__ == "__main__":
    unittest.main()
