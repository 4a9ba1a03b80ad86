#!/usr/bin/env python3
"""commctl pki admit and join: two commands a node, and a code that people compare."""
import os
import pwd
import shutil
import socket
import stat
import subprocess
import time
import unittest

from cluster import Cluster
from pki_exchange import INSTALLED, Exchange, pki

WAITS = True


class Join(Exchange):
    """Exchanges that must succeed."""

    def test_two_commands(self):
        admit = self.admit("--once")
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual(join.end(), 0, join.output)
        self.assertEqual(admit.end(), 0, admit.output)
        self.assertIn("alpha has its certificate", admit.output)
        self.assertIn("systemctl restart commd", join.output)
        self.assertIn(f'certificate = "{self.node}/alpha.crt"', join.output)
        self.assertEqual(self.files(), INSTALLED)
        self.assertEqual(self.record(), [("alpha", "valid")])
        for name, mode in (("alpha.key", 0o600), ("alpha.crt", 0o644), ("ca.crt", 0o644), ("ca.crl", 0o644)):
            self.assertEqual(stat.S_IMODE((self.node / name).stat().st_mode), mode, name)
        for name in ("ca.crt", "ca.crl", "alpha.crt"):
            self.assertEqual((self.node / name).read_bytes(), (self.ca / name).read_bytes(), name)
        self.assertFalse((self.ca / "alpha.key").exists(), "the key never leaves its node")

    def test_people(self):
        """Two terminals. Keys that were pressed too early have no effect, and only y or n is an answer."""
        admit = self.admit("--once", terminal=True)
        admit.say("y")
        time.sleep(0.2)
        join = self.join(terminal=True)
        self.assertEqual(join.code(), admit.code())
        admit.until(r"Does alpha show the code .* \[y/n\] ")
        join.until(r"Does the authority show the code .* \[y/n\] ")
        self.assertEqual(self.record(), [])
        admit.say("perhaps")
        admit.until(r"Does alpha show")
        admit.say("y")
        admit.until("waiting for the person at alpha")
        self.assertEqual(self.record(), [], "issued only when both have confirmed")
        join.say("YES")
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output + admit.output)
        self.assertEqual(self.files(), INSTALLED)

    def test_a_daemon_takes_the_files(self):
        """Two nodes get their certificates this way, and their daemons find each other."""
        with Cluster(["a", "b"], start=False, namespaces=False) as cluster:
            shutil.rmtree(cluster.folder / "pki")
            self.ca = cluster.folder / "authority"
            self.assertEqual(pki("init", "--dir", self.ca).returncode, 0)
            admit = self.admit("--count", "2")
            for name in ("a", "b"):
                join = self.join(name=name, folder=cluster.folder / "pki")
                self.both_say(admit, join)
                self.assertEqual(join.end(), 0, join.output)
            self.assertEqual(admit.end(), 0, admit.output)
            for name in ("a", "b"):
                cluster.start(name)
            cluster.wait_ready()

    def test_beside_a_running_daemon(self):
        """The authority is on a node whose commd uses TCP, too. Neither command names a port."""
        with Cluster(["a", "b"], settings="rails = 16;\n") as cluster:
            if not cluster.use_namespaces:
                self.skipTest("only in a namespace, no other process has the default port")
            prefix = cluster.in_node("a")
            listening = subprocess.run([*prefix, "ss", "-Hltn"], check=True, stdout=subprocess.PIPE, text=True).stdout
            self.assertIn(":7400 ", listening, "commd has a TCP port of its own")
            admit = self.command("admit", "--dir", self.ca, "--once", prefix=prefix)
            admit.until("waiting for nodes")
            join = self.command("join", "127.0.0.1", "alpha", "--dir", self.node, prefix=prefix)
            self.both_say(admit, join)
            self.assertEqual((join.end(), admit.end()), (0, 0), join.output + admit.output)
            self.assertEqual(self.files(), INSTALLED)

    def test_a_code_that_was_agreed_in_advance(self):
        secret = os.urandom(16).hex()
        admit = self.admit("--yes-code", "of another node, which comes later", "--yes-code", secret, "--count", "1", stdin=subprocess.DEVNULL)
        refused = self.join("--code", os.urandom(16).hex(), stdin=subprocess.DEVNULL)
        self.assertEqual(refused.end(), 1, refused.output)
        self.assertIn("none of the codes", refused.output)
        self.assert_nothing()
        file = self.folder / "code"
        file.write_text(secret + "\nmore\n")
        join = self.join("--code", f"@{file}", stdin=subprocess.DEVNULL)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output + admit.output)
        self.assertEqual(self.files(), INSTALLED)
        for arguments in (("join", "127.0.0.1", "--code", "1234-5678"), ("admit", "--yes-code", "1234-5678"), ("admit", "--yes-code", "@/nowhere"),
                          ("admit", *["--yes-code", secret] * 15, "--yes-code", "short")):
            short = pki(*arguments)
            self.assertEqual(short.returncode, 2)
            self.assertIn("at least 20 characters", short.stderr)

    def test_who_does_not_know_the_code_is_no_authority(self):
        """An attacker without the code plays admit, and cannot prove that he knows the code."""
        listener = self.between()
        join = self.join("--code", os.urandom(16).hex(), port=listener.getsockname()[1], stdin=subprocess.DEVNULL)
        peer = self.peer(connected=listener.accept()[0])
        peer.receive()
        self.send_authority(peer)
        proof = peer.receive()["proof"]
        peer.send(kind="confirm", proof=proof)  # its own, sent back
        self.assertEqual(peer.receive()["kind"], "refuse")
        self.assertEqual(join.end(), 1, join.output)
        self.assert_nothing()

    def test_two_at_once(self):
        admit = self.admit("--count", "2")
        nodes = {name: self.join(name=name, folder=self.folder / name) for name in ("beta", "gamma")}
        for _ in nodes:
            found = admit.until(r"(beta|gamma) at 127\.0\.0\.1 asks for a certificate: code (\d{4}-\d{4})")
            join = nodes[found.group(1)]
            self.assertEqual(join.code(), found.group(2))
            admit.say(found.group(2))
            join.say(found.group(2))
            self.assertEqual(join.end(), 0, join.output)
        self.assertEqual(admit.end(), 0, admit.output)
        self.assertEqual(sorted(self.record()), [("beta", "valid"), ("gamma", "valid")])

    def test_a_key_that_is_there_is_used(self):
        self.assertEqual(pki("request", "alpha", "--dir", self.node).returncode, 0)
        key = (self.node / "alpha.key").read_bytes()
        admit = self.admit("--once")
        join = self.join()
        join.until("uses the key .*alpha.key")
        self.both_say(admit, join)
        self.assertEqual(join.end(), 0, join.output)
        self.assertEqual((self.node / "alpha.key").read_bytes(), key)

    def test_the_name_is_the_hosts(self):
        admit = self.admit("--once")
        join = self.command("join", f"127.0.0.1:{self.port}", "--dir", self.node)
        self.both_say(admit, join)
        self.assertEqual(join.end(), 0, join.output)
        self.assertIn(socket.gethostname().split(".")[0] + ".crt", self.files())

    @unittest.skipUnless(os.geteuid() == 0, "needs root to give files away")
    def test_the_key_is_its_users(self):
        """The user can also use a key that root made before. If the user cannot enter the folder, join says so."""
        self.node.mkdir(mode=0o700)
        self.assertEqual(pki("request", "alpha", "--dir", self.node).returncode, 0)
        os.chown(self.node / "alpha.key", 0, 0)
        admit = self.admit("--once")
        join = self.join("--owner", "nobody")
        self.both_say(admit, join)
        self.assertEqual(join.end(), 0, join.output)
        nobody = pwd.getpwnam("nobody").pw_uid
        self.assertEqual((self.node / "alpha.key").stat().st_uid, nobody)
        self.assertEqual(stat.S_IMODE((self.node / "alpha.key").stat().st_mode), 0o600)
        self.assertEqual((self.node / "alpha.crt").stat().st_uid, 0)
        self.assertIn(f"chmod 755 {self.node}", join.output)
        self.assertEqual(pki("request", "beta", "--dir", self.folder / "fresh", "--owner", "nobody").returncode, 0)
        self.assertEqual((self.folder / "fresh/beta.key").stat().st_uid, nobody)
        self.assertEqual(stat.S_IMODE((self.folder / "fresh").stat().st_mode), 0o755)
        wrong = pki("request", "gamma", "--dir", self.folder / "fresh", "--owner", "no such user")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("no such user", wrong.stderr)


