#!/usr/bin/env python3
"""Completion of commctl: commctl offers exactly what it accepts, and the shells show it."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import BUILD, ROOT

SCRIPTS = ROOT / "client/commctl/completion"


def commctl(*arguments):
    done = subprocess.run([BUILD / "commctl", *arguments], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout


def offered(*words):
    return [line.split("\t")[0] for line in commctl("complete", *words).splitlines()]


def verbs():
    return re.findall(r"^  ([a-z][a-z-]*) ", commctl("help"), re.MULTILINE)


class Completion(unittest.TestCase):
    def test_verbs(self):
        self.assertGreater(len(verbs()), 15)
        self.assertEqual(offered(""), verbs())
        self.assertEqual(offered(), verbs())
        self.assertEqual(offered("help", ""), verbs())
        self.assertEqual(offered("cl"), ["clients"])
        self.assertEqual(offered("no-such-verb", ""), [])

    def test_every_long_option_is_offered(self):
        """Each option in a table for getopt_long in commctl's sources, for one verb or before the verbs."""
        known = {option for verb in ([], *([verb] for verb in verbs())) for option in offered(*verb, "-") if option.startswith("--")}
        taken = set()
        for path in (ROOT / "client/commctl").glob("*.c"):
            for table in re.findall(r"struct option \w+\[\] = \{(.*?)\};", path.read_text(), re.DOTALL):
                taken |= {f"--{name}" for name in re.findall(r'\{"([a-z-]+)",', table)}
        self.assertGreater(len(taken), 20)
        self.assertEqual(taken - known - {"--agent"}, set(), "see `options_of` in client/commctl/help.c")

    def test_what_is_offered_is_shown_by_help(self):
        for verb in verbs():
            help_text = commctl("help", verb)
            for word in offered(verb, "") + offered(verb, "-"):
                if word not in (":files", "--help") and verb != "help":
                    self.assertIn(word, help_text, verb)

    def test_usages_are_made_of_the_options(self):
        """Each line of help that begins with an option is one option of the usage."""
        for verb in verbs():
            usage, _, options = commctl("help", verb).partition("\n\n")
            if verb != "run":  # it has a usage of its own
                for names in re.findall(r"^ +(-.*?)(?:  |$)", options, re.MULTILINE):
                    self.assertIn(f"[{names.replace(', ', '|')}]", usage, verb)
                self.assertLessEqual(max(map(len, usage.splitlines())), 110, verb)

    def test_options_and_values(self):
        self.assertEqual(offered("--"), ["--format", "--watch", "--timeout", "--socket", "--admin-socket", "--version", "--help"])
        self.assertEqual(offered("-f", ""), ["text", "json"])
        self.assertEqual(offered("-f", "json", "nod"), ["nodes"])
        self.assertEqual(offered("--socket", ""), [":files"])
        self.assertEqual(offered("--timeout", "3", "--socket", "/tmp/x", "ver"), ["version"])
        self.assertEqual(offered("config", ""), ["show", "check", ":files"])
        self.assertEqual(offered("config", "check", ""), [":files"])
        self.assertEqual(offered("pki", "re"), ["request", "renew", "revoke", ":files"])
        self.assertEqual(offered("pki", "issue", "--req"), ["--request"])
        self.assertEqual(offered("pki", "issue", "--request", ""), [":files"])
        self.assertEqual(offered("bench", "--reduce", "m"), ["min", "max"])
        self.assertEqual(offered("bench", "--in-place", "--out"), ["--out-of-place"])
        self.assertEqual(offered("bench", "--ranks", ""), [])
        self.assertEqual(offered("trace", "-o", ""), [":files"])
        self.assertEqual(offered("status", "--"), ["--help"])

    def test_bash(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "some file").write_text("")
            for words, expected in ((("commctl", "cl"), ["clients"]), (("commctl", "bench", "--reduce", "s"), ["sum"]),
                                    (("commctl", "config", "check", "some"), ["some file"]), (("commctl", "-f", "json", "nod"), ["nodes"])):
                line = (f"PATH={BUILD}:$PATH; source {SCRIPTS}/commctl.bash; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _commctl; "
                        'printf "%s\\n" "${COMPREPLY[@]}"')
                done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=20)
                self.assertEqual((done.stdout.splitlines(), done.stderr), (expected, ""), words)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        line = f"set PATH {BUILD} $PATH; source {SCRIPTS}/commctl.fish; complete -C 'commctl bench --reduce m'; complete -C 'commctl cl'"
        done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, timeout=20)
        self.assertEqual([each.split("\t")[0] for each in done.stdout.splitlines()], ["max", "min", "clients"], done.stderr)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        """Returns the words that the script passes to zsh's own functions."""
        line = (f"PATH={BUILD}:$PATH; _describe() {{ print -l -- $found }}; _files() {{ print FILES }}; "
                f"words=(commctl %s); CURRENT=$#words; source {SCRIPTS}/commctl.zsh")
        for words, expected in (("cl", ["clients:processes that are connected"]), ("bench --reduce m", ["min:", "max:"]), ("config check ''", ["FILES"])):
            done = subprocess.run(["zsh", "-f", "-c", line % words], capture_output=True, text=True, timeout=20)
            self.assertEqual([each for each in done.stdout.splitlines() if each], expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
