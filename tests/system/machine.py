"""Boots a small machine for tests: systemd as process 1 in its own namespaces, with the host's /usr read-only and everything else in memory. It
needs root, and systemd on the host; unavailable() says what is missing. close() kills the process that booted the machine, and with it the whole
machine.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

SYSTEMD = "/lib/systemd/systemd"
BOOT_TIMEOUT_S = 60
TOOLS = ("unshare", "nsenter", "pivot_root", "mount", "ip", "setpriv", "systemctl", "systemd-sysusers", "systemd-tmpfiles")
USERS = {"alice": 2001, "bob": 2002}

# Runs in new namespaces. $1 is an empty folder, $2 becomes /usr/local, and $3 is what /etc starts with.
BOOT = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$1"
cd "$1"
mkdir usr etc var run tmp proc sys dev root home old
mount --rbind /usr usr
mount -o remount,ro,bind usr
mount --bind "$2" usr/local
for each in bin sbin lib lib64; do ln -s "usr/$each" "$each"; done
cp -a "$3/." etc
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=755 dev dev
for each in null zero full random urandom tty; do touch "dev/$each"; mount --bind "/dev/$each" "dev/$each"; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs shm dev/shm
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t cgroup2 groups sys/fs/cgroup
ip link set lo up
pivot_root . old
umount -l old
mount --make-rshared /
exec env -i container=commd-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin """ + SYSTEMD + " --log-target=console"


def cgroup_root():
    """Returns where cgroups of version 2 are mounted, or None."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2" and os.access(mount.split()[4], os.W_OK):
            return pathlib.Path(mount.split()[4])
    return None


def unavailable():
    """Returns why no machine can be booted here, or None."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None] + ([] if os.path.exists(SYSTEMD) else [SYSTEMD])
    if missing or cgroup_root() is None:
        return f"no {', '.join(missing or ['cgroups of version 2'])}"
    if not os.path.islink("/bin"):
        return "/bin is not in /usr"
    return None


class NoBoot(Exception):
    """The machine does not boot on this host; the text holds its last output."""


class Booted:
    """systemd as process 1, started by the command that start() gets, in its own control group. Subclasses know what it boots."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-machine-"))
        self.group = cgroup_root() / self.folder.name
        self.process = None

    def start(self, command, environment=None):
        self.group.mkdir()
        with open(self.folder / "boot.log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
                                            env={**os.environ, **(environment or {})}, preexec_fn=lambda: (self.group / "cgroup.procs").write_text("0"))
        try:
            self._wait_booted()
        except BaseException:
            self.close()
            raise

    def _wait_booted(self):
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            if self.process.poll() is not None:
                raise NoBoot(self.log())
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and pathlib.Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
                self.init = int(children[0])
                if self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"):
                    return
            if time.monotonic() > deadline:
                raise NoBoot(f"not up within {BOOT_TIMEOUT_S} s: {self.log()}")
            time.sleep(0.1)

    def log(self):
        return (self.folder / "boot.log").read_text(errors="replace")[-4000:]

    def entered(self, *command, user=None, groups=()):
        """Returns the command line that runs a command inside as root, or as one of USERS."""
        uid = USERS.get(user)
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", *([f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"])] if user else []
        return ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-i", "-n", "-C", "env", "-i",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", *become, *map(str, command)]

    def run(self, *command, check=True, user=None, groups=(), timeout_s=60):
        done = subprocess.run(self.entered(*command, user=user, groups=groups), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, cwd="/")
        assert done.returncode == 0 or not check, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def path(self, path):
        """Returns the path by which this process reaches a file of the machine."""
        return pathlib.Path(f"/proc/{self.init}/root{path}")

    def close(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)  # everything that process 1 has started ends with it
            self.process.wait()
            deadline = time.monotonic() + 10
            while (self.group / "cgroup.events").read_text().startswith("populated 1") and time.monotonic() < deadline:
                time.sleep(0.02)
            for folder, _, _ in os.walk(self.group, topdown=False):
                os.rmdir(folder)
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine(Booted):
    """The host's /usr, with folders of its own for /usr/local and /etc."""

    def __init__(self):
        super().__init__()
        self.local, self.etc, root = (self.folder / name for name in ("local", "etc", "root"))
        for each in (self.local, self.etc, self.etc / "systemd/system", root):
            each.mkdir(parents=True)
        self._make_etc()
        self.start(["unshare", "-m", "-p", "-u", "-i", "-n", "-C", "--fork", "--kill-child", "sh", "-c", BOOT, "boot", root, self.local, self.etc])

    def _make_etc(self):
        known = ("root", "daemon", "nobody", "messagebus", "tty", "shadow", "nogroup", "kmem", "disk", "input", "kvm", "render", "sgx", "utmp", "adm")
        for name in ("passwd", "group"):
            lines = [line for line in pathlib.Path("/etc", name).read_text().splitlines() if line.split(":")[0] in known or line.startswith("systemd-")]
            lines += [f"{user}:x:{uid}:{uid}::/:/bin/sh" if name == "passwd" else f"{user}:x:{uid}:" for user, uid in USERS.items()]
            (self.etc / name).write_text("\n".join(lines) + "\n")
        for name in ("os-release", "ld.so.conf", "ld.so.cache", "nsswitch.conf"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", self.etc / name)
        for name in ("ld.so.conf.d", "alternatives"):
            if os.path.isdir(f"/etc/{name}"):
                shutil.copytree(f"/etc/{name}", self.etc / name, symlinks=True)
        (self.etc / "machine-id").write_text("")
        (self.etc / "hostname").write_text("solo\n")
