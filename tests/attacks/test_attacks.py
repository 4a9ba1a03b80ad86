#!/usr/bin/env python3
"""The attacks that take seconds, beside a pair of ranks on two nodes and a newcomer: nothing is lost for them, and the attacker is told why.

How long the others' operations take is for `make check-attacks`: there is no clock in these conditions.
"""
import os
import unittest

import registry
from arena import Arena
from cluster import namespaces_work


@unittest.skipUnless(os.geteuid() == 0 and namespaces_work(), "needs root, for users and network namespaces")
class Attacks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.arena = Arena()
        cls.addClassCleanup(cls.arena.__exit__)

    def attack(self, attack):
        outcome = self.arena.run(self.arena.local(attack.name, attack.processes), registry.QUICK_S, attack.freeze)
        self.assertEqual(outcome.lost, "")
        self.assertEqual(outcome.newcomer_failure, "")
        self.assertEqual(outcome.errors, [], "the attack itself")
        if attack.expects:
            self.assertTrue(set(attack.expects) & set(outcome.counts), f"the attacker was told {outcome.counts} {outcome.texts}")


for each in registry.LOCAL:
    if each.quick:
        setattr(Attacks, "test_" + each.name.replace(".", "_"), lambda self, attack=each: self.attack(attack))


if __name__ == "__main__":
    unittest.main()
