#!/usr/bin/env python3
"""commctl pki: the authority, its record, and the files that it writes; and the errors for wrong files."""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import threading
import unittest

from cluster import BUILD


class Pki(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-test-pki-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.ca = self.folder / "ca"
        self.good("init", "--dir", self.ca)

    def pki(self, *arguments, options=()):
        return subprocess.run([str(part) for part in (BUILD / "commctl", *options, "pki", *arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False, timeout=20, umask=0o077)

    def good(self, *arguments):
        done = self.pki(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def bad(self, code, *arguments):
        done = self.pki(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def json(self, *arguments):
        done = self.pki(*arguments, options=("-f", "json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def record(self):
        return self.json("show", "--dir", self.ca)["certificates"]

    def mode(self, path):
        return oct(stat.S_IMODE(path.stat().st_mode))

    def revoked(self):
        return {entry["serial"] for entry in self.json("show", self.ca / "ca.crl")["revoked"]}

    def test_files_and_modes(self):
        self.good("issue", "alpha", "--dir", self.ca)
        for name, mode in (("ca.key", "0o600"), ("ca.crt", "0o644"), ("ca.crl", "0o644"), ("alpha.key", "0o600"), ("alpha.crt", "0o644"),
                           ("issued.txt", "0o644")):
            self.assertEqual(self.mode(self.ca / name), mode, name)
        self.assertEqual(sorted(path.name for path in self.ca.iterdir()), ["alpha.crt", "alpha.key", "ca.crl", "ca.crt", "ca.key", "issued.txt"])
        self.assertIn("File exists", self.bad(1, "init", "--dir", self.ca))
        self.assertIn("File exists", self.bad(1, "issue", "alpha", "--dir", self.ca))
        self.assertEqual(len(self.record()), 1, "what was refused is not recorded")

    def test_a_request_must_be_of_the_name(self):
        self.assertRegex(self.good("request", "beta", "--dir", self.folder), "beta.key belongs to commd|chown commd .*beta.key")
        errors = self.bad(1, "issue", "gamma", "--request", self.folder / "beta.csr", "--dir", self.ca)
        self.assertIn('for "beta", not for "gamma"', errors)
        self.assertEqual(self.record(), [])
        self.good("issue", "beta", "--request", self.folder / "beta.csr", "--dir", self.ca)
        self.assertFalse((self.ca / "beta.key").exists())
        self.assertEqual(self.json("show", self.folder / "beta.csr")["key_sha256"], self.json("show", "beta", "--dir", self.ca)["key_sha256"])
        request = self.folder / "two.csr"
        for arguments, text in ((("-subj", "/CN=beta/CN=gamma"), "does not name one node"), (("-subj", "/O=beta"), "does not name one node"),
                                (("-subj", "/CN=beta", "-addext", "subjectAltName=DNS:beta,DNS:gamma"), "does not name one node"),
                                (("-subj", "/CN=beta", "-addext", "subjectAltName=DNS:gamma"), "does not name one node")):
            subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.folder / "two.key",
                            "-out", request, *arguments], check=True, capture_output=True)
            self.assertIn(text, self.bad(1, "renew", "beta", "--request", request, "--dir", self.ca), arguments)

    def test_record_and_revocation(self):
        self.good("issue", "alpha", "--dir", self.ca)
        self.good("issue", "beta", "--dir", self.ca, "--days", "-1")
        self.good("issue", "gamma", "--dir", self.ca)
        self.good("renew", "gamma", "--dir", self.ca)
        states = [(row["name"], row["state"]) for row in self.record()]
        self.assertEqual(states, [("alpha", "valid"), ("beta", "expired"), ("gamma", "valid"), ("gamma", "valid")])
        self.assertEqual(self.revoked(), set())
        first = self.record()[2]["serial"]
        pairs = [first[i:i + 2] for i in range(0, len(first), 2)]
        self.assertIn(f"revoked {first} of gamma", self.good("revoke", ":".join(pairs).lower(), "--dir", self.ca))
        self.assertEqual(self.revoked(), {first})
        self.assertEqual(self.json("show", "gamma", "--dir", self.ca)["state"], "valid", "the renewed one")
        self.good("revoke", "gamma", "--dir", self.ca)
        self.assertEqual(self.revoked(), {row["serial"] for row in self.record() if row["name"] == "gamma"})
        self.assertIn("revoked already", self.good("revoke", "gamma", "--dir", self.ca))
        self.assertEqual(self.json("show", "gamma", "--dir", self.ca)["state"], "revoked")
        self.assertIn("it is revoked", self.bad(1, "renew", "gamma", "--dir", self.ca))
        for name in ("nobody", "beta", "0A0A"):
            self.assertIn("no valid certificate of that name", self.bad(4, "revoke", name, "--dir", self.ca), name)
        crl = self.json("show", self.ca / "ca.crl")
        self.assertEqual(crl["ends"], self.json("show", "ca", "--dir", self.ca)["ends"])
        verified = subprocess.run(["openssl", "crl", "-in", self.ca / "ca.crl", "-CAfile", self.ca / "ca.crt", "-noout", "-verify", "-crlnumber"],
                                  capture_output=True, text=True, check=False)
        self.assertIn("verify OK", verified.stdout + verified.stderr)

    def test_what_was_issued_before_there_was_a_record_is_revoked_by_its_file(self):
        self.good("issue", "alpha", "--dir", self.ca)
        serial = self.record()[0]["serial"]
        (self.ca / "issued.txt").unlink()
        self.bad(4, "revoke", "alpha", "--dir", self.ca)
        self.good("revoke", self.ca / "alpha.crt", "--dir", self.ca)
        self.assertEqual((self.revoked(), self.record()[0]["state"]), ({serial}, "revoked"))
        self.good("init", "--dir", self.folder / "other")
        self.good("issue", "alpha", "--dir", self.folder / "other")
        self.assertIn("not issued by this authority", self.bad(1, "revoke", self.folder / "other/alpha.crt", "--dir", self.ca))

    def test_renewal(self):
        self.good("issue", "alpha", "--dir", self.ca)
        before = self.json("show", "alpha", "--dir", self.ca)
        key = (self.ca / "alpha.key").read_bytes()
        self.good("renew", "alpha", "--dir", self.ca, "--days", "10")
        after = self.json("show", "alpha", "--dir", self.ca)
        self.assertEqual((after["key_sha256"], (self.ca / "alpha.key").read_bytes()), (before["key_sha256"], key))
        self.assertNotEqual(after["serial"], before["serial"])
        self.assertIn(after["days_left"], (9, 10))
        self.good("renew", "alpha", "--new-key", "--dir", self.ca)
        other = self.json("show", "alpha", "--dir", self.ca)
        self.assertNotEqual(other["key_sha256"], before["key_sha256"])
        self.assertEqual(self.mode(self.ca / "alpha.key"), "0o600")
        self.assertIn("--new-key", self.bad(1, "renew", "beta", "--dir", self.ca))
        shutil.copy(self.ca / "alpha.crt", self.ca / "beta.crt")
        self.assertIn('not for "beta"', self.bad(1, "renew", "beta", "--dir", self.ca))

    def test_links_are_never_followed(self):
        victim = self.folder / "victim"
        victim.write_text("precious")
        for name in ("alpha.crt", "alpha.key"):
            (self.ca / name).symlink_to(victim)
        self.assertIn("File exists", self.bad(1, "issue", "alpha", "--dir", self.ca))
        for name in ("ca.crl", "issued.txt"):
            (self.ca / name).unlink(missing_ok=True)
            (self.ca / name).symlink_to(victim if name == "ca.crl" else self.folder / "nothing")
        self.good("issue", "beta", "--dir", self.ca)
        self.good("revoke", "beta", "--dir", self.ca)
        self.good("renew", "alpha", "--new-key", "--dir", self.ca)
        self.assertEqual(victim.read_text(), "precious")
        self.assertFalse((self.folder / "nothing").exists())
        for name in ("ca.crl", "issued.txt", "alpha.crt", "alpha.key"):
            self.assertFalse((self.ca / name).is_symlink(), name)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to give files away")
    def test_a_renewed_key_stays_its_owners(self):
        self.good("issue", "alpha", "--dir", self.ca)
        os.chown(self.ca / "alpha.key", 12345, 12346)
        self.good("renew", "alpha", "--new-key", "--dir", self.ca)
        status = (self.ca / "alpha.key").stat()
        self.assertEqual((status.st_uid, status.st_gid), (12345, 12346))

    def test_wrong_files(self):
        self.good("issue", "alpha", "--dir", self.ca)
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        large = self.folder / "large"
        with open(large, "wb") as file:
            file.truncate(17 << 20)
        empty = self.folder / "empty"
        empty.write_bytes(b"")
        garbage = self.folder / "garbage"
        garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\n" + os.urandom(4096) + b"\n-----END CERTIFICATE-----\n")
        for path, text in ((fifo, "not a regular file"), (large, "16 MiB"), (empty, "no certificate"), (garbage, "no certificate"), (self.ca, "not a regular"),
                           (self.folder / "none", "No such file"), (self.ca / "ca.key", "no certificate, request or revocation list")):
            errors = self.bad(1, "show", path)
            self.assertIn(text, errors)
            self.assertIn(str(path), errors)
            self.bad(1, "renew", "alpha", "--request", path, "--dir", self.ca)
        self.assertIn("no certificate request", self.bad(1, "renew", "alpha", "--request", self.ca / "alpha.crt", "--dir", self.ca))
        good = (self.ca / "issued.txt").read_text()
        for line in ("nonsense", good.splitlines()[1] + " more", good.splitlines()[1].replace("alpha", "al_pha"), good.splitlines()[1].replace("-", "/", 1)):
            (self.ca / "issued.txt").write_text(good + line + "\n")
            for arguments in (("issue", "beta"), ("revoke", "alpha"), ("show",)):
                self.assertIn("issued.txt:3: expected", self.bad(1, *arguments, "--dir", self.ca))
        (self.ca / "issued.txt").write_text(good)
        self.assertFalse((self.ca / "beta.crt").exists())
        (self.ca / "ca.key").write_bytes((self.ca / "alpha.key").read_bytes())
        self.assertIn("does not belong", self.bad(1, "issue", "beta", "--dir", self.ca))
        (self.ca / "ca.key").unlink()
        errors = self.bad(1, "issue", "beta", "--dir", self.ca)
        self.assertIn("ca.key", errors)
        self.assertIn("pki init", errors)

    def test_several_at_once_lose_nothing(self):
        threads = [threading.Thread(target=self.pki, args=("issue", f"node-{number}", "--dir", self.ca)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({row["name"] for row in self.record()}, {f"node-{number}" for number in range(12)})

    def test_usage(self):
        for arguments in ((), ("nonsense",), ("issue",), ("issue", "ca"), ("issue", "a b"), ("revoke",), ("renew", "a", "--new-key", "--request", "x"),
                          ("request", "a", "--days", "5"), ("issue", "a", "--days", "0"), ("show", "a", "b"), ("init", "a")):
            self.assertIn("usage", self.bad(2, *arguments), arguments)


if __name__ == "__main__":
    unittest.main()
