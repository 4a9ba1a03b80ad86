#!/usr/bin/env python3
"""Runs the attacks that take seconds, beside a pair of ranks on two nodes and a newcomer. The others must lose nothing, and the attacker must be
told why.

These tests check no times. `make check-attacks` measures how long the others' operations take.
"""
import os
import unittest

import registry
from arena import Arena
from cluster import namespaces_work

WHY_NOT = None if os.geteuid() == 0 and namespaces_work() else "needs root, for users and network namespaces"


class Attacks(unittest.TestCase):
    nodes = "ab"

    @classmethod
    def setUpClass(cls):
        cls.arena = Arena(cls.nodes, pause_s=0.002)
        cls.addClassCleanup(cls.arena.__exit__)

    def check(self, attack):
        """Runs the attack. If commd has not answered it yet, runs it again for longer: on a busy machine, it may need more time to arrive."""
        faults = attack.faults(self.arena, attack.run(self.arena, registry.QUICK_S))
        if faults and all(fault.startswith((registry.SILENCE, registry.NOT_TOLD)) for fault in faults):
            faults = attack.faults(self.arena, attack.run(self.arena, registry.FULL_S))
        self.assertEqual(faults, [])


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Local(Attacks):
    """Attacks by users of node a."""


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Node(Attacks):
    """Attacks by node c, which holds a certificate."""

    nodes = "abc"


for case, attacks in ((Local, registry.LOCAL), (Node, registry.NODE)):
    for each in attacks:
        if each.quick:
            setattr(case, "test_" + each.title.replace(".", "_"), lambda self, attack=each: self.check(attack))
del Attacks, case  # otherwise the test loader would run the classes that these names hold, too


if __name__ == "__main__":
    unittest.main()