class Names(Exchange):
    """Names that are taken."""

    def setUp(self):
        super().setUp()
        admit = self.admit("--once")
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0))
        self.first = (self.node / "alpha.crt").read_bytes()

    def test_another_key(self):
        admit = self.admit()
        thief = self.join(folder=self.folder / "thief")
        self.assertEqual(thief.end(), 1, thief.output)
        self.assertIn("the name alpha is taken", thief.output)
        admit.until("the name alpha is taken")
        self.assertEqual(self.files(self.folder / "thief"), ["alpha.key"])
        self.assertEqual(self.record(), [("alpha", "valid")])

    def test_renewal(self):
        admit = self.admit("--once", "--renew")
        join = self.join(folder=self.folder / "rebuilt")
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)
        self.assertEqual(self.record(), [("alpha", "valid"), ("alpha", "valid")])
        self.assertNotEqual((self.folder / "rebuilt/alpha.crt").read_bytes(), self.first)

    def test_the_same_key_gets_its_certificate_again(self):
        """As after a full disk: the certificate was issued, but never arrived."""
        for name in ("alpha.crt", "ca.crt", "ca.crl"):
            (self.node / name).unlink()
        admit = self.admit("--once")
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)
        self.assertEqual((self.node / "alpha.crt").read_bytes(), self.first)
        self.assertEqual(self.record(), [("alpha", "valid")])

    def test_revoked(self):
        self.assertEqual(pki("revoke", "alpha", "--dir", self.ca).returncode, 0)
        admit = self.admit("--once")
        join = self.join()
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("was revoked", join.output)
        (self.node / "alpha.key").unlink()
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)
        self.assertEqual(self.record(), [("alpha", "revoked"), ("alpha", "valid")])

    def test_another_authority(self):
        """A node does not leave its cluster by mistake."""
        self.ca = self.folder / "second"
        self.assertEqual(pki("init", "--dir", self.ca).returncode, 0)
        self.admit()
        before = {name: (self.node / name).read_bytes() for name in INSTALLED}
        join = self.join()
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("another authority", join.output)
        self.assertEqual({name: (self.node / name).read_bytes() for name in self.files()}, before)


if __name__ == "__main__":
    unittest.main()
