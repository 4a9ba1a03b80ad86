"""A container of a Debian release that systemd-nspawn boots, with a network of its own that reaches nothing."""
import os
import pathlib
import signal
import subprocess
import uuid

from machine import USERS, Booted

SHUTDOWN_TIMEOUT_S = 20


class Container(Booted):
    def __init__(self, root, hostname="solo"):
        super().__init__()
        self.root = root
        (root / "etc/machine-id").write_text("")
        (root / "etc/hostname").write_text(f"{hostname}\n")
        self.start(["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--settings=no", "--link-journal=no",
                    "--timezone=off", "--resolv-conf=off", "--console=read-only", f"--machine=commd-{uuid.uuid4().hex[:12]}", f"--directory={root}"],
                   {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"})
        for name, uid in USERS.items():
            self.run("useradd", "--create-home", "--uid", uid, name)

    def shell(self, line, folder="/root", user=None, check=True, timeout_s=120):
        """A line as a person types it."""
        return self.run("sh", "-c", f"cd {folder}\n{line}", user=user, check=check, timeout_s=timeout_s)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # systemd-nspawn shuts it down
            try:
                self.process.wait(timeout=SHUTDOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        super().close()
        # Where there are control groups of the first version too, systemd-nspawn makes some there.
        for group in pathlib.Path("/sys/fs/cgroup").glob(f"*/{self.group.name}"):
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
