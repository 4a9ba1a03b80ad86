#!/usr/bin/env python3
"""A file system with one file, "file". A separate process serves it from /dev/fuse, and stops answering when it is told to."""
import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 0x40000, 2
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 4, 14, 15, 16, 18, 25, 26, 36, 42
WRITEBACK_CACHE = 1 << 16
ROOT, FILE, PAGE_BYTES = 1, 2, 4096


def call(function, *arguments):
    if getattr(LIBC, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def own_namespace():
    """From now on the mounts of this process and of its children are invisible to others."""
    call("unshare", CLONE_NEWNS)
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)


class FileSystem:
    """The file system is mounted in the caller's namespace until close(). close() also ends every wait for it."""

    def __init__(self, writeback=False):
        self.folder = tempfile.mkdtemp(prefix="commd-test-fuse-")
        self.server = None
        os.chmod(self.folder, 0o755)
        device = None
        try:
            device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
            call("mount", b"commd-test", self.folder.encode(), b"fuse", 0, options.encode())
            self.server = subprocess.Popen([sys.executable, __file__, str(device), str(int(writeback))], pass_fds=[device],
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except BaseException:
            self.close()
            raise
        finally:
            if device is not None:
                os.close(device)
        self.path = f"{self.folder}/file"

    def _tell(self, command):
        self.server.stdin.write(command)
        self.server.stdin.flush()
        return self.server.stdout.readline().split()

    def hold(self):
        """From now on, every process that closes the file or writes to it waits."""
        self._tell(b"h")

    def waiting(self):
        """Returns how many requests wait for their answer."""
        return int(self._tell(b"n")[0])

    def close(self):
        if self.server is not None:
            self.server.kill()  # the server had the only descriptor of /dev/fuse: without it nobody waits any more
            self.server.wait()
            self.server.stdin.close()
            self.server.stdout.close()
        LIBC.umount2(self.folder.encode(), MNT_DETACH)
        os.rmdir(self.folder)


def attributes(node):
    mode = 0o40755 if node == ROOT else 0o100666
    return struct.pack("<QQQQQQIIIIIIIIII", node, PAGE_BYTES, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE_BYTES, 0)


class Server:
    def __init__(self, device, writeback):
        self.device, self.writeback = device, writeback
        self.held = set()
        self.waiting = 0

    def answer(self, operation, node, body):
        """Returns (0 or -errno, bytes), or None for a request that gets no answer."""
        if operation in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        if operation == INIT:
            read_ahead, flags = struct.unpack_from("<8xII", body)
            return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, read_ahead, flags & WRITEBACK_CACHE if self.writeback else 0, 12, 9, 65536, 1, 0, 0, 0)
        if operation == LOOKUP:
            return 0, struct.pack("<QQQQII", FILE, 0, 100, 100, 0, 0) + attributes(FILE)
        if operation in (GETATTR, SETATTR):
            return 0, struct.pack("<QII", 100, 0, 0) + attributes(node)
        if operation == OPEN:
            return 0, struct.pack("<QII", 1, 0, 0)
        if operation == READ:
            return 0, bytes(PAGE_BYTES)
        if operation == WRITE:
            return 0, struct.pack("<II", struct.unpack_from("<16xI", body)[0], 0)
        return (0, b"") if operation in (FLUSH, RELEASE) else (-38, b"")  # ENOSYS

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError:
                return
            operation, unique, node = struct.unpack_from("<4xIQQ", request)
            if operation in self.held:
                self.waiting += 1
                continue
            answer = self.answer(operation, node, request[40:])
            if answer is not None:
                try:
                    os.write(self.device, struct.pack("<IiQ", 16 + len(answer[1]), answer[0], unique) + answer[1])
                except OSError:
                    pass  # the process that asked is gone


def main():
    server = Server(int(sys.argv[1]), sys.argv[2] == "1")
    threading.Thread(target=server.serve, daemon=True).start()
    while command := os.read(0, 1):
        if command == b"h":
            server.held = {FLUSH, WRITE, SETATTR}
        print(server.waiting, flush=True)


if __name__ == "__main__":
    main()
