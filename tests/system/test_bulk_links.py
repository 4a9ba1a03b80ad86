#!/usr/bin/env python3
"""Bulk links between real daemons: TLS over TCP beside QUIC. They are used, refused, cut, fed garbage and slowed down; every element is checked."""
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from cluster import BUILD, Cluster
from failure_case import FailureCase
from process_sockets import ESTABLISHED, sockets

SO_MAX_PACING_RATE = 47
COUNT = "count=200000"  # 1.6 MB: two slices


def node_row(cluster, name, other):
    return next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == other)


class BulkLinks(FailureCase):
    def check_works(self, cluster, comm, *options):
        for process in self.ranks(cluster, "ab", comm, "loop", COUNT, "steps=6", *options):
            self.expect(process, "OK", within_s=60)

    def wait_linked(self, cluster, names="ab"):
        for name, other in zip(names, reversed(names)):
            cluster.wait(lambda name=name, other=other: node_row(cluster, name, other)["bulk_connected"], f"{name} has a bulk link")

    def at_work(self, cluster, comm):
        ranks = self.start(cluster, "ab", comm, "loop", COUNT, "seconds=600")
        self.wait_linked(cluster)
        return ranks

    def check_and_end(self, ranks):
        for process in ranks:
            self.assertIsNone(process.poll())
            process.kill()

    def sockets(self, cluster, name):
        # Not dup() of Python: it would make the daemon's socket wait.
        found = [socket.socket(fileno=os.dup(each.fileno())) for each in sockets(cluster.daemons[name].pid, ("tcp",), ESTABLISHED)]
        if not found and os.geteuid() != 0:
            self.skipTest("sockets of another process need root")
        for each in found:
            self.addCleanup(each.close)
        return found

    def cut(self, cluster, name):
        for each in sockets(cluster.daemons[name].pid, ("tcp",), ESTABLISHED):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is lost already
            each.close()

    def test_large_slices_use_the_link(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            ranks = self.at_work(cluster, "work")
            cluster.wait(lambda: node_row(cluster, "a", "b")["bulk_tls_bytes"] > 10 << 20, "bytes by TLS")
            row = node_row(cluster, "a", "b")
            self.assertEqual((row["bulk_link"], row["bulk_lost_count"], row["bulk_why"]), ("tls", 0, ""))
            self.assertGreater(row["bulk_tls_rate"], 0)
            self.assertGreater(row["sent_bytes"], row["bulk_tls_bytes"])
            self.assertRegex(cluster.commctl("a", "nodes").stdout, r"BULK  BY QUIC/S  BY TLS/S[^$]*\n[^$]*b  .*  tls  ")
            self.check_and_end(ranks)

    def test_small_operations_stay_on_quic(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            for process in self.ranks(cluster, "ab", "small", "loop", "count=4000", "steps=50"):
                self.expect(process, "OK", within_s=30)
            row = node_row(cluster, "a", "b")
            self.assertEqual((row["bulk_connected"], row["bulk_tls_bytes"]), (False, 0))

    def test_agreements_use_the_link(self):
        """Both nodes agree on each broadcast. Up to 256 KiB, what they say goes with data or receipts, in no packet of its own."""
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            def quic_packets():
                metrics = [cluster.commctl(name, "metrics").stdout for name in "ab"]
                return sum(int(number) for each in metrics for number in re.findall(r"^commd_link_sent_packets_total{[^}]*} (\d+)$", each, re.MULTILINE))

            def broadcasts(comm, count, steps):
                for process in self.ranks(cluster, "ab", comm, "loop", "kind=broadcast", f"count={count}", f"steps={steps}"):
                    self.expect(process, "OK", within_s=60)

            broadcasts("first", 16000, 50)
            self.wait_linked(cluster)
            for count, beside in ((16000, False), (200000, True)):
                before = quic_packets()
                broadcasts(f"of-{count}", count, 1000)
                self.assertEqual(quic_packets() - before > 1000, beside, f"{quic_packets() - before} packets")

    def test_random_operations_as_without_links(self):
        """With links that stay, and with links that are cut all the time: their streams, with agreements, go on over QUIC, and then over the next link."""
        for layout, steps, pause_s in (("ab", 400, None), ("aabb", 400, None), ("abc", 1500, 0.05)):
            ends = []
            for links in ("tls", "quic"):
                with Cluster(sorted(set(layout)), f'bulk_links = "{links}";') as cluster:
                    ranks = [cluster.client(node, BUILD / "tests/system/cells", f"random-{links}", rank, len(layout), "slices", 5, steps)
                             for rank, node in enumerate(layout)]
                    while pause_s and links == "tls" and ranks[0].poll() is None:
                        time.sleep(pause_s)
                        self.cut(cluster, "a")
                    ends.append([self.last_line(process, within_s=60) for process in ranks])
                    if pause_s and links == "tls" and os.geteuid() == 0:  # sockets of another process need root
                        self.assertGreater(node_row(cluster, "a", "b")["bulk_lost_count"], 0)
            self.assertEqual(ends[0], ends[1], layout)
            self.assertEqual({line.split()[0] for line in ends[0]}, {"digest"})

    def test_every_rail_has_its_own(self):
        with Cluster("ab", 'bulk_links = "tls"; rails = 3; slice_bytes = 262144;') as cluster:
            ranks = self.at_work(cluster, "work")
            cluster.wait(lambda: len(self.sockets(cluster, "a")) == 3, "three TCP connections")
            self.check_and_end(ranks)

    def test_both_nodes_must_allow_it(self):
        with Cluster("ab", start=False) as cluster:
            cluster.start("a", "--set", "bulk_links=tls")
            cluster.start("b", "--set", "bulk_links=quic")
            cluster.wait_ready()
            self.check_works(cluster, "work")
            for name, other in ("ab", "ba"):
                row = node_row(cluster, name, other)
                self.assertEqual((row["bulk_link"], row["bulk_connected"], row["bulk_tls_bytes"]), ("", False, 0))

    def test_auto_measures_both(self):
        with Cluster("ab") as cluster:
            ranks = self.at_work(cluster, "work")
            cluster.wait(lambda: min(node_row(cluster, "a", "b")[f"bulk_{way}_rate"] for way in ("quic", "tls")) > 0, "both rates", timeout_s=60)
            self.assertIn(node_row(cluster, "a", "b")["bulk_link"], ("quic", "tls"))
            self.check_and_end(ranks)

    def test_without_tcp_quic_carries_everything(self):
        with Cluster("ab", 'bulk_links = "tls";', start=False) as cluster:
            # Somebody else has b's port, and says nothing.
            host, port = cluster.addresses["b"].rsplit(":", 1)
            program = f"import socket, time; s = socket.create_server(('{host}', {port})); print('ready', flush=True); time.sleep(600)"
            squatter = subprocess.Popen(cluster.in_node("b", sys.executable, "-c", program), stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(squatter.stdout.readline(), "ready\n")
                for name in "ab":
                    cluster.start(name)
                cluster.wait_ready()
                cluster.wait_logged("b", "TCP socket for bulk links")
                self.check_works(cluster, "work")
                row = node_row(cluster, "a", "b")
                self.assertEqual((row["bulk_connected"], row["bulk_tls_bytes"]), (False, 0))
                self.assertGreater(row["bulk_quic_bytes"], 0)
            finally:
                squatter.kill()
                squatter.communicate()

    def send_garbage(self, connection):
        """Its buffer may be full: then the garbage comes a moment later."""
        for _ in range(1000):
            try:
                connection.send(os.urandom(100000), socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                time.sleep(0.001)
            except (BrokenPipeError, ConnectionError):
                return  # it is lost already

    def test_cuts_and_garbage_end_nothing(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            ranks = self.at_work(cluster, "work")
            for number in range(4):
                lost = node_row(cluster, "a", "b")["bulk_lost_count"]
                for each in self.sockets(cluster, "ab"[number % 2]):
                    if number < 2:
                        each.shutdown(socket.SHUT_RDWR)
                    else:
                        self.send_garbage(each)
                cluster.wait(lambda lost=lost: node_row(cluster, "a", "b")["bulk_lost_count"] > lost, "the loss")
                self.wait_linked(cluster)
            self.check_works(cluster, "after")
            for name, other in ("ab", "ba"):
                row = node_row(cluster, name, other)
                self.assertEqual((row["state"], row["connected_count"]), ("up", 1))
            self.check_and_end(ranks)

    def test_a_slow_link_is_given_up(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            ranks = self.at_work(cluster, "work")

            def is_given_up():
                # On a busy machine, the link may be lost for another reason. Then the next one is slowed down, too.
                for name in "ab":
                    for each in sockets(cluster.daemons[name].pid, ("tcp",), ESTABLISHED):
                        each.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 20000)
                return re.search("it carries too little|TCP: Connection timed out", cluster.log("a") + cluster.log("b"))

            self.sockets(cluster, "a")  # skips the test without root
            cluster.wait(is_given_up, "the slow link is given up", timeout_s=60)
            cluster.wait(lambda: node_row(cluster, "a", "b")["bulk_lost_count"] > 0, "node a counts it")
            before = node_row(cluster, "a", "b")["bulk_quic_bytes"]
            cluster.wait(lambda: node_row(cluster, "a", "b")["bulk_quic_bytes"] > before, "QUIC carries the slices")
            self.check_and_end(ranks)

    def test_a_daemon_that_stands_still_for_a_while(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            ranks = self.at_work(cluster, "work")
            os.kill(cluster.daemons["b"].pid, signal.SIGSTOP)
            time.sleep(2)  # less than the patience
            os.kill(cluster.daemons["b"].pid, signal.SIGCONT)
            self.check_works(cluster, "after")
            self.check_and_end(ranks)

    def test_a_lost_daemon_is_named(self):
        with Cluster("ab", 'bulk_links = "tls";') as cluster:
            ranks = self.at_work(cluster, "work")
            cluster.daemons["b"].kill()
            self.expect(ranks[0], "NODE_LOST", "node b", within_s=10)
            ranks[1].kill()


if __name__ == "__main__":
    unittest.main()
