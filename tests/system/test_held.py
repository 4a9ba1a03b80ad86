#!/usr/bin/env python3
"""A rank submits more collectives than the window takes, and then the message that the other rank waits for before it submits any."""
import pathlib
import re
import tempfile
import unittest

from cluster import Cluster
from program_case import ProgramCase

MIB = 1 << 20
NEEDED_KIB = 8 << 20  # by two ranks that have 1.2 GiB of buffers, and stage a GiB of them
AVAILABLE_KIB = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text()).group(1))


class Held(ProgramCase):
    def check(self, *rows):
        """Rows of count, bytes and how, for tests/system/held.c."""
        for layout in ("aa", "ab"):
            with Cluster(sorted(set(layout))) as cluster, tempfile.TemporaryDirectory() as folder:
                for number, row in enumerate(rows):
                    with self.subTest(layout=layout, row=row):
                        self.check_ranks(cluster, layout, "held", *row, f"{folder}/{number}", name=f"held-{number}")

    def test_more_than_the_window(self):
        self.check((2000, 64, "shared"), (2000, 4096, "plain"), (2000, 64, "group"))

    def test_ten_thousand(self):
        self.check((10000, 64, "plain"), (10000, 64, "group"))

    @unittest.skipIf(AVAILABLE_KIB < NEEDED_KIB, "less than 8 GiB of memory are free")
    def test_more_than_a_gibibyte_of_staging(self):
        self.check((150, 8 * MIB, "plain"))

    def test_records_of_events(self):
        self.check((2000, 64, "events"))

    def test_a_program_that_calls_nothing(self):
        """Nobody but the library's own thread sends what is held."""
        self.check((3000, 64, "away"))

    def test_a_rank_that_leaves(self):
        self.check((2000, 64, "left"))


if __name__ == "__main__":
    unittest.main()
