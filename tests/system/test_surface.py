#!/usr/bin/env python3
"""Runs everything that the library offers, between real daemons."""
import os
import time
import unittest

from cluster import Cluster
from program_case import ProgramCase


def connections(cluster, node):
    """Returns the connections that the node's commd has accepted and not closed yet, including commctl's. They are in the clients' network
    namespace, which is also this process's."""
    with open("/proc/net/unix", encoding="ascii") as file:
        sockets = [line.split() for line in file]
    return [each for each in sockets if each[-1] == cluster.socket(node) and each[5] == "03"]


class Surface(ProgramCase):
    environment = {}

    def check(self, layout, turns=8, settings=""):
        """layout: the node of each rank."""
        with Cluster(sorted(set(layout)), settings=settings, client_environment=self.environment) as cluster:
            self.check_ranks(cluster, layout, "surface", turns)

    def test_one_rank(self):
        self.check("a")

    def test_one_node_of_four_ranks(self):
        self.check("aaaa")

    def test_two_nodes_of_one_rank(self):
        self.check("ab")

    def test_three_nodes_of_seven_ranks_interleaved(self):
        self.check("cbcabca")

    @staticmethod
    def held(cluster, node):
        status = cluster.json(node, "status")
        return status["clients"], status["comms_formed"], status["memory_registered_bytes"]

    @staticmethod
    def descriptors(pids):
        time.sleep(0.02)
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

    def test_many_at_once(self):
        """Eight programs of three processes each run at the same time on three nodes. Afterwards the daemons hold nothing of them."""
        with Cluster("abc", client_environment=self.environment) as cluster:
            pids = [cluster.daemons[node].pid for node in "abc"]
            cluster.wait(lambda: not any(connections(cluster, node) for node in "abc"), "those who asked whether it is ready are gone")
            # the descriptors of a session are closed after its socket
            before = [min(counts) for counts in zip(*(self.descriptors(pids) for _ in range(10)))]
            programs = [self.start(cluster, ("abc", "bca", "aab", "cbb")[number % 4], "surface", 4, name=f"many-{number}") for number in range(8)]
            for ranks in programs:
                self.expect_checked(ranks)
            cluster.wait(lambda: self.descriptors(pids) == before, "descriptors are given back")
            for node in "abc":  # memory of sessions is given back bit by bit, after their descriptors
                cluster.wait(lambda node=node: self.held(cluster, node) == (1, 0, 0), f"node {node} has given back what clients held")

    def test_a_bad_link(self):
        """With 1 % of loss and 20 ms of delay between two of three nodes."""
        with Cluster("abc", relays={("a", "b"): (0.01, 20)}, client_environment=self.environment) as cluster:
            self.check_ranks(cluster, "cbcabca", "surface", 1)


class OnTheSocketAlone(Surface):
    """Makes every kind of request that programs make, without rings, as a client in another language may."""

    environment = {"COMMD_RINGS": "0"}


if __name__ == "__main__":
    unittest.main()
