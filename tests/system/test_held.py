#!/usr/bin/env python3
"""A rank submits more collectives than the window takes, and then a message. The other rank waits for that message before it submits any."""
import pathlib
import re
import tempfile
import unittest

from cluster import Cluster
from program_case import ProgramCase

MIB = 1 << 20
NEEDED_KIB = 8 << 20  # for two ranks with buffers of 1.2 GiB that stage 1 GiB of them
AVAILABLE_KIB = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text()).group(1))


class Held(ProgramCase):
    def check(self, *rows):
        """Each row is a count, a size in bytes and HOW, for tests/system/held.c."""
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
        """Only the library's own thread can send what is held back."""
        self.check((3000, 64, "away"))

    def test_a_rank_that_leaves(self):
        self.check((2000, 64, "left"))


if __name__ == "__main__":
    unittest.main()
