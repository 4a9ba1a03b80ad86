#!/usr/bin/env python3
"""The table of the predecessors' faults. Each fault has a test, and each test that the table names exists and runs."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULTS = 17


class Predecessors(unittest.TestCase):
    def test_every_fault_has_its_test(self):
        seen = set()
        for line in (ROOT / "tests/predecessors.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            number, _, file, test = (field.strip() for field in line.split("|"))
            seen.add(int(number))
            self.assertRegex((ROOT / file).read_text(), rf"cmocka_unit_test(_setup_teardown)?\(\s*{re.escape(test)}\b", line)
        self.assertEqual(seen, set(range(1, FAULTS + 1)))


if __name__ == "__main__":
    unittest.main()
