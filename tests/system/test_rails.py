#!/usr/bin/env python3
"""Daemons with three rails, each with its own UDP port: what commctl reports about them, and one rail that is cut while the others work."""
import unittest

from cluster import Cluster
from failure_case import FailureCase

SETTINGS = "rails = 3; slice_bytes = 4096; reconnect_max_ms = 500;"
RAIL_LOST_BOUND_S = 15  # the patience is 4.5 s
REBOUND_BOUND_S = 60  # on an idle machine, 1 s


def node_row(cluster, name, other):
    return next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == other)


class Rails(FailureCase):
    def at_work(self, cluster, comm, *options):
        return self.start(cluster, "ab", comm, "loop", "seconds=600", *options)

    def check_works(self, cluster, comm):
        """Runs operations that use all rails."""
        for process in self.ranks(cluster, "ab", comm, "loop", "count=50000", "steps=5"):
            self.expect(process, "OK", within_s=40)

    def check_timed_out(self, ranks):
        """The cut may come when one rank has the last result and the other does not. Then only the other one's
        operation ends at its deadline; its process ends, and the first rank's next operation fails for that."""
        lines = [self.last_line(process, within_s=10) for process in ranks]
        late = [line for line in lines if line.startswith("TIMED_OUT")]
        self.assertTrue(late, lines)
        for line in late:
            for text in 'on "impatient"', "all_reduce", ": rail 2: ", "node ":
                self.assertIn(text, line)
        for line in lines:
            if line not in late:
                self.assertRegex(line, r'^RANK_LOST communicator "impatient": rank \d \(pid \d+\) of node . has left after op ')

    def test_nodes_shows_the_traffic_of_all_rails(self):
        with Cluster("ab", SETTINGS) as cluster:
            idle = node_row(cluster, "a", "b")
            self.assertEqual((idle["rails_connected"], idle["rails_needed"]), (1, 1))
            self.assertEqual(node_row(cluster, "a", "a")["rails_needed"], 0)
            ranks = self.at_work(cluster, "work", "count=50000")
            busy = node_row(cluster, "a", "b")
            self.assertEqual((busy["rails_connected"], busy["rails_needed"]), (3, 3))
            # Each node sends 400,000 bytes for each operation, and a third of them on each rail.
            for bytes in "sent_bytes", "received_bytes":
                cluster.wait(lambda bytes=bytes: node_row(cluster, "a", "b")[bytes] - idle[bytes] > 400000, bytes)
            self.assertRegex(cluster.commctl("a", "nodes").stdout, r"RAILS[^$]*\n[^$]*b  .*  3/3  ")
            for process in ranks:
                process.kill()

    def test_nodes_that_are_seen_at_other_ports(self):
        """A NAT loses its table: first that of the node that dials, then that of the node that is dialled. No operation fails."""
        with Cluster("ab", SETTINGS, relays={("a", "b"): (0, 0)}, rails=3) as cluster:
            ranks = self.at_work(cluster, "small", "count=100") + self.at_work(cluster, "large", "count=50000")
            for name in "ab":
                before = node_row(cluster, "a", "b")["received_bytes"]
                cluster.rebind(name)
                cluster.wait(lambda before=before: node_row(cluster, "a", "b")["received_bytes"] - before > 1000000, f"traffic while {name} is at other ports",
                             timeout_s=REBOUND_BOUND_S)
            for process in ranks:
                self.assertIsNone(process.poll())
                process.kill()
            for name in "ab":
                self.assertNotIn("is down", cluster.log(name))
                self.assertNotRegex(cluster.log(name), "network: [ab];")

    def test_one_rail_is_cut(self):
        with Cluster("ab", SETTINGS, relays={("a", "b"): (0, 0)}, rails=3) as cluster:
            impatient = self.at_work(cluster, "impatient", "count=50000", "op_timeout_ms=2000")
            patient = self.at_work(cluster, "patient", "count=50000")
            small = self.at_work(cluster, "small", "count=100")  # one slice, so it uses the first rail alone
            cluster.cut_rail("a", "b", 2)
            self.check_timed_out(impatient)

            # A rail that is silent for some seconds is not lost: an operation with time left goes on over another connection.
            cluster.cut_rail("a", "b", 2, cut=False)
            self.check_works(cluster, "impatient")
            for process in patient + small:
                self.assertIsNone(process.poll())
            self.assertEqual(node_row(cluster, "a", "b")["rails_connected"], 3)

            # Wait until the patience ends.
            cluster.cut_rail("a", "b", 2)
            for process in patient:
                self.expect(process, "NODE_LOST", 'on "patient"', "all_reduce", "rail 2 to node ", within_s=RAIL_LOST_BOUND_S)
            for process in small:
                self.assertIsNone(process.poll())
            for node, other in ("ab", "ba"):  # each node by its own clock
                cluster.wait(lambda node=node, other=other: node_row(cluster, node, other)["rails_connected"] == 2, "rail 2 missed", timeout_s=RAIL_LOST_BOUND_S)
            without = self.ranks(cluster, "ab", "without", "loop", "count=50000", "steps=5")
            cluster.wait(lambda: node_row(cluster, "a", "b")["rails_needed"] == 3, "rail 2 needed")
            row = node_row(cluster, "a", "b")
            self.assertIn("rail 2 is not connected", row["last_error"])
            for process in without:
                output = process.communicate(timeout=40)[0].strip().splitlines()[-1]
                self.assertTrue(output.startswith("OK"), output)
            cluster.wait_logged("a", 'communicator "without" of uid 0 goes on without rail 2: node ')

            # The rail works again: once both ends know that the old connection has ended, all rails are in use.
            cluster.cut_rail("a", "b", 2, cut=False)
            for node, other in ("ab", "ba"):
                cluster.wait(lambda node=node, other=other: node_row(cluster, node, other)["rails_connected"] in (1, 3), "rail 2 again", timeout_s=40)
            self.check_works(cluster, "healed")
            for process in small:
                self.assertIsNone(process.poll())
                process.kill()


if __name__ == "__main__":
    unittest.main()
