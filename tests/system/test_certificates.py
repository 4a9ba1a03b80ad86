#!/usr/bin/env python3
"""Changes of the cluster while operations run. A reload removes, moves or revokes nodes, or renews certificates."""
import re
import signal
import time
import unittest

from cluster import BUILD, Cluster, run
from failure_case import FailureCase

DAY_S = 86400
SETTINGS = "rails = 3; slice_bytes = 4096; reconnect_max_ms = 500;"


def reload(cluster, name):
    """Reloads by a signal. test_configuration.py reloads by commctl."""
    def ends():
        return len(re.findall("reload: done|stay as they were", cluster.log(name)))
    done = ends()
    cluster.daemons[name].send_signal(signal.SIGHUP)
    cluster.wait(lambda: ends() > done, f"node {name} has reloaded")


def pki(cluster, *arguments):
    run(BUILD / "commctl", "pki", *arguments, "--dir", cluster.folder / "pki")


def use_revocation_list(cluster):
    cluster.settings += f'revocation_list = "{cluster.folder}/pki/ca.crl";'
    for name in cluster.names:
        cluster.write_config(name)


def names(cluster, name):
    return {row["name"] for row in cluster.json(name, "nodes")["nodes"]}


class Certificates(FailureCase):
    def test_a_removed_node_goes_and_comes_back(self):
        with Cluster("abc", SETTINGS) as cluster:
            of_three = self.start(cluster, "abc", "of-three", "loop", "seconds=600", "count=50000")
            of_two = self.start(cluster, "ac", "of-two", "loop", "seconds=600", "count=50000")
            cluster.names = ["a", "c"]
            cluster.write_config("a")
            reload(cluster, "a")
            for process in of_three:
                self.expect(process, "NODE_LOST", "node ", "the configuration of node a does not name it any more", within_s=10)
            self.assertEqual(names(cluster, "a"), {"a", "c"})
            cluster.wait(lambda: cluster.commctl("b", "status").returncode == 5, "node b is told")
            cluster.wait_logged("b", "does not name it any more")
            self.assertEqual(cluster.commctl("a", "status").returncode, 0, "nothing is missing")
            self.assertNotEqual(cluster.commctl("a", "ping", "-n", "1", "b").returncode, 0)
            for process in of_two:
                self.assertIsNone(process.poll())
                process.kill()
            cluster.names = ["a", "b", "c"]
            cluster.write_config("a")
            reload(cluster, "a")
            cluster.wait_ready()
            self.run_ranks(cluster, "abc", "again")

    def test_a_revoked_node_is_dropped_while_it_works(self):
        with Cluster("abc", SETTINGS) as cluster:
            of_three = self.start(cluster, "abc", "of-three", "loop", "seconds=600", "count=50000")
            of_two = self.start(cluster, "ac", "of-two", "loop", "seconds=600", "count=50000")
            pki(cluster, "revoke", "b")
            use_revocation_list(cluster)  # this setting was empty before: no restart is needed
            for name in "ac":
                reload(cluster, name)
            for process in of_three:
                self.expect(process, "NODE_LOST", "is revoked", within_s=10)
            for name in "ac":
                row = next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == "b")
                self.assertNotEqual(row["state"], "up")
                cluster.wait(lambda name=name: "revoked" in next(row["last_error"] for row in cluster.json(name, "nodes")["nodes"] if row["name"] == "b"),
                             f"node {name} says why", 5)
                cluster.wait_logged(name, "the certificate (subject \"CN=b\", name \"b\") is revoked")
            late = self.ranks(cluster, "ab", "late", "once", "timeout_ms=1500")
            for process in late:
                self.expect(process, "TIMED_OUT", within_s=10)
            for process in of_two:
                self.assertIsNone(process.poll())
                process.kill()
            pki(cluster, "renew", "b", "--new-key")  # then it is let in again
            reload(cluster, "b")
            cluster.wait_ready()
            self.run_ranks(cluster, "abc", "again")

    def test_the_end_of_certificates_is_shown_in_time(self):
        with Cluster("ab", start=False) as cluster:
            for name, days in (("a", 20), ("b", 10)):
                pki(cluster, "renew", name, "--days", str(days))
            for name in "ab":
                cluster.start(name)
            cluster.wait_ready()
            now_s = time.time()
            for name in "ab":
                rows = {row["name"]: row["certificate_ends_s"] - now_s for row in cluster.json(name, "nodes")["nodes"]}
                self.assertAlmostEqual(rows["a"], 20 * DAY_S, delta=300)
                self.assertAlmostEqual(rows["b"], 10 * DAY_S, delta=300)
            day = time.strftime("%Y-%m-%d", time.gmtime(cluster.json("a", "status")["certificate_ends_s"]))
            self.assertRegex(cluster.commctl("a", "nodes").stdout, f"CERTIFICATE UNTIL[^$]*\\n[^$]*{day}")
            self.assertRegex(cluster.commctl("a", "status").stdout, f"certificate +until {day}, (19|20) days: renew it")
            cluster.wait(lambda: re.search("the certificate of node a ends in (19|20) days", cluster.log("a")), "the log says so")
            pki(cluster, "renew", "a")
            reload(cluster, "a")
            self.assertNotIn("renew it", cluster.commctl("a", "status").stdout)

    def test_certificates_are_renewed_under_load(self):
        """New handshakes use the new certificates, and no operation fails."""
        with Cluster("ab", SETTINGS) as cluster:
            use_revocation_list(cluster)
            ranks = self.start(cluster, "abab", "busy", "loop", "seconds=600", "count=50000")
            for turn in range(3):
                for name in "ab":
                    pki(cluster, "renew", name, *(["--new-key"] if turn else []))
                    reload(cluster, name)
                    cluster.wait_logged(name, r"reload: done[^\n]*\n\Z", is_pattern=True)
                self.run_ranks(cluster, "ab", f"turn-{turn}")
            cluster.daemons["b"].kill()  # with the latest certificates
            cluster.daemons["b"].wait()
            for process in ranks:
                self.expect(process, "NODE_LOST" if process in ranks[::2] else "DAEMON_LOST", within_s=10)
            for name in "ab":
                self.assertNotIn("certificate", re.sub("reload: applied: .*", "", cluster.log(name)))
            cluster.start("b")
            cluster.wait_ready()
            self.run_ranks(cluster, "ab", "anew")

    def run_ranks(self, cluster, nodes, comm):
        """Runs ranks whose operations use all rails."""
        for process in self.ranks(cluster, nodes, comm, "loop", "count=50000", "steps=5"):
            self.expect(process, "OK", within_s=40)

    def test_a_node_that_moved_is_dialled_at_its_new_address(self):
        with Cluster("ab", SETTINGS, namespaces=False) as cluster:
            ranks = self.start(cluster, "ab", "moving", "loop", "seconds=600", "count=50000")
            cluster.addresses["b"] = f"127.0.0.1:{Cluster.next_port}"
            Cluster.next_port += 4
            cluster.write_config("a")
            reload(cluster, "a")
            row = next(row for row in cluster.json("a", "nodes")["nodes"] if row["name"] == "b")
            self.assertEqual((row["address"], row["state"]), (cluster.addresses["b"], "up"))
            for process in ranks:  # working connections stay
                self.assertIsNone(process.poll())
            cluster.daemons["b"].kill()
            cluster.daemons["b"].wait()
            for process in ranks:
                process.kill()
            cluster.write_config("b")
            cluster.start("b")
            cluster.wait_ready()
            self.run_ranks(cluster, "ab", "moved")

    def test_a_reload_that_fails_changes_nothing(self):
        with Cluster("ab", SETTINGS) as cluster:
            cluster.names = ["a", "c"]
            cluster.addresses["c"] = cluster.addresses["b"]
            for key, value, text in (("certificate", cluster.folder / "pki/b.crt", "does not belong"), ("authority", "/nowhere", "No such file"),
                                     ("node_name", "c", "only with a restart")):
                cluster.write_config("a", **{key: value})
                reload(cluster, "a")
                cluster.wait_logged("a", text)
                cluster.wait_logged("a", "stay as they were")
                self.assertEqual(names(cluster, "a"), {"a", "b"}, key)
            cluster.names = ["a", "b"]
            self.run_ranks(cluster, "ab", "still")


if __name__ == "__main__":
    unittest.main()
