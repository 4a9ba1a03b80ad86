#!/usr/bin/env python3
"""A commd that stands still. Its own clients are told soon. After a short pause, nothing fails."""
import os
import signal
import time
import unittest

from cluster import Cluster, cpu_s
from failure_case import FailureCase

WAITS = True
NOTICED_S = 6.0  # after the nodes' patience of 4 s, the heartbeat notices within 0.8 s; the rest is for a busy machine

PAUSE = "pause=0.005"  # ranks that are busy all the time would take the processors from other tests


class Frozen(FailureCase):
    def check_frozen(self, *options):
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, *options)
            waiting = cluster.rank("a", "forming", 0, 2, "once")  # its other rank never comes
            cluster.wait(lambda: cluster.json("a", "status")["comms_forming"] == 1, "the third one waits for a fourth")
            cluster.daemons["a"].send_signal(signal.SIGSTOP)
            started = time.monotonic()
            for process in [*ranks, waiting]:
                self.expect(process, "DAEMON_LOST", "stopped, or gets no processor time", within_s=NOTICED_S)
            self.assertGreater(time.monotonic() - started, 4.0)
            cluster.daemons["a"].send_signal(signal.SIGCONT)
            cluster.wait(lambda: cluster.json("a", "status")["clients"] <= 1, "it has noticed that its clients are gone")
            self.check_new_communicator(cluster, "aa", "work")

    def expect_unharmed(self, ranks):
        """Each rank ends when its time is over, or finds that the other one has ended."""
        for process in ranks:
            output, errors = process.communicate(timeout=30)
            last = (output.strip().splitlines() or [errors])[-1]
            self.assertTrue(last.startswith("OK") or "has left after op" in last, last)

    def test_its_clients_are_told(self):
        self.check_frozen()

    def test_without_rings(self):
        os.environ["COMMD_RINGS"] = "0"
        self.addCleanup(os.environ.pop, "COMMD_RINGS")
        self.check_frozen()

    def test_a_short_pause_fails_nothing(self):
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=8")
            for _ in range(3):
                cluster.daemons["a"].send_signal(signal.SIGSTOP)
                time.sleep(1.2)
                cluster.daemons["a"].send_signal(signal.SIGCONT)
                time.sleep(1)
            self.expect_unharmed(ranks)

    def pause(self, cluster, name, pause_s):
        """Stops the node's commd for that time."""
        cluster.daemons[name].send_signal(signal.SIGSTOP)
        time.sleep(pause_s)
        cluster.daemons[name].send_signal(signal.SIGCONT)

    def test_a_pause_within_the_patience_fails_nothing(self):
        """Neither the other node nor its own clients give it up."""
        with Cluster("ab") as cluster:
            ranks = self.start(cluster, "aabb", "work", "loop", PAUSE, "seconds=10", "op_timeout_ms=30000")
            self.pause(cluster, "b", 3.3)
            time.sleep(1)
            self.pause(cluster, "a", 3.3)
            self.expect_unharmed(ranks)

    def test_the_patience_is_the_configuration_s(self):
        with Cluster("a", settings="heartbeat_timeout_ms = 8000;") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=10", "op_timeout_ms=30000")
            self.pause(cluster, "a", 6.5)
            self.expect_unharmed(ranks)

    def test_a_client_that_was_stopped_itself(self):
        """Here the client itself stood still. It must not blame commd for the silence."""
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=8", "op_timeout_ms=30000")
            for process in ranks:
                process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            for process in ranks:
                process.send_signal(signal.SIGCONT)
            self.expect_unharmed(ranks)

    def test_the_beat_costs_next_to_nothing(self):
        with Cluster("a") as cluster:
            ranks = [cluster.rank("a", "idle", rank, 2, "idle", "seconds=9") for rank in range(2)]
            time.sleep(2)
            before = cpu_s(cluster.daemons["a"].pid)
            time.sleep(5)
            self.assertLess(cpu_s(cluster.daemons["a"].pid) - before, 0.05)
            for process in ranks:
                self.expect(process, "OK", within_s=20)


if __name__ == "__main__":
    unittest.main()
