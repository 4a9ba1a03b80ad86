"""For tests of programs that check their own results, with one process for each rank."""
import unittest

from cluster import BUILD


class ProgramCase(unittest.TestCase):
    def start(self, cluster, layout, program, *options, name=None, devices=None):
        """Starts tests/system/<program>.c. layout: the node of each rank. name: the name of the communicator. devices: the GPU of each rank on its
        node, or -1."""
        return [cluster.client(node, BUILD / "tests/system" / program, name or program, rank, len(layout), *options, *(devices[rank:rank + 1] if devices else []))
                for rank, node in enumerate(layout)]

    def expect_checked(self, ranks):
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, f"{process.args[1]}, rank {rank}: {errors}")
            self.assertIn("operations checked", output)

    def check_ranks(self, *arguments, **options):
        """Takes the arguments of start."""
        self.expect_checked(self.start(*arguments, **options))
