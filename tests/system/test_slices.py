#!/usr/bin/env python3
"""Long collectives of plain memory within a node go through cells in slices. Every element is right, whatever the ranks do meanwhile."""
import os
import signal
import time
import unittest

from cluster import BUILD, Cluster
from program_case import ProgramCase

BEGINS, CEASES = "long operations go through cells in slices", "does not wait at once: long operations on memory of comm_mem_alloc go to commd"
READS = r"rank \d+ reads memory of rank"
PROCESS_READS = r"rank \d+ reads the process of rank"
SURVIVORS_S = 20


class Slices(ProgramCase):
    def run_ranks(self, cluster, layout, how, program="slices", **options):
        """Returns what each rank has said on standard error."""
        ranks = self.start(cluster, layout, program, how, name=f"slices-{how}-{len(layout)}", **options)
        said = []
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, f"{how}, rank {rank}: {errors}")
            self.assertIn("operations checked", output)
            said.append(errors)
        return said

    def check(self, how, layouts=("aa", "aaa"), program="slices", **environment):
        """Returns what each rank of the last layout has said."""
        texts = []
        with Cluster(["a"], client_environment={"COMM_DEBUG": "1", **environment}) as cluster:
            for layout in layouts:
                with self.subTest(layout=layout):
                    texts = self.run_ranks(cluster, layout, how, program)
                    for rank, said in enumerate(texts):
                        self.assertIn(BEGINS, said, f"rank {rank} had no slices")
        return texts

    def test_every_kind(self):
        self.check("kinds", ("aa", "aaa", "aaaaa"))

    def test_without_rings(self):
        self.check("kinds", ("aaa",), COMMD_RINGS="off")

    def test_some_memory_is_registered(self):
        self.check("mixed", ("aaa",))

    def check_lent(self, how, layouts):
        for layout in layouts:
            for rank, said in enumerate(self.check(how, (layout,), SLICES_LEND="1")):
                self.assertRegex(said, READS, f"{how}, {layout}, rank {rank}")

    def test_lent_memory(self):
        """The ranks read each other's memory where it is."""
        self.check_lent("kinds", ("aa", "aaa", "aaaaa"))
        self.check_lent("freed", ("aa", "aaa"))

    def test_lent_memory_of_slow_ranks(self):
        for how in "slow", "bursts", "threads", "away":
            self.check_lent(how, ("aa", "aaa"))

    def check_apart(self, program, how, expected, **environment):
        """Rank 1 is in a pid namespace of its own. What the others find there is another process's."""
        with Cluster(["a"], client_environment={"COMM_DEBUG": "1", **environment}) as cluster:
            if not cluster.namespaces:
                self.skipTest("a pid namespace needs root")
            ranks = [cluster.client("a", *(("unshare", "--pid", "--fork", "--kill-child") if rank == 1 else ()),
                                    BUILD / "tests/system" / program, "apart", rank, 3, how) for rank in range(3)]
            for rank, process in enumerate(ranks):
                output, errors = process.communicate(timeout=240)
                self.assertEqual(process.returncode, 0, errors)
                self.assertIn("operations checked", output)
                if rank != 1:
                    self.assertIn(expected, errors)

    def test_memory_that_cannot_be_lent(self):
        """The others cannot open a rank's files."""
        self.check_apart("slices", "kinds", "cannot read memory of rank 1", SLICES_LEND="1")

    def check_read(self, how, expected):
        """The ranks read each other's processes. At least one of them says what is expected."""
        for layout in "aa", "aaa":
            with Cluster(["a"], client_environment={"COMM_DEBUG": "1"}) as cluster:
                said = self.run_ranks(cluster, layout, how, "slices_read")
                for rank, text in enumerate(said):
                    self.assertRegex(text, PROCESS_READS, f"{how}, {layout}, rank {rank}")
                self.assertRegex("".join(said), expected)

    def test_memory_that_others_cannot_read(self):
        """In the middle of an operation. It ends well, through commd, and later ones are copied."""
        for page in "first", "middle", "last":
            self.check_read(page, r"could not read the process of rank \d")

    def test_some_ranks_work_in_place(self):
        self.check_read("mixes", "a rank works in place, and others would read processes")

    def test_a_page_that_comes_late(self):
        """The others do not wait in the kernel for a page of a rank's input, but time out."""
        if os.geteuid() != 0:
            self.skipTest("a page that the kernel waits for needs root (userfaultfd)")
        self.check_read("absent", "has not (copied its part|posted it)")

    def test_processes_that_cannot_be_read(self):
        self.check_apart("slices_read", "mixes", "cannot read the process of rank 1")

    def test_a_rank_that_computes_holds_nobody_up(self):
        self.assertNotIn(CEASES, self.check("away", ("aa",))[1], "the library's thread goes on with ordinary memory")

    def test_counts_for_each_rank(self):
        for how in "wait", "later", "contradict":
            self.check(how, ("aa", "aaa", "aaaaa"), "slices_counts")

    def test_counts_of_ranks_that_hand_over(self):
        """Some ranks give all to commd, and one cannot begin again."""
        self.check("in-place", ("aa", "aaa"), "slices_counts")
        with Cluster(["a"]) as cluster:
            for off in 0, 2:
                ranks = [cluster.client("a", "env", f"COMMD_CELLS={'off' if rank == off else 'on'}", BUILD / "tests/system/slices_counts", f"off-{off}", rank, 3, "wait")
                         for rank in range(3)]
                self.expect_checked(ranks)

    def test_a_slow_rank_signals_and_forks(self):
        self.check("slow")

    def test_bursts_and_groups(self):
        self.check("bursts", ("aa",))

    def test_other_threads_take_events(self):
        self.check("threads", ("aa",))

    def expect_none_in_cells(self, cluster):
        self.assertRegex(cluster.commctl("a", "metrics").stdout, r"(?m)^commd_operations_in_cells_total 0$")

    def test_without_cells(self):
        with Cluster(["a"], client_environment={"COMM_DEBUG": "1", "COMMD_CELLS": "off"}) as cluster:
            for said in self.run_ranks(cluster, "aa", "kinds"):
                self.assertNotIn(BEGINS, said)
            self.expect_none_in_cells(cluster)

    def test_a_node_with_gpus(self):
        """Processes that use no GPU go through cells there, too. A rank with a GPU gives all to commd, and so do the others."""
        with Cluster(["a"], gpus=1, client_environment={"COMM_DEBUG": "1"}) as cluster:
            self.assertNotIn(BEGINS, self.run_ranks(cluster, "aa", "kinds", devices=[0, -1])[0])
            self.expect_none_in_cells(cluster)
            for said in self.run_ranks(cluster, "aa", "kinds"):
                self.assertIn(BEGINS, said)

    def end_in_the_middle(self, how, **environment):
        """Rank 1 ends. Returns what the other ranks print."""
        texts = []
        with Cluster(["a"], client_environment=environment) as cluster:
            ranks = self.start(cluster, "aaa", "slices", how, name=f"slices-{how}")
            for rank in (0, 2):
                output, errors = ranks[rank].communicate(timeout=SURVIVORS_S)
                self.assertEqual(ranks[rank].returncode, 0, f"{how}, rank {rank}: {errors}")
                texts.append(output)
            ranks[1].send_signal(signal.SIGCONT)
            code = -signal.SIGKILL if how == "killed" else 0
            ranks[1].communicate(timeout=SURVIVORS_S)
            if how != "stopped":  # rank 1 may end in any way
                self.assertEqual(ranks[1].returncode, code)
            for process in self.start(cluster, "aa", "slices", "once", name="afterwards"):
                output, errors = process.communicate(timeout=240)
                self.assertEqual(process.returncode, 0, errors)
        return texts

    def test_a_rank_is_killed_in_the_middle(self):
        for text in self.end_in_the_middle("killed"):
            self.assertRegex(text, "rank 1")

    def test_a_rank_unmaps_its_input_in_the_middle(self):
        for text in self.end_in_the_middle("unmapped"):
            self.assertRegex(text, "rank 1")

    def test_a_rank_stops_in_the_middle(self):
        began_s = time.monotonic()
        for text in self.end_in_the_middle("stopped"):
            self.assertRegex(text, "rank 1 .*has not (copied its part|posted it)")
        self.assertLess(time.monotonic() - began_s, 60)

    def test_lent_memory_at_the_end(self):
        for how in "killed", "stopped", "aborted", "destroyed":
            self.end_in_the_middle(how, SLICES_LEND="1")

    def test_a_rank_aborts_in_the_middle(self):
        for text in self.end_in_the_middle("aborted"):
            self.assertIn("enough", text)

    def test_a_rank_leaves_in_the_middle(self):
        self.end_in_the_middle("destroyed")


if __name__ == "__main__":
    unittest.main()
