#!/usr/bin/env python3
"""Operations in CUDA graphs, on doubles of GPUs: replays with different data, failures in the middle of replays, captures that are refused."""
import signal
import unittest

from cluster import Cluster
from failure_case import read_until
from program_case import ProgramCase

LATE = {"CUDA_DOUBLE_DELAY_US": "300", "CUDA_DOUBLE_BLOCKING_ALLOCATION": "1"}


class GpuGraphs(ProgramCase):
    def check(self, layout, devices, mode, number, gpus=4, settings="", environment=None):
        """Returns what the ranks print."""
        with Cluster(sorted(set(layout)), settings=settings, gpus=gpus, client_environment=environment, daemon_environment=environment) as cluster:
            ranks = self.start(cluster, layout, "graphs", mode, number, devices=devices)
            outputs = [self.output_of(rank, process) for rank, process in enumerate(ranks)]
            for output in outputs:
                self.assertIn("operations checked", output)
            cluster.wait_gpus_idle()
            for node in sorted(set(layout)):
                cluster.wait(lambda node=node: not cluster.json(node, "comms")["comms"], "no communicator is left")
        return outputs

    def output_of(self, rank, process, within_s=240):
        output, errors = process.communicate(timeout=within_s)
        self.assertEqual(process.returncode, 0, f"rank {rank}: {errors}")
        return output

    def check_kinds(self, layout, devices, replays, **options):
        outputs = self.check(layout, devices, "replays", replays, **options)
        digests = {output.splitlines()[0] for output in outputs}
        self.assertEqual(len(digests), 1, digests)  # all ranks have the same bits
        self.assertRegex(digests.pop(), "^digest [0-9a-f]{16}$")
        self.expect_no_calls(outputs, replays - (replays + 6) // 7)  # those of a graph that runs alone

    def expect_no_calls(self, outputs, replays):
        """The double has counted the calls of the driver by each process: the program's own two for each replay, and none of the library."""
        for output in outputs:
            self.assertIn(f"\n{replays} replays without a call of the driver by the library\n", "\n" + output)

    def test_an_all_reduce(self):
        self.expect_no_calls(self.check("aa", [0, 0], "pair", 1000), 1000)

    def test_a_thousand_replays_of_all_kinds(self):
        self.check_kinds("aa", [0, 1], 1000)

    def test_ranks_that_share_gpus(self):
        self.check_kinds("aaa", [0, 1, 0], 60)

    def test_one_rank(self):
        self.check_kinds("a", [0], 20)

    def test_two_nodes(self):
        self.check_kinds("aabb", [0, 1, 0, 0], 60)

    def test_gpus_that_do_not_reach_each_other(self):
        self.check_kinds("aaa", [0, 1, 1], 40, environment={"CUDA_DOUBLE_PEER": "0"})

    def test_gpus_that_are_late(self):
        self.check_kinds("aa", [0, 1], 20, environment=LATE)

    def test_on_the_socket_alone(self):
        self.check("aa", [0, 1], "pair", 50, environment={"COMMD_RINGS": "off"})

    def test_branches_of_a_graph(self):
        self.check("aab", [0, 1, 0], "forks", 60)

    def test_graphs_come_and_go(self):
        self.check("aa", [0, 1], "many", 100)
        self.check("ab", [0, 0], "many", 20)

    def test_as_many_operations_as_a_graph_holds(self):
        self.check("aa", [0, 1], "full", 4096)

    def test_what_cannot_be_captured(self):
        self.check("aa", [0, 1], "refused", 0)

    def expect_lost(self, ranks, victim, *says, within_s=60):
        """All ranks but the victim are told, and replays go on after that."""
        for rank, process in enumerate(ranks):
            if rank != victim:
                output = self.output_of(rank, process, within_s)
                lost = [line for line in output.splitlines() if line.startswith("lost: ")]
                self.assertEqual(len(lost), 1, output)
                for text in says:
                    self.assertIn(text, lost[0])
                self.assertIn("operations checked", output)

    def test_two_replays_of_one_graph_at_once(self):
        with Cluster("a", gpus=2) as cluster:
            for rank, process in enumerate(self.start(cluster, "aa", "graphs", "twice", 0, devices=[0, 1])):
                self.assertIn("operations checked", self.output_of(rank, process, 60))
            cluster.wait_gpus_idle()

    def test_a_rank_dies_in_the_middle(self):
        for layout, devices, victim in (("aaa", [0, 1, 0], 1), ("aab", [0, 1, 0], 2)):
            with self.subTest(layout), Cluster(sorted(set(layout)), gpus=2) as cluster:
                ranks = self.start(cluster, layout, "graphs", "dies", victim, devices=devices)
                self.expect_lost(ranks, victim, "a rank of the communicator is lost", f"rank {victim} ", f"node {layout[victim]}")
                self.assertEqual(ranks[victim].wait(timeout=5), -signal.SIGKILL)
                self.check_ranks(cluster, layout, "graphs", "pair", 10, name="again", devices=devices)
                cluster.wait_gpus_idle()

    def check_lost_daemon(self, how, *says):
        with Cluster("a", gpus=2) as cluster:
            ranks = self.start(cluster, "aa", "graphs", "waits", 0, devices=[0, 1])
            for process in ranks:
                read_until(process, "READY")
            cluster.daemons["a"].send_signal(how)
            self.expect_lost(ranks, None, *says)
            cluster.daemons["a"].send_signal(signal.SIGCONT)

    def test_a_killed_daemon(self):
        self.check_lost_daemon(signal.SIGKILL, "connection to commd lost")

    def test_a_frozen_daemon(self):
        self.check_lost_daemon(signal.SIGSTOP, "connection to commd lost")

    def test_an_aborted_communicator(self):
        """The text names either the program's communicator, or the graph's."""
        for mark in ("", "~graph"):
            with self.subTest(mark), Cluster("a", gpus=2) as cluster:
                self.check_aborted(cluster, mark)

    def check_aborted(self, cluster, mark):
        ranks = self.start(cluster, "aa", "graphs", "waits", 0, devices=[0, 1])
        for process in ranks:
            read_until(process, "READY")
        shown = [comm for comm in cluster.json("a", "comms")["comms"] if "~graph" in comm["name"]]
        self.assertEqual(len(shown), 1, shown)
        self.assertEqual(shown[0]["captured_ops"], 3)
        self.assertGreater(shown[0]["replays"], 0)
        cluster.commctl("a", "abort", shown[0]["name"] if mark else "graphs", "--reason", "enough of it")
        self.expect_lost(ranks, None, "enough of it")


if __name__ == "__main__":
    unittest.main()
