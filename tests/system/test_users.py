#!/usr/bin/env python3
"""Users who may have ranks on some nodes only, and a node with another configuration."""
import os
import signal
import sys
import unittest

from cluster import ROOT, Cluster
from test_admin import NOBODY, as_user

LIMITED = f'users = ( {{ name = "{NOBODY}"; nodes = [ "a", "b" ]; }} );'


class Listed(unittest.TestCase):
    def test_config_show_has_all_rows(self):
        """There are more rows than one answer holds."""
        uids = [str(100000 + 7 * number) for number in range(700)]
        listed = ", ".join(f'{{ name = "{uid}"; nodes = [ "a" ]; }}' for uid in uids)
        with Cluster("ab", settings=f"users = ( {listed} );") as cluster:
            shown = cluster.json("a", "config", "show")
            self.assertEqual([row["key"] for row in shown["settings"] if row["key"].startswith("users.")], [f"users.{uid}" for uid in uids])
            self.assertEqual(shown["left_out"], 0)
            text = cluster.commctl("a", "config", "show").stdout
            self.assertEqual(text.count("\nusers."), len(uids))
            self.assertNotIn("more nodes and users", text)


@unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
class Users(unittest.TestCase):
    def rank(self, cluster, node, comm, rank, size, *options):
        os.chmod(cluster.folder, 0o755)
        return cluster.client(node, *as_user(sys.executable, "-B", ROOT / "tests/system/rank.py", comm, rank, size, *options))

    def test_ranks_are_where_their_user_may_be(self):
        with Cluster("abc", settings=LIMITED) as cluster:
            said = self.rank(cluster, "c", "train", 0, 2, "once").communicate(timeout=20)[0]
            self.assertIn("PERMISSION", said)
            self.assertIn(f"uid {NOBODY} may have no ranks on node c", said)
            ranks = [self.rank(cluster, node, "train", rank, 2, "once") for rank, node in enumerate("ab")]
            others = [cluster.rank(node, "train", rank, 3, "once") for rank, node in enumerate("abc")]
            for rank in ranks + others:
                self.assertIn("OK", rank.communicate(timeout=20)[0])

    def test_a_node_that_lies_and_a_reload(self):
        with Cluster("abc", settings=LIMITED, start=False) as cluster:
            honest, cluster.settings = cluster.settings, ""
            cluster.write_config("c")
            cluster.settings = honest
            for name in "abc":
                cluster.start(name)
            cluster.wait_ready()
            false_rank = self.rank(cluster, "c", "train", 1, 2, "once", "timeout_ms=60000")
            cluster.wait(lambda: "of uid 65534: users in commd.conf allows that user no ranks there" in cluster.log("a"), "node c's rank is ignored")
            cluster.wait_logged("a", "node c: commd ignores what it says")
            ranks = [self.rank(cluster, node, "train", rank, 2, "loop") for rank, node in enumerate("ab")]
            for rank in ranks:
                while rank.stdout.readline().strip() != "READY":
                    self.assertIsNone(rank.poll())
            self.assertIsNone(false_rank.poll())
            cluster.settings = LIMITED.replace('"a", "b"', '"a"')
            cluster.write_config("a")
            cluster.daemons["a"].send_signal(signal.SIGHUP)
            for rank in ranks:
                said = rank.communicate(timeout=20)[0]
                self.assertIn("PERMISSION", said)
                self.assertIn(f"uid {NOBODY} may have no ranks on node b any more", said)


if __name__ == "__main__":
    unittest.main()
