#!/usr/bin/env python3
"""Nodes with several network cards: each rail has a card of its own, and goes on over another one if its card is cut."""
import pathlib
import tempfile
import time
import unittest

from cluster import BUILD, Cluster, namespaces_work, run
from failure_case import FailureCase

SETTINGS = "slice_bytes = 4096; reconnect_max_ms = 500;"
PATIENCE_S = 4.5
BUSY_BYTES = 200_000  # of a card, in a moment of work


def node_row(cluster, name, other):
    return next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == other)


class Watch:
    """What each card of a node sends from now on."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.began = self.read()

    def read(self):
        return [self.cluster.card_bytes(self.name, card) for card in range(self.cluster.cards)]

    def sent(self):
        return [now - began for now, began in zip(self.read(), self.began)]

    def wait(self, card, what, timeout_s=15):
        self.cluster.wait(lambda: self.sent()[card] > BUSY_BYTES, f"{what}: {self.sent()}", timeout_s=timeout_s)


@unittest.skipUnless(namespaces_work(), "network namespaces cannot be made here")
class Cards(FailureCase):
    def at_work(self, cluster):
        return self.start(cluster, "ab", "work", "loop", "seconds=600", "count=50000")

    def check_alive(self, processes):
        for process in processes:
            self.assertIsNone(process.poll())

    def end(self, processes):
        for process in processes:
            process.kill()

    def test_each_rail_uses_its_card(self):
        with Cluster("ab", SETTINGS, cards=3) as cluster:
            self.assertEqual(node_row(cluster, "a", "a")["rail_addresses"], "10.98.0.1, 10.99.0.1")
            self.assertEqual(node_row(cluster, "a", "b")["rail_addresses"], "10.98.0.2, 10.99.0.2")
            self.assertRegex(cluster.commctl("a", "nodes").stdout, r"RAILS AT[^$]*\n[^$]*b  .*10\.98\.0\.2, 10\.99\.0\.2")
            ranks = self.at_work(cluster)
            watch = Watch(cluster, "a")
            for card in range(3):
                watch.wait(card, f"card {card} carries slices")
            row = node_row(cluster, "a", "b")
            self.assertEqual((row["rails_connected"], row["rails_needed"]), (3, 3), "each card has a rail, though the setting rails is 0")
            self.check_alive(ranks)
            self.end(ranks)

    def test_a_card_is_cut(self):
        """Cut are, in turn, the card of rail 1 and that of rail 0, which also has the heartbeats."""
        with Cluster("ab", SETTINGS, cards=2) as cluster:
            ranks = self.at_work(cluster)
            watch = Watch(cluster, "a")
            for card in (0, 1):
                watch.wait(card, f"card {card} carries slices")
            for cut, other in ((1, 0), (0, 1)):
                cluster.set_card("a", cut, "down")
                time.sleep(PATIENCE_S + 1)  # by now, operations on the cut rail would have ended with NODE_LOST
                self.check_alive(ranks)
                watch = Watch(cluster, "a")
                watch.wait(other, f"card {cut} is cut, and card {other} carries its slices")
                self.assertLess(watch.sent()[cut], BUSY_BYTES)
                row = node_row(cluster, "a", "b")
                self.assertEqual((row["state"], row["rails_connected"], row["rails_needed"]), ("up", 2, 2))
                cluster.set_card("a", cut, "up")
                watch = Watch(cluster, "a")
                watch.wait(cut, f"card {cut} works again, and carries slices again", timeout_s=40)
            self.check_alive(ranks)
            self.assertGreaterEqual(node_row(cluster, "a", "b")["resumed_count"], 2)
            self.end(ranks)

    def test_a_start_without_the_first_card(self):
        """Rail 0 is dialled at its spare address when the first one does not answer."""
        with Cluster("ab", SETTINGS + "handshake_timeout_ms = 500;", cards=2, start=False) as cluster:
            cluster.set_card("a", 0, "down")
            for name in "ab":
                cluster.start(name)
            cluster.wait_ready()
            for process in self.ranks(cluster, "ab", "late", "loop", "count=50000", "steps=5"):
                self.expect(process, "OK", within_s=40)
            self.assertIn("10.98.0.", cluster.log("a") + node_row(cluster, "a", "b")["rail_addresses"])

    def test_a_reload_moves_rails(self):
        with Cluster("ab", SETTINGS, cards=2) as cluster:
            path = cluster.config_path("a")
            path.write_text(path.read_text().replace("10.98.0.2", "10.98.0.22").replace("10.98.0.1", "10.98.0.11"))
            run("ip", "-n", cluster.namespaces["a"], "addr", "add", "10.98.0.11/24", "dev", "veth1")
            run("ip", "-n", cluster.namespaces["b"], "addr", "add", "10.98.0.22/24", "dev", "veth1")
            said = cluster.commctl("a", "reload")
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertIn('node b: rail_addresses = "10.98.0.22"', said.stdout)
            self.assertRegex(said.stdout, r"(?i)restart[^$]*rail_addresses = 10\.98\.0\.11")
            self.assertEqual(node_row(cluster, "a", "b")["rail_addresses"], "10.98.0.22")
            self.assertEqual(node_row(cluster, "a", "a")["rail_addresses"], "10.98.0.1", "in force until a restart")
            for process in self.ranks(cluster, "ab", "moved", "loop", "count=50000", "steps=5"):
                self.expect(process, "OK", within_s=40)


class Refused(unittest.TestCase):
    """What --check-config says of addresses that only this machine can judge."""

    def check(self, settings, message, address="127.0.0.1:7400"):
        with Cluster("a", namespaces=False, start=False) as cluster, tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            text = cluster.config_path("a").read_text().replace(cluster.addresses["a"], address)
            file.write(text + settings)
            file.flush()
            result = run(BUILD / "commd", "--check-config", "--config", pathlib.Path(file.name), check=False)
            said = (result.stdout + result.stderr).replace(file.name, "FILE")
            if message is None:
                self.assertEqual(result.returncode, 0, said)
            else:
                self.assertNotEqual(result.returncode, 0, said)
                self.assertIn(message, said)

    def test_addresses_of_this_machine(self):
        self.check('rail_addresses = "127.0.0.2, 127.0.0.3";', None)
        self.check('rail_addresses = "127.0.0.2, 192.0.2.7";', 'rail_addresses = "127.0.0.2, 192.0.2.7": 192.0.2.7 is no address of this machine; expected addresses of this '
                   "node's network cards")
        self.check('rail_addresses = "[::1]";', "[::1] is no IPv4 address, as the node's address is")
        self.check('rails = 2; rail_addresses = "127.0.0.2, 127.0.0.3";', "rails = 2: with its rail_addresses this node has 3 network addresses; expected at least 3 rails, or 0")
        self.check('rails = 3; rail_addresses = "127.0.0.2, 127.0.0.3";', None)
        self.check('rail_addresses = "127.0.0.1";', 'rail_addresses: node "a" has 127.0.0.1 twice')
        self.check('rail_addresses = "127.0.0.2";', "its 2 rails need ports up to 65536", address="127.0.0.1:65535")


if __name__ == "__main__":
    unittest.main()
