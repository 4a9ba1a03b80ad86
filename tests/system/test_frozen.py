#!/usr/bin/env python3
"""A commd that stands still. Its own clients are told soon. After a short pause, nothing fails."""
import signal
import time
import unittest

from cluster import Cluster, cpu_s
from failure_case import FailureCase

WAITS = True
NOTICED_S = 6.0  # after the nodes' patience of 4 s, the heartbeat notices within 0.8 s; the rest is for a busy machine

PAUSE = "pause=0.005"  # ranks that are busy all the time would take the processors from other tests


class Frozen(FailureCase):
    def expect_unharmed(self, ranks):
        """Each rank ends when its time is over, or finds that the other one has ended."""
        for process in ranks:
            output, errors = process.communicate(timeout=30)
            last = (output.strip().splitlines() or [errors])[-1]
            self.assertTrue(last.startswith("OK") or "has left after op" in last, last)

    def test_its_clients_are_told(self):
        """Those with rings and those without, and one that waits for a rank that never comes."""
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE)
            waiting = cluster.rank("a", "forming", 0, 2, "once")
            cluster.client_environment = {"COMMD_RINGS": "0"}
            ranks += self.start(cluster, "aa", "without-rings", "loop", PAUSE)
            waits_too = cluster.rank("a", "forming-too", 0, 2, "once")
            cluster.client_environment = {}
            cluster.wait(lambda: cluster.json("a", "status")["comms_forming"] == 2, "both wait for another")
            cluster.daemons["a"].send_signal(signal.SIGSTOP)
            started = time.monotonic()
            for process in [*ranks, waiting, waits_too]:
                self.expect(process, "DAEMON_LOST", "stopped, or gets no processor time", within_s=NOTICED_S)
            self.assertGreater(time.monotonic() - started, 4.0)
            cluster.daemons["a"].send_signal(signal.SIGCONT)
            cluster.wait(lambda: cluster.json("a", "status")["clients"] <= 1, "it has noticed that its clients are gone")
            self.check_new_communicator(cluster, "aa", "work")

    def test_a_short_pause_fails_nothing(self):
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=6", "together=1")
            for _ in range(3):
                cluster.daemons["a"].send_signal(signal.SIGSTOP)
                time.sleep(1.2)
                cluster.daemons["a"].send_signal(signal.SIGCONT)
                time.sleep(0.5)
            self.expect_unharmed(ranks)

    def pause(self, cluster, name, pause_s):
        """Stops the node's commd for that time."""
        cluster.daemons[name].send_signal(signal.SIGSTOP)
        time.sleep(pause_s)
        cluster.daemons[name].send_signal(signal.SIGCONT)

    def test_a_pause_within_the_patience_fails_nothing(self):
        """Neither the other node nor its own clients give it up."""
        with Cluster("ab") as cluster:
            ranks = self.start(cluster, "aabb", "work", "loop", PAUSE, "seconds=8", "together=1", "op_timeout_ms=30000")
            self.pause(cluster, "b", 3.3)
            time.sleep(0.5)
            self.pause(cluster, "a", 3.3)
            self.expect_unharmed(ranks)

    def test_the_patience_is_the_configuration_s(self):
        with Cluster("a", settings="heartbeat_timeout_ms = 8000;") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=7", "together=1", "op_timeout_ms=30000")
            self.pause(cluster, "a", 5.8)  # the patience would otherwise be 4.8 s
            self.expect_unharmed(ranks)

    def test_a_client_that_was_stopped_itself(self):
        """Here the client itself stood still. It must not blame commd for the silence."""
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "aa", "work", "loop", PAUSE, "seconds=6", "together=1", "op_timeout_ms=30000")
            for process in ranks:
                process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            for process in ranks:
                process.send_signal(signal.SIGCONT)
            self.expect_unharmed(ranks)

    def test_the_beat_costs_next_to_nothing(self):
        with Cluster("a") as cluster:
            ranks = [cluster.rank("a", "idle", rank, 2, "idle", "seconds=5") for rank in range(2)]
            time.sleep(1.5)
            before = cpu_s(cluster.daemons["a"].pid)
            time.sleep(3)
            self.assertLess(cpu_s(cluster.daemons["a"].pid) - before, 0.03)
            for process in ranks:
                self.expect(process, "OK", within_s=20)


if __name__ == "__main__":
    unittest.main()
