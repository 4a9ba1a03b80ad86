#!/usr/bin/env python3
"""commctl pki admit and join, and what goes wrong between them: attackers, garbage, slow peers, Ctrl-C, full disks."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time
import unittest

from pki_exchange import INSTALLED, MESSAGE_MAX_BYTES, TIMEOUT_S, Exchange, commitment, pki

WAITS = True


class Refused(Exchange):
    """Exchanges that must fail: nothing is issued, and nothing is installed."""

    def test_a_code_that_differs(self):
        for refuses in ("admit", "join"):
            with self.subTest(refuses):
                admit, code = self.admit(), None
                join = self.join()
                code = join.code()
                self.assertEqual(admit.code(), code)
                wrong = f"{(int(code[:4]) + 1) % 10000:04}{code[4:]}"
                (admit if refuses == "join" else join).say(code)
                (admit if refuses == "admit" else join).say(wrong)
                self.assertEqual(join.end(), 1, join.output)
                admit.until("refuse")
                self.assert_nothing()
                admit.process.send_signal(signal.SIGINT)
                self.assertEqual(admit.end(), 130)

    def test_a_refusal_that_crosses_a_message(self):
        """join ends with an unread message, and before its last message was sent. The other side still gets that message."""
        listener = self.between()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least: what join sends waits until it is read
        join = self.join(port=listener.getsockname()[1])
        peer = self.peer(connected=listener.accept()[0])
        self.send_authority(peer, (self.ca / "ca.crl").read_text())
        join.code()
        join.process.send_signal(signal.SIGSTOP)
        join.say("no")
        peer.send(kind="confirm")
        peer.send(kind="confirm")
        join.process.send_signal(signal.SIGCONT)
        self.assertEqual(join.end(), 1, join.output)
        self.assertEqual([peer.receive()["kind"] for _ in range(3)], ["commit", "open", "refuse"])
        self.assert_nothing()

    def test_nobody_answers(self):
        admit = self.admit(stdin=subprocess.DEVNULL)
        join = self.join()
        self.assertEqual(join.end(), 1, join.output)
        self.assertEqual(admit.end(), 1, admit.output)
        self.assertIn("standard input has ended", admit.output)
        self.assert_nothing()

    def test_a_man_in_the_middle_swaps_the_request(self):
        """The attacker plays join to admit, with his own key, and passes on admit's messages. The codes differ."""
        admit = self.admit()
        listener = self.between()
        join = self.join(port=listener.getsockname()[1])
        victim = self.peer(connected=listener.accept()[0])
        victim.receive()
        request, nonce = self.request(), os.urandom(32)
        towards = self.peer(self.port)
        towards.send(kind="commit", commitment=commitment(nonce, "alpha", request))
        victim.send(**towards.receive())
        victim.receive()
        towards.send(kind="open", nonce=nonce.hex(), name="alpha", request=request)
        shown = admit.code(), join.code()
        self.assertNotEqual(*shown)
        admit.say(shown[1])  # people tell each other what they see
        join.say(shown[0])
        self.assertEqual(join.end(), 1, join.output)
        admit.until("refused here")
        self.assert_nothing()

    def test_a_man_in_the_middle_swaps_the_authority(self):
        """The attacker passes on the request, and gives join his own authority. The codes differ."""
        false = self.folder / "false"
        self.assertEqual(pki("init", "--dir", false).returncode, 0)
        admit = self.admit()
        listener = self.between()
        join = self.join(port=listener.getsockname()[1])
        victim, towards = self.peer(connected=listener.accept()[0]), self.peer(self.port)
        towards.send(**victim.receive())
        victim.send(**{**towards.receive(), "authority": (false / "ca.crt").read_text()})
        towards.send(**victim.receive())
        shown = admit.code(), join.code()
        self.assertNotEqual(*shown)
        admit.say(shown[1])
        join.say(shown[0])
        self.assertEqual(join.end(), 1, join.output)
        admit.until("refused here")
        self.assert_nothing()

    def test_a_nonce_or_request_that_was_not_committed_to(self):
        admit = self.admit()
        for wrong in ("nonce", "request", "name"):
            request, nonce = self.request(), os.urandom(32)
            peer = self.peer(self.port)
            peer.send(kind="commit", commitment=commitment(nonce, "alpha", request))
            peer.receive()
            fields = {"nonce": nonce.hex(), "name": "alpha", "request": request}
            fields[wrong] = {"nonce": os.urandom(32).hex(), "name": "beta", "request": self.request("beta")}[wrong]
            peer.send(kind="open", **fields)
            self.assertEqual(peer.receive()["kind"], "refuse", wrong)
            admit.until("not the one that it committed to")
        self.assertNotIn("code", admit.output)
        self.assert_nothing()

    def test_requests_that_get_no_certificate(self):
        """Requests with another name, a wrong signature or a weak key, and bytes that are not a request."""
        admit = self.admit()
        weak = self.folder / "weak.csr"
        subprocess.run(["openssl", "req", "-new", "-newkey", "rsa:1024", "-nodes", "-keyout", self.folder / "weak.key", "-out", weak, "-subj", "/CN=alpha"],
                       check=True, capture_output=True)
        good = self.request().splitlines()
        broken = "\n".join(good[:-2] + [good[-2][:3] + ("A" if good[-2][3] != "A" else "B") + good[-2][4:], good[-1]]) + "\n"
        for request, says in ((self.request("beta"), 'for "beta"'), (broken, "signature is wrong|no certificate request"), (weak.read_text(), "too weak"),
                              ("nonsense", "no certificate request")):
            peer, _ = self.open_exchange("alpha", request)
            self.assertEqual(peer.receive()["kind"], "refuse")
            admit.until(says)
        self.assert_nothing()

    def test_failures_cost_time(self):
        """Whoever knows the nonces can compute the code. So a peer that leaves before the code is shown must also wait."""
        self.admit()
        gaps = []
        for _ in range(4):
            start = time.monotonic()
            peer = self.peer(self.port)
            peer.send(kind="commit", commitment="00" * 32)
            self.assertEqual(peer.receive()["kind"], "authority")
            gaps.append(time.monotonic() - start)
            peer.close()
        self.assertLess(gaps[0], gaps[-1])
        for gap, least in zip(gaps[1:], (0.9, 1.9, 3.9)):
            self.assertGreaterEqual(gap, least, gaps)

    def memory_kib(self, command):
        process = pathlib.Path(f"/proc/{command.process.pid}")
        if "libasan" in (process / "maps").read_text():
            return 0  # it keeps what is freed
        return int(re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text()).group(1))

    def test_garbage(self):
        admit = self.admit("--once")
        open_ = json.dumps({"version": 1, "kind": "open", "nonce": "00" * 32, "name": "alpha", "request": ""}).encode()
        for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\0\0\0\0", struct.pack(">I", MESSAGE_MAX_BYTES + 1), b"\xff" * 64,
                     struct.pack(">I", 2) + b"{}", struct.pack(">I", MESSAGE_MAX_BYTES) + b"[" * MESSAGE_MAX_BYTES,
                     struct.pack(">I", len(open_)) + open_, struct.pack(">I", 100) + b"cut", b"\0\0", b""):
            peer = self.peer(self.port)
            with contextlib.suppress(OSError):  # admit has closed already
                peer.send_raw(data)
                peer.socket.shutdown(socket.SHUT_WR)
            self.assertTrue(peer.is_closed())
        before = self.memory_kib(admit)
        for _ in range(200):
            peer = self.peer(self.port)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.send_raw(struct.pack(">I", MESSAGE_MAX_BYTES) + b'{"a":"' + b"x" * (MESSAGE_MAX_BYTES - 6))
            self.assertTrue(peer.is_closed())
            peer.close()
        self.assertLess(self.memory_kib(admit), before + 1024)
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)

    def test_garbage_to_join(self):
        listener = self.between()
        for data in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0", struct.pack(">I", 2) + b"{}", b"\0", b""):
            join = self.join(port=listener.getsockname()[1])
            peer = self.peer(connected=listener.accept()[0])
            peer.receive()
            peer.send_raw(data)
            peer.close()
            self.assertEqual(join.end(), 1, join.output)
        self.assert_nothing()

    def test_a_slow_peer(self):
        """A peer that sends single bytes cannot keep its connection. The next peer gets its turn."""
        admit = self.admit("--once")
        slow = self.peer(self.port)
        join = self.join()
        slow.send_raw(struct.pack(">I", 1000))
        start = time.monotonic()
        slow.socket.settimeout(0.2)
        ended = False
        while not ended and time.monotonic() - start < TIMEOUT_S:
            try:
                slow.send_raw(b" ")
                ended = slow.socket.recv(4096) != b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        self.assertLess(time.monotonic() - start, 20)
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)

    def test_what_a_false_admit_sends(self):
        """Even after people have confirmed, join installs only its own certificate from that authority."""
        other = self.folder / "second"
        self.assertEqual(pki("init", "--dir", other).returncode, 0)
        for name in ("alpha", "beta"):
            self.assertEqual(pki("issue", name, "--dir", self.ca).returncode, 0)
        crl, alien_crl = (self.ca / "ca.crl").read_text(), (other / "ca.crl").read_text()
        self.assertEqual(pki("revoke", "beta", "--dir", self.ca).returncode, 0)
        later_crl = (self.ca / "ca.crl").read_text()
        listener = self.between()
        for number, (make, list_announced, list_sent, says) in enumerate((
                (lambda request: (self.ca / "alpha.crt").read_text(), crl, crl, "not for this node's key"),
                (lambda request: self.issue(other, "alpha", request), crl, crl, "not signed by the authority"),
                (lambda request: self.issue(self.ca, "alpha", request), alien_crl, alien_crl, "revocation list is not signed"),
                (lambda request: self.issue(self.ca, "alpha", request), later_crl, crl, "not the one that was announced"),
                (lambda request: self.issue(self.ca, "alpha", request, "--days", "-1"), crl, crl, "not valid now"),
                (lambda request: self.issue(self.ca, "beta", self.request("beta")), crl, crl, "not for this node's key"),
                (lambda request: "nonsense", crl, crl, "not a certificate"))):
            node = self.folder / f"node-{number}"
            join = self.join(port=listener.getsockname()[1], folder=node)
            peer = self.peer(connected=listener.accept()[0])
            peer.receive()
            self.send_authority(peer, list_announced)
            request = peer.receive()["request"]
            join.say(join.code())
            self.assertEqual(peer.receive()["kind"], "confirm")
            peer.send(kind="confirm")
            peer.send(kind="certificate", certificate=make(request), revocation_list=list_sent)
            self.assertEqual(peer.receive()["kind"], "refuse", says)
            self.assertEqual(join.end(), 1, join.output)
            self.assertIn(says, join.output)
            self.assertEqual(self.files(node), ["alpha.key"], says)

    def issue(self, authority, name, request, *options):
        path = self.folder / "received.csr"
        path.write_text(request)
        done = pki("renew", name, "--request", path, "--dir", authority, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return (authority / f"{name}.crt").read_text()

    def test_a_certificate_that_is_revoked(self):
        """The revocation list that comes with the certificate contains that certificate."""
        listener = self.between()
        self.assertEqual(pki("request", "alpha", "--dir", self.node).returncode, 0)
        certificate = self.issue(self.ca, "alpha", (self.node / "alpha.csr").read_text())
        self.assertEqual(pki("revoke", "alpha", "--dir", self.ca).returncode, 0)
        join = self.join(port=listener.getsockname()[1])
        peer = self.peer(connected=listener.accept()[0])
        peer.receive()
        self.send_authority(peer)
        peer.receive()
        join.say(join.code())
        peer.send(kind="confirm")
        peer.send(kind="certificate", certificate=certificate, revocation_list=(self.ca / "ca.crl").read_text())
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("on the revocation list", join.output)
        self.assertEqual(self.files(), ["alpha.csr", "alpha.key"])

    def test_a_list_that_changes_meanwhile(self):
        """admit sends what people have compared, or nothing."""
        self.assertEqual(pki("issue", "beta", "--dir", self.ca).returncode, 0)
        admit = self.admit()
        join = self.join()
        code = join.code()
        admit.say(code)
        admit.until("waiting for the person")
        self.assertEqual(pki("revoke", "beta", "--dir", self.ca).returncode, 0)
        join.say(code)
        self.assertEqual(join.end(), 1, join.output)
        admit.until("ca.crl has changed")
        self.assertEqual((self.files(), self.record()), (["alpha.key"], [("beta", "revoked")]))

    def test_certificates_out_of_turn(self):
        """Without the person's confirmation, join takes no certificate; and admit issues none."""
        listener = self.between()
        join = self.join(port=listener.getsockname()[1])
        peer = self.peer(connected=listener.accept()[0])
        peer.receive()
        self.send_authority(peer)
        peer.receive()
        peer.send(kind="certificate", certificate="x", revocation_list="x")
        self.assertEqual(join.end(), 1, join.output)
        admit = self.admit()
        peer, code = self.open_exchange()
        self.assertEqual(admit.code(), code)
        peer.send(kind="confirm")
        peer.send(kind="installed")
        admit.until("out of turn")
        self.assert_nothing()

    def test_interrupted(self):
        """Ctrl-C on either side, before and after the code is shown."""
        admit = self.admit(terminal=True)
        listener = self.between()
        join = self.join(port=listener.getsockname()[1], terminal=True)
        peer = self.peer(connected=listener.accept()[0])
        peer.receive()
        join.say("\x03")
        self.assertEqual(join.end(), 130, join.output)
        join = self.join(terminal=True)
        self.assertEqual(join.code(), admit.code())
        join.say("\x03")
        self.assertEqual(join.end(), 130, join.output)
        admit.until("the person there ended commctl")
        join = self.join(terminal=True)
        self.assertEqual(join.code(), admit.code())
        join.until("Does the authority show")
        join.say("y")
        join.until("waiting for the person")
        admit.say("\x03")
        self.assertEqual(admit.end(), 130, admit.output)
        self.assertEqual(join.end(), 1, join.output)
        self.assert_nothing()

    def test_a_peer_that_goes_away(self):
        admit = self.admit()
        peer, code = self.open_exchange()
        self.assertEqual(admit.code(), code)
        peer.close()
        admit.until("closed the connection")
        join = self.join()
        self.assertEqual(join.code(), admit.code())
        admit.process.kill()
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("closed the connection", join.output)
        self.assert_nothing()

    def test_nobody_is_there(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        join = self.join(port=port)
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("is 'commctl pki admit' running there?", join.output)

    def test_a_disk_that_is_full(self):
        """The first files fit on the disk, the last does not. join installs none, and gets the same certificate the next time."""
        self.node.mkdir()
        self.assertEqual(pki("request", "alpha", "--dir", self.node).returncode, 0)
        (self.node / "alpha.csr").unlink()
        room = max((self.ca / name).stat().st_size for name in ("ca.crt", "ca.crl"))
        admit = self.admit("--once")
        join = self.join(limit_file_bytes=room)
        self.both_say(admit, join)
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("alpha.crt: File too large", join.output)
        admit.until("did not install its certificate")
        self.assertEqual(self.files(), ["alpha.key"])
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual((join.end(), admit.end()), (0, 0), join.output)
        self.assertEqual(self.files(), INSTALLED)
        self.assertEqual(self.record(), [("alpha", "valid")])

    def test_a_file_that_cannot_be_replaced(self):
        (self.node / "ca.crl").mkdir(parents=True)
        admit = self.admit()
        join = self.join()
        self.both_say(admit, join)
        self.assertEqual(join.end(), 1, join.output)
        self.assertIn("ca.crl: not a regular file", join.output)
        self.assertEqual(self.files(), ["alpha.key", "ca.crl"])

    def test_folders(self):
        """join checks its folders before admit issues anything. admit needs the authority's key."""
        (self.folder / "file").write_text("")
        for folder in (self.folder / "none/node", self.folder / "file"):
            done = pki("join", "127.0.0.1:1", "alpha", "--dir", folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(folder), done.stderr)
        (self.ca / "ca.key").unlink()
        done = pki("admit", "--dir", self.ca, "--listen", "127.0.0.1:0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ca.key", done.stderr)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_of_others(self):
        self.node.mkdir(mode=0o500)
        done = pki("join", "127.0.0.1:1", "alpha", "--dir", self.node)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Permission denied", done.stderr)

    def test_usage(self):
        for arguments, says in ((("join",), "expected the address of 'commctl pki admit'"), (("join", "a:b"), "HOST, HOST:PORT or [IPv6]:PORT"),
                                (("join", "a", "ca"), "a node's name"), (("join", "a", "b", "c"), "one name at most"), (("join", "a", "--once"), "an option of this"),
                                (("admit", "b"), "expected only options"), (("admit", "--count", "0"), "how many nodes"),
                                (("admit", "--listen", "[::1"), "HOST, HOST:PORT"), (("admit", "--owner", "a"), "options of this command")):
            done = pki(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
