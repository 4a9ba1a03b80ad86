"""Root file systems of Debian's releases, made once and kept outside the repository, and programs that run in them.

They are in ${XDG_CACHE_HOME:-~/.cache}/commd/service. mmdebstrap makes them from the mirrors of this machine's apt. It makes them
again when their contents have to change.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

RELEASES = {"12": "bookworm", "13": "trixie"}
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "commd/service"
# Host tools by the package of Debian that has them.
TOOLS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "nsenter": "util-linux", "apt-get": "apt"}
MACHINE = ("systemd", "systemd-sysv", "dbus", "ca-certificates", "iproute2", "procps", "gcc", "libc6-dev", "pkg-config", "cmake", "make")
PACKAGES = {
    # `make deb` installs the rest itself.
    "build": ("make", "gcc", "ca-certificates", "debian-archive-keyring"),
    # tests/service/check_arm64.py adds the cross compiler to it.
    "arm64": ("make", "gcc", "ca-certificates", "debian-archive-keyring", "apt-utils"),
    # What a user of a plain machine has.
    "machine": MACHINE,
    "slurm": (*MACHINE, "slurm-wlm", "munge"),
}
MAKE_TIMEOUT_S = 900
# The answers of an administrator who is asked nothing.
APT = 'APT::Get::Assume-Yes "true";\nDPkg::Use-Pty "0";\nAPT::Install-Recommends "false";\n'
# Run in new namespaces: $1 is the folder, $2 the command, the rest its environment.
ENTER = r"""
set -eu
root=$1 command=$2
shift 2
mount --make-rprivate /
touch "$root/etc/resolv.conf"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmp "$root/tmp"
exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" sh -c "$command"
"""


def missing_tools():
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})


def mirror():
    """The mirror of Debian that this machine's apt uses, or None for the tool's own default."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"],
                            capture_output=True, text=True, timeout=60).stdout.split()
    return listed[0] if listed else None


@contextlib.contextmanager
def locked(name):
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def image(release, kind):
    """The folder of that image; made if it is not there. The caller holds the lock of what it changes in it."""
    codename, packages = RELEASES[release], PACKAGES[kind]
    key = hashlib.sha256(repr((codename, packages, APT)).encode()).hexdigest()[:12]
    folder = CACHE / f"{codename}-{kind}-{key}"
    with locked(folder.name):
        if not folder.is_dir():
            part = CACHE / f"{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}", "--skip=cleanup/apt/lists",
                            "--aptopt=Acquire::Languages \"none\"", codename, part, *filter(None, [mirror()])],
                           check=True, timeout=MAKE_TIMEOUT_S, stdin=subprocess.DEVNULL)
            (part / "etc/apt/apt.conf.d/90commd").write_text(APT)
            part.rename(folder)
    return folder


def run_in(root, command, timeout_s):
    """A shell command as root in a root file system that is not booted, with this machine's network."""
    environment = [f"{name}={value}" for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy", "no_proxy")]
    return subprocess.run(["unshare", "-m", "-p", "-i", "-u", "--fork", "--kill-child", "sh", "-c", ENTER, "enter", root, command, *environment],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)


@contextlib.contextmanager
def copy_of(folder):
    """A copy that may be changed; removed at the end."""
    holder = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", folder, holder / "root"], check=True, timeout=MAKE_TIMEOUT_S)
        yield holder / "root"
    finally:
        shutil.rmtree(holder, ignore_errors=True)
