#!/usr/bin/env python3
"""Ranks post all receives, and then all sends. However many and large the messages are, none waits for another, on one node and between two."""
import pathlib
import re
import unittest

from cluster import Cluster
from program_case import ProgramCase

MIB = 1 << 20
NEEDED_KIB = 8 << 20  # for two ranks that stage everything that they send and receive
AVAILABLE_KIB = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text()).group(1))


class Posted(ProgramCase):
    def check(self, *rows):
        """Each row is a count, a size in bytes and HOW, for tests/system/posted.c."""
        for layout in ("aa", "ab"):
            with Cluster(sorted(set(layout))) as cluster:
                for number, row in enumerate(rows):
                    with self.subTest(layout=layout, row=row):
                        self.check_ranks(cluster, layout, "posted", *row, name=f"posted-{number}")

    def test_more_than_the_window_of_collectives(self):
        self.check((1500, 64, "shared"), (1500, 64, "plain"), (1500, 20000, "plain"), (1500, 100, "group"))

    def test_a_hundred_thousand(self):
        self.check((100000, 64, "shared"), (100000, 64, "plain"))

    @unittest.skipIf(AVAILABLE_KIB < NEEDED_KIB, "less than 8 GiB of memory are free")
    def test_more_than_a_gibibyte_of_staging(self):
        self.check((520, MIB, "both"), (5, 104 * MIB, "plain"), (3, 172 * MIB, "group"))


if __name__ == "__main__":
    unittest.main()
