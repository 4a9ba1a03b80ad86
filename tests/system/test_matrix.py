#!/usr/bin/env python3
"""All types and operators between real daemons: compared with the reference, and bit-identical on all ranks."""
import unittest

from cluster import Cluster
from program_case import ProgramCase


class Matrix(ProgramCase):
    environment = {}

    def check(self, layout, settings=""):
        """layout: the node of each rank."""
        with Cluster(sorted(set(layout)), settings, client_environment=self.environment) as cluster:
            self.check_ranks(cluster, layout, "matrix")

    def test_one_node_of_three_ranks(self):
        self.check("aaa")

    def test_two_nodes_of_two_ranks(self):
        self.check("aabb")

    def test_three_nodes_of_one_two_and_three_ranks_interleaved(self):
        self.check("cbcabc")

    def test_three_rails(self):
        self.check("abab", "rails = 3; slice_bytes = 4096;")


class OnTheSocketAlone(Matrix):
    environment = {"COMMD_RINGS": "0"}


class ThroughCommdAlone(Matrix):
    environment = {"COMMD_CELLS": "off"}

    def test_one_node_of_three_ranks(self):
        self.check("aaa")

    test_two_nodes_of_two_ranks = test_three_nodes_of_one_two_and_three_ranks_interleaved = test_three_rails = None


if __name__ == "__main__":
    unittest.main()
