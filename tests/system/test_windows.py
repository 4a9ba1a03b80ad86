#!/usr/bin/env python3
"""Large collectives of plain memory within a node pass through windows. Every element is right, whatever the ranks do meanwhile."""
import signal
import time
import unittest

import cluster as clusters
from cluster import Cluster
from program_case import ProgramCase
from raw_client import RawClient, HostMemory, filled, operation, parse

BEGINS = "pass through a window"
SURVIVORS_S = 20
MIB = 1 << 20
ALL_REDUCE, BARRIER, SCAN, U8 = 0, 2, 9, 13
HOST = 1  # device -1, as a signed number is written
INVALID_ARGUMENT, UNSUPPORTED, TIMED_OUT, RANK_LOST = 2, 3, 10, 15
WHOLE_BYTES, WINDOW_BYTES, SLICES = 8 * MIB, 2 * MIB, 16
BOTH = 3  # ranges that are windows


class Windows(ProgramCase):
    def run_ranks(self, cluster, layout, how):
        """Returns what each rank has said on standard error."""
        ranks = self.start(cluster, layout, "windows", how, name=f"windows-{how}-{len(layout)}")
        said = []
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, f"{how}, rank {rank}: {errors}")
            self.assertIn("operations checked", output)
            said.append(errors)
        return said

    def check(self, how, layouts=("aa", "aaa"), **environment):
        with Cluster(["a"], client_environment={"COMM_DEBUG": "1", **environment}) as cluster:
            for layout in layouts:
                with self.subTest(layout=layout):
                    for rank, said in enumerate(self.run_ranks(cluster, layout, how)):
                        self.assertIn(BEGINS, said, f"rank {rank} had no window")

    def test_every_kind(self):
        self.check("kinds", ("aa", "aaa", "aaaaa"))

    def test_without_rings(self):
        self.check("kinds", ("aaa",), COMMD_RINGS="off")

    def test_some_memory_is_registered(self):
        self.check("mixed", ("aaa",))

    def test_a_rank_that_computes_holds_nobody_up(self):
        self.check("away", ("aa",))

    def test_a_slow_rank_signals_and_forks(self):
        self.check("slow")

    def test_bursts_and_groups(self):
        self.check("bursts", ("aa",))

    def test_other_threads_take_events(self):
        self.check("threads", ("aa",))

    def test_a_node_with_gpus(self):
        """A rank cannot know whether others have buffers on a GPU, so commd offers no windows there."""
        with Cluster(["a"], gpus=1, client_environment={"COMM_DEBUG": "1"}) as cluster:
            for said in self.run_ranks(cluster, "aa", "kinds"):
                self.assertNotIn(BEGINS, said)
            raw = RawClient(cluster.socket("a"))
            self.assertEqual(raw.ask(RawClient.COMM_INIT, {1: 1, 2: "raw", 3: 0, 4: 1, 5: HOST, 6: 20000})[0], 0)
            memory = HostMemory(raw, 1, WINDOW_BYTES)
            status, text = raw.submit(operation(1, 1, ALL_REDUCE, U8, 2 * WHOLE_BYTES, input=(1, 0), output=(1, 0), window=(BOTH, 4)))
            self.assertEqual(status, UNSUPPORTED, text)
            memory.close()
            raw.close()

    def end_in_the_middle(self, how, **environment):
        """Rank 1 ends. Returns what the other ranks print."""
        texts = []
        with Cluster(["a"], client_environment=environment) as cluster:
            ranks = self.start(cluster, "aaa", "windows", how, name=f"windows-{how}")
            for rank in (0, 2):
                output, errors = ranks[rank].communicate(timeout=SURVIVORS_S)
                self.assertEqual(ranks[rank].returncode, 0, f"{how}, rank {rank}: {errors}")
                texts.append(output)
            ranks[1].send_signal(signal.SIGCONT)
            code = -signal.SIGKILL if how == "killed" else 0
            ranks[1].communicate(timeout=SURVIVORS_S)
            if how != "stopped":  # rank 1 may end in any way
                self.assertEqual(ranks[1].returncode, code)
            for process in self.start(cluster, "aa", "windows", "kinds", name="afterwards"):
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

    def test_a_rank_aborts_in_the_middle(self):
        for text in self.end_in_the_middle("aborted"):
            self.assertIn("enough", text)

    def test_a_rank_leaves_in_the_middle(self):
        self.end_in_the_middle("destroyed")


