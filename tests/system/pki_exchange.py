"""The two sides of `commctl pki admit` and `join` for the system tests: as real processes, and as a peer that can send anything."""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from cluster import BUILD

TIMEOUT_S = 30
MESSAGE_MAX_BYTES = 64 << 10
INSTALLED = ["alpha.crt", "alpha.key", "ca.crl", "ca.crt"]


class Command:
    """A commctl whose output is read as it comes. terminal: it runs on a terminal; otherwise its standard input is a pipe.
    prefix: words in front of the command line."""

    def __init__(self, *arguments, terminal=False, stdin=subprocess.PIPE, limit_file_bytes=None, prefix=()):
        command = [str(part) for part in (*prefix, BUILD / "commctl", "pki", *arguments)]
        self.output = ""
        self.ended = False

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

        if terminal:
            self.fd, other = pty.openpty()
            self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, umask=0o077, preexec_fn=take_terminal)
            os.close(other)
        else:
            options = {} if limit_file_bytes is None else {"preexec_fn": limit, "restore_signals": False}
            self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, umask=0o077, **options)
            self.fd = self.process.stdout.fileno()

    def _read(self, timeout_s):
        if not self.ended and select.select([self.fd], [], [], timeout_s)[0]:
            try:
                part = os.read(self.fd, 65536)
            except OSError:  # a terminal whose other side is closed
                part = b""
            self.ended = part == b""
            self.output += part.decode(errors="replace")

    def until(self, pattern, timeout_s=TIMEOUT_S):
        """Waits for the pattern, and takes the output up to its end."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = re.search(pattern, self.output)
            if found:
                self.output = self.output[found.end():]
                return found
            if self.ended or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.output!r}")
            self._read(0.1)

    def code(self):
        return self.until(r"code (\d{4}-\d{4})").group(1)

    def say(self, line):
        line = (line + "\n").encode()
        if self.process.stdin is None:
            os.write(self.fd, line)
        else:
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def end(self, timeout_s=TIMEOUT_S):
        """Waits for its end; returns the exit code."""
        deadline = time.monotonic() + timeout_s
        while not self.ended and time.monotonic() < deadline:
            self._read(0.1)
        return self.process.wait(timeout_s)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        else:
            os.close(self.fd)


class Peer:
    """One side of the protocol, which can send anything."""

    def __init__(self, port=None, connected=None):
        self.socket = connected or socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.settimeout(TIMEOUT_S)

    def send_raw(self, data):
        self.socket.sendall(data)

    def send(self, **fields):
        data = json.dumps({"version": 1, **fields}).encode()
        self.send_raw(struct.pack(">I", len(data)) + data)

    def receive_exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self):
        (size,) = struct.unpack(">I", self.receive_exactly(4))
        return json.loads(self.receive_exactly(size))

    def is_closed(self):
        """Reads to the end of the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self):
        self.socket.close()


def field(data):
    return struct.pack(">I", len(data)) + data


def commitment(nonce, name, request):
    return hashlib.sha256(field(b"commctl pki join 1: commitment") + field(nonce) + field(name.encode()) + field(request.encode())).hexdigest()


def code_of(name, request, authority, join_nonce):
    """authority: the whole message of that kind."""
    digest = hashlib.sha256(b"".join(field(part) for part in (b"commctl pki join 1: transcript", name.encode(), request.encode(),
                                                              authority["authority"].encode(), join_nonce, bytes.fromhex(authority["nonce"]),
                                                              bytes.fromhex(authority["revocation_list_sha256"])))).digest()
    number = int.from_bytes(digest[:8], "big") % 10**8
    return f"{number // 10000:04}-{number % 10000:04}"


def pki(*arguments):
    return subprocess.run([str(part) for part in (BUILD / "commctl", "-f", "json", "pki", *arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False, timeout=TIMEOUT_S)


class Exchange(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-test-join-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.ca = self.folder / "ca"
        self.node = self.folder / "node"
        self.assertEqual(pki("init", "--dir", self.ca).returncode, 0)

    # --- what starts the two ---

    def command(self, *arguments, **options):
        command = Command(*arguments, **options)
        self.addCleanup(command.close)
        return command

    def admit(self, *arguments, **options):
        admit = self.command("admit", "--dir", self.ca, "--listen", "127.0.0.1:0", *arguments, **options)
        self.port = int(admit.until(r"waiting for nodes at 127\.0\.0\.1:(\d+)").group(1))
        return admit

    def join(self, *arguments, name="alpha", port=None, folder=None, **options):
        return self.command("join", f"127.0.0.1:{port or self.port}", name, "--dir", folder or self.node, *arguments, **options)

    def peer(self, *arguments, **options):
        peer = Peer(*arguments, **options)
        self.addCleanup(peer.close)
        return peer

    def between(self):
        """A port where a test is in the place of admit."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(TIMEOUT_S)
        self.addCleanup(listener.close)
        return listener

    # --- what is there afterwards ---

    def files(self, folder=None):
        folder = folder or self.node
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def record(self):
        done = pki("show", "--dir", self.ca)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [(row["name"], row["state"]) for row in json.loads(done.stdout)["certificates"]]

    def assert_nothing(self):
        """No certificate was issued, and the node has only its key."""
        self.assertEqual(self.record(), [])
        self.assertIn(self.files(), ([], ["alpha.key"]))

    def both_say(self, admit, join):
        """Does what two scripts do: passes the code that one side shows to the other side."""
        theirs, ours = join.code(), admit.code()
        self.assertEqual(theirs, ours)
        admit.say(theirs)
        join.say(ours)

    def request(self, name="alpha"):
        folder = self.folder / "other"
        if not (folder / f"{name}.csr").exists():
            self.assertEqual(pki("request", name, "--dir", folder).returncode, 0)
        return (folder / f"{name}.csr").read_text()

    def send_authority(self, peer, revocations=None):
        """The messages of admit, sent by somebody in its place."""
        listed = hashlib.sha256((revocations or (self.ca / "ca.crl").read_text()).encode()).hexdigest()
        peer.send(kind="authority", authority=(self.ca / "ca.crt").read_text(), nonce="00" * 32, revocation_list_sha256=listed)

    def open_exchange(self, name="alpha", request=None):
        """Plays join up to the point where admit shows the code. Returns the peer and the code."""
        request = request or self.request(name)
        nonce = os.urandom(32)
        peer = self.peer(self.port)
        peer.send(kind="commit", commitment=commitment(nonce, name, request))
        authority = peer.receive()
        peer.send(kind="open", nonce=nonce.hex(), name=name, request=request)
        return peer, code_of(name, request, authority, nonce)