class Hostile(clusters.StandaloneTest):
    """Rank 0 has a window, and makes any claims about it. Rank 1 has its whole buffer, and no window. Both operations are in place."""

    number = 0

    def setUp(self):
        Hostile.number += 1
        self.ranks = [RawClient(self.cluster.socket("solo")) for _ in range(2)]
        wanted = self.ranks[0].tell(RawClient.COMM_INIT, {1: 1, 2: f"hostile-{Hostile.number}", 3: 0, 4: 2, 5: HOST, 6: 20000})
        self.assertEqual(self.ranks[1].ask(RawClient.COMM_INIT, {1: 1, 2: f"hostile-{Hostile.number}", 3: 1, 4: 2, 5: HOST, 6: 20000})[0], 0)
        self.assertEqual(parse(self.ranks[0].event()[1])[1], wanted)
        self.memories = [HostMemory(self.ranks[0], 1, WINDOW_BYTES), HostMemory(self.ranks[1], 1, WHOLE_BYTES)]
        self.memories[1].bytes[:] = bytes([2]) * WHOLE_BYTES

    def tearDown(self):
        for each in (*self.memories, *self.ranks):
            each.close()
        again = RawClient(self.cluster.socket("solo"))
        self.assertEqual(again.ask(RawClient.COMM_INIT, {1: 1, 2: "again", 3: 0, 4: 1, 5: HOST, 6: 20000})[0], 0, "commd still works")
        again.close()

    def post_whole(self, ticket, timeout_ms=0):
        self.ranks[1].post(operation(1, ticket, ALL_REDUCE, U8, WHOLE_BYTES, timeout_ms=timeout_ms, input=(1, 0), output=(1, 0)))

    def windowed(self, ticket, slices, count=WHOLE_BYTES, kind=ALL_REDUCE, offset=0, timeout_ms=0, **entries):
        return operation(1, ticket, kind, U8, count, timeout_ms=timeout_ms, input=(1, offset), output=(1, offset), window=(BOTH, slices), **entries)

    def test_the_protocol(self):
        """A rank that follows the protocol gets every slice once, and right sums."""
        done = drained = ready = 0
        self.memories[0].bytes[:] = bytes([1]) * WINDOW_BYTES
        self.post_whole(1)
        self.ranks[0].post(self.windowed(1, 4))
        ready = 4
        while drained < SLICES:
            event = self.ranks[0].event()
            if "done" not in event:
                self.ranks[0].others.append(event)
                continue
            self.assertEqual(event["done"], (1, done + 1))
            done += 1
            at = drained % 4 * (MIB // 2)
            self.assertEqual(self.memories[0].bytes[at:at + MIB // 2], bytes([3]) * (MIB // 2))
            self.memories[0].bytes[at:at + MIB // 2] = bytes([1]) * (MIB // 2)
            drained += 1
            if ready < SLICES:
                ready += 1
                self.ranks[0].post(filled(1, 1, ready))
        self.assertEqual([each.complete(1)[0] for each in self.ranks], [0, 0])
        self.assertEqual(self.memories[1].bytes[:], bytes([3]) * WHOLE_BYTES)

    def test_all_at_once(self):
        """If a rank never fills its slices, no memory is damaged, and the operation ends."""
        for ticket, slices in enumerate((SLICES, SLICES + 1, 2**63, 2**64 - 1), 1):
            self.post_whole(ticket)
            self.ranks[0].post(self.windowed(ticket, slices))
            self.assertEqual([each.complete(ticket)[0] for each in self.ranks], [0, 0])

    def test_never(self):
        self.post_whole(1, timeout_ms=300)
        self.ranks[0].post(self.windowed(1, 0, timeout_ms=300))
        for rank in self.ranks:
            status, text = rank.complete(1)
            self.assertEqual(status, TIMED_OUT)
            self.assertIn("rank 0 has not copied its part of slice 0 of 16", text)
        self.post_whole(2)
        self.ranks[0].post(self.windowed(2, SLICES), filled(1, 1, 9))
        self.assertEqual([each.complete(2)[0] for each in self.ranks], [0, 0])

    def test_wild_records(self):
        """A rank reports slices of operations that do not exist or have no window, or fewer slices than before."""
        self.post_whole(1)
        wild = [filled(handle, ticket, slices) for handle in (0, 1, 7) for ticket in (0, 1, 2**64 - 1) for slices in (0, 3, 2**64 - 1)]
        self.ranks[1].post(*wild)
        self.ranks[0].post(self.windowed(1, 3), filled(1, 1, 1), filled(1, 1, 0), *(filled(1, 1, each % 5) for each in range(500)))
        self.ranks[0].post(filled(1, 1, SLICES))
        self.assertEqual([each.complete(1)[0] for each in self.ranks], [0, 0])

    def test_wrong_windows(self):
        rank = self.ranks[0]
        for ticket, (submission, text) in enumerate((
                (dict(slices=4, count=MIB), "no window"),
                (dict(slices=4, kind=SCAN), "no window"),
                (dict(slices=4, kind=BARRIER), "no window"),
                (dict(slices=4, has_layouts=1), "no blocks"),
                (dict(slices=4, count=2**60), "too many|no window|lie beyond"),
                (dict(slices=4, count=2**64 - 1), "too many|no window"),
                (dict(slices=4, offset=1), "lie beyond the memory"),
                (dict(slices=4, offset=2**64 - 1), "lie beyond the memory")), 1):
            status, said = rank.submit(self.windowed(ticket, **submission))
            self.assertEqual(status, INVALID_ARGUMENT, (submission, said))
            self.assertRegex(said, text)

    def test_a_killed_rank(self):
        self.post_whole(1)
        self.ranks[0].post(self.windowed(1, 4))
        while "done" not in self.ranks[0].event():
            pass
        self.ranks[0].connection.close()
        status, text = self.ranks[1].complete(1)
        self.assertEqual(status, RANK_LOST, text)


if __name__ == "__main__":
    unittest.main()
