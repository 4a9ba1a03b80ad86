#!/usr/bin/env python3
"""commd's packages on Debian 12 and 13: built, installed in a booted container, used, upgraded, purged. Needs root.

usage: check_service.py [--release 12|13] [--packages FOLDER] [--out FOLDER]

All commands that a person would type come from systemd/README.md or README.md. Each check has a line of output. The exit code is 1 if
one failed, 2 if they cannot run here.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import image  # noqa: E402
import machine  # noqa: E402
import packages  # noqa: E402
import slurm  # noqa: E402
from container import Container  # noqa: E402
from two_nodes import NODES, TwoNodes  # noqa: E402

TOP = packages.TOP
INSTALL_TO_SUM_S = 60
INSTALL_TO_SUM_COMMANDS = 3
EXPOSURE_MAX = 2.0
UPGRADE_TIMEOUT_S = 60
GAP_MAX_S = 3.0
DOWNLOAD_TIMEOUT_S = 300
FOLDERS = ("/etc", "/run", "/var", "/usr", "/opt", "/srv", "/home", "/tmp")
# What apt, dpkg, ld.so, systemd and the journal write for themselves.
NOT_COMMDS = re.compile(r"/var/(lib/(apt|dpkg|systemd/(catalog|timers|random-seed|ephemeral-trees)|pam)|cache|log)(/|$)|/run/(systemd|user|udev|log|mount|lock|utmp)(/|$)"
                        r"|/etc/(ld\.so\.cache|(passwd|group|shadow|gshadow|subuid|subgid)-?)$|/tmp/|/usr/share/man/|/etc/\.pwd\.lock|/run/(agetty\.reload|[^/]+\.pid)$")
CMAKE_LISTS = """cmake_minimum_required(VERSION 3.20)
project(hello C)
find_package(commclient REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello commclient::commclient)
"""

# A rank that forms its communicator again after a failure, until a file appears. All ranks end at the same step.
REFORMING = """import os, sys, time
import commd, numpy
right_at, comm, reason = time.monotonic(), None, None
while True:
    try:
        comm = comm or commd.init(daemon_wait=20, timeout=20, op_timeout=20)
        ended, *found = comm.all_reduce(numpy.array([os.path.exists(sys.argv[1]), *range(10000)], dtype="i8")).tolist()
    except commd.Error as fault:
        reason = reason or fault
        if comm:
            comm.close()
        comm = None
        continue
    if found != [comm.size * i for i in range(10000)]:
        sys.exit("WRONG")
    now = time.monotonic()
    if reason:
        print(f"GAP {now - right_at:.2f} {reason}", flush=True)
    reason, right_at = None, now
    if ended:
        break
"""


def readme_lines(document, pattern):
    """Returns the commands of a document's blocks of code that match, without their comments."""
    lines = [line[4:].split("  #")[0].rstrip() for line in (TOP / document).read_text().splitlines() if line.startswith("    ")]
    found = [line for line in lines if re.search(pattern, line)]
    assert found, f"{document} has no command like {pattern}"
    return found


def readme_program():
    return re.search(r"^```c\n(.*?)^```$", (TOP / "README.md").read_text(), re.MULTILINE | re.DOTALL).group(1)


def put_packages(root, debs):
    """Puts the packages, and the packages that they need, where README's commands find them, because the container's network reaches no mirror.
    Returns these commands."""
    folder = root / "root/build/deb"
    folder.mkdir(parents=True)
    for path in debs:
        shutil.copy(path, folder)
    done = image.run_in(root, "cd /root && apt-get update -qq; apt-get install --download-only ./build/deb/*.deb python3-numpy", DOWNLOAD_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    return readme_lines("systemd/README.md", r"^apt install \./build/deb/")


def report(release, name, check_one):
    """Runs one check and prints its line. Returns whether it was fine."""
    started = time.monotonic()
    try:
        said, fine = check_one() or "", True
    except Exception as fault:  # the next checks may still say something
        said, fine = "".join(traceback.format_exception_only(fault)).strip(), False
    print(f"Debian {release}  {'ok    ' if fine else 'FAILED'}  {name:<16} {time.monotonic() - started:5.1f} s  {said}", flush=True)
    return fine


class Service:
    """The checks of one release, in the order in which an operator meets what they check."""

    def __init__(self, release, debs, root):
        self.release, self.debs = release, debs
        self.results = []
        self.install_lines = put_packages(root, debs)
        self.container = Container(root)

    def run(self):
        self.before = self.files()
        for each in (self.install_and_sum, self.status, self.owners, self.exposure, self.cmake, self.examples, self.reload, self.restart, self.reinstall, self.remove,
                     self.purge, self.alone, self.python, self.upgrade, self.purge_python):
            self.results.append(report(self.release, each.__name__.replace("_", " "), each))
        return all(self.results)

    def files(self):
        return set(self.container.shell(f"find {' '.join(FOLDERS)} -xdev", timeout_s=60).stdout.splitlines())

    def show(self, name):
        return self.container.run("systemctl", "show", "-P", name, "commd").stdout.strip()

    def fine(self):
        """commd runs and says so."""
        done = self.container.run("commctl", "status", user="alice", check=False)
        assert done.returncode == 0, f"commctl status: {done.returncode} {done.stdout}{done.stderr}{self.journal()}"
        assert "solo (standalone)" in done.stdout, done.stdout
        assert self.show("ActiveState") == "active", self.show("ActiveState")
        return done.stdout.splitlines()[0]

    def journal(self):
        return self.container.run("journalctl", "-u", "commd", "--no-pager", "-n", "30", "-o", "cat", check=False).stdout

    def install_and_sum(self):
        """README's own commands lead from nothing to the result of two ranks of a program that a user has built."""
        container, source = self.container, "/home/alice/hello.c"
        container.path(source).write_text(readme_program())
        os.chown(container.path(source), machine.USERS["alice"], machine.USERS["alice"])
        compile_line, run_line = (readme_lines("README.md", pattern)[0] for pattern in (r"^cc hello\.c", r"^commctl run -n 2 -- \./hello"))
        started = time.monotonic()
        for line in self.install_lines:
            container.shell(line, timeout_s=120)
        installed_s = time.monotonic() - started
        container.shell(compile_line, "/home/alice", user="alice")
        said = container.shell(run_line, "/home/alice", user="alice", timeout_s=60).stdout
        took_s = time.monotonic() - started
        for rank in (0, 1):
            assert f"rank {rank} of 2: the sum of all ranks is 1" in said, said
        commands = len(self.install_lines) + 2
        assert took_s <= INSTALL_TO_SUM_S and commands <= INSTALL_TO_SUM_COMMANDS, f"{took_s:.1f} s, {commands} commands"
        return f"{commands} commands: installed after {installed_s:.1f} s, summed after {took_s:.1f} s (bars: {INSTALL_TO_SUM_COMMANDS}, {INSTALL_TO_SUM_S} s)"

    def status(self):
        for unit in ("commd.service", "commd.socket"):
            for question in ("is-active", "is-enabled"):
                self.container.run("systemctl", question, unit)
        return self.fine()

    def owners(self):
        expected = {"/run/commd": "commd:commd 755", "/run/commd/commd.sock": "commd:commd 666", "/run/commd-admin/admin.sock": "commd:commd 600",
                    "/etc/commd/commd.conf": "root:root 644", "/usr/share/commd/commd-alerts.yml": "root:root 644",
                    "/usr/share/commd/commd-dashboard.json": "root:root 644"}
        for path, owner in expected.items():
            found = self.container.run("stat", "-c", "%U:%G %a", path).stdout.strip()
            assert found == owner, f"{path}: {found}, expected {owner}"
        for page in ("commd.8", "commctl.1", "commd.conf.5"):
            found = self.container.shell(f"dpkg -L commd | grep -F /{page}.gz").stdout
            assert found, page

    def exposure(self):
        said = self.container.run("systemd-analyze", "security", "--no-pager", "commd.service", check=False).stdout
        exposure = float(re.search(r"Overall exposure level for commd.service: ([0-9.]+)", said).group(1))
        exposed = "\n".join(line for line in said.splitlines() if line.startswith("✗"))
        assert exposure <= EXPOSURE_MAX, f"{exposure}\n{exposed}"
        return f"{exposure} (bar: {EXPOSURE_MAX})"

    def cmake(self):
        self.container.path("/home/alice/CMakeLists.txt").write_text(CMAKE_LISTS)
        self.container.shell("cmake -S . -B built >&2 && cmake --build built >&2", "/home/alice", user="alice")
        said = self.container.shell("commctl run -n 2 -- built/hello", "/home/alice", user="alice").stdout
        assert "rank 1 of 2: the sum of all ranks is 1" in said, said

    def examples(self):
        """Each of the package's examples compiles as it is; one runs."""
        self.container.shell("set -e; for each in /usr/share/doc/libcommclient-dev/examples/*.c; do\n"
                             "cc $each -o $(basename $each .c) $(pkg-config --cflags --libs commclient) -lm; done", "/home/alice", user="alice")
        said = self.container.shell("commctl run -n 2 -- ./ring", "/home/alice", user="alice").stdout
        assert "right" in said, said

    def reload(self):
        self.container.run("systemctl", "reload", "commd")
        path = self.container.path("/etc/commd/commd.conf")
        shipped = path.read_text()
        path.write_text(shipped + "heart_beat = 3;\n")
        done = self.container.run("systemctl", "reload", "commd", check=False)
        path.write_text(shipped)
        assert done.returncode != 0, "a file with a fault was loaded"
        self.fine()

    def restart(self):
        before = self.show("MainPID")
        self.container.run("systemctl", "restart", "commd")
        assert self.show("MainPID") not in ("0", before)
        self.fine()

    def reinstall(self):
        """A reinstallation does what an upgrade does: commd restarts; its socket and a changed configuration stay."""
        path = self.container.path("/etc/commd/commd.conf")
        path.write_text(path.read_text() + 'log_level = "debug";\n')
        before, inode = self.show("MainPID"), self.container.path("/run/commd/commd.sock").stat().st_ino
        self.container.shell(" && ".join(line.replace("apt install", "apt-get install --reinstall") for line in self.install_lines))
        assert self.show("MainPID") not in ("0", before), "commd was not restarted"
        assert self.container.path("/run/commd/commd.sock").stat().st_ino == inode, "the socket was made anew"
        assert 'log_level = "debug"' in path.read_text(), "the administrator's configuration is gone"
        self.fine()

    def remove(self):
        self.container.shell("apt-get remove commd")
        assert self.container.run("pgrep", "-x", "commd", check=False).returncode == 1, "commd still runs"
        assert self.container.path("/etc/commd/commd.conf").exists(), "remove took the configuration, as only purge may"

    def purge(self):
        self.container.shell("mkdir -p /etc/commd/pki && touch /etc/commd/pki/solo.key")
        self.container.shell("apt-get purge 'commd*' 'libcommclient*' && apt-get autoremove --purge")
        left = {path for path in self.files() - self.before if not NOT_COMMDS.search(path) and not path.startswith("/home/alice")}
        left |= {path for path in self.files() - self.before if re.search("commd|commctl|commclient", path) and not re.match("/root/|/var/(cache|log)", path)}
        assert not left, f"left: {' '.join(sorted(left))}"
        for name in ("passwd", "group", "shadow", "gshadow"):
            assert "commd" not in self.container.path(f"/etc/{name}").read_text(), f"/etc/{name} still has commd"
        failed = self.container.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "commd*").stdout
        assert "commd" not in failed, failed

    def alone(self):
        """The daemon's package needs none of the others."""
        self.container.shell("apt install ./build/deb/commd_*.deb")
        said = self.status()
        self.container.shell("apt-get purge commd && apt-get autoremove --purge")
        assert "commd" not in self.container.path("/etc/passwd").read_text(), "/etc/passwd still has commd"
        return said

    def python(self):
        """python3-commd finds the system's library, runs the README's first program, and tells torch of itself."""
        self.container.shell("apt install ./build/deb/commd_*.deb")
        self.container.shell(readme_lines("client/python/README.md", r"^apt install \./build/deb/")[0], timeout_s=120)
        readme = (TOP / "client/python/README.md").read_text()
        program = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL).group(1)
        self.container.path("/home/alice/program.py").write_text(program)
        command, answer = re.search(r"^    \$ (python3 .*program\.py)\n    (.*)$", readme, re.MULTILINE).groups()
        said = self.container.shell(command, "/home/alice", user="alice").stdout
        assert answer in said, said
        said = self.container.shell("python3 -c \"from importlib import metadata; print(metadata.entry_points(group='torch.backends'))\"").stdout
        assert "commd.torch" in said, said

    def upgrade(self):
        """Every package is reinstalled while a job runs that forms its communicator again."""
        self.container.path("/home/alice/reforming.py").write_text(REFORMING)
        job = subprocess.Popen(self.container.entered("commctl", "run", "-n", "2", "--", "python3", "/home/alice/reforming.py", "/home/alice/enough", user="alice"),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + UPGRADE_TIMEOUT_S
            while '"comms_formed": 1' not in self.container.run("commctl", "-f", "json", "status").stdout:
                assert time.monotonic() < deadline, "the job does not form"
                time.sleep(0.1)
            before = self.show("MainPID")
            self.container.shell("apt-get install --reinstall ./build/deb/*.deb", timeout_s=UPGRADE_TIMEOUT_S)
            assert self.show("MainPID") not in ("0", before), "commd was not restarted"
            time.sleep(GAP_MAX_S)  # until then, the job has a result again
            self.container.path("/home/alice/enough").touch()
            said = job.communicate(timeout=UPGRADE_TIMEOUT_S)[0]
        finally:
            job.kill()
        gaps = re.findall(r"GAP ([0-9.]+) (.*)", said)
        assert job.returncode == 0 and len(gaps) >= 2 and all("commd is restarting" in reason for _, reason in gaps), said
        longest = max(float(gap) for gap, _ in gaps)
        assert longest <= GAP_MAX_S, said
        return f"longest gap {longest:.2f} s (bar: {GAP_MAX_S} s)"

    def purge_python(self):
        self.container.shell("apt-get purge 'commd*' python3-commd 'libcommclient*'")
        left = {path for path in self.files() - self.before if "commd" in path and not re.match("/root/|/home/|/var/(cache|log)", path)}
        assert not left, f"left: {' '.join(sorted(left))}"


def check_two_nodes(release, debs):
    """Two fresh containers become a cluster; then Slurm runs a job on it."""
    fine = True
    with image.copy_of(image.image(release, "slurm")) as first, image.copy_of(image.image(release, "slurm")) as second:
        lines = [put_packages(root, debs) for root in (first, second)]
        for root in (first, second):
            slurm.prepare(root)
        nodes = TwoNodes((first, second), lines[0], readme_lines)
        jobs = slurm.Slurm(nodes.nodes, NODES, readme_program())
        try:
            for name, each in (("two nodes", nodes.run), ("slurm", jobs.run), ("lost node", nodes.lost_node)):
                fine = report(release, name, each) and fine
        finally:
            nodes.close()
    return fine


def unavailable():
    if os.geteuid() != 0:
        return "it has to be root"
    missing = image.missing_tools()
    if missing:
        return f"tools are missing: apt-get install {' '.join(missing)}"
    return None if machine.cgroup_root() else "no control groups of version 2"


def check(release, arguments):
    out = arguments.out / f"debian-{release}"
    if arguments.packages:
        debs = sorted(arguments.packages.glob("*.deb"))
    else:
        started = time.monotonic()
        debs = packages.build(release, out)
        print(f"Debian {release}  built   {len(debs)} packages in {time.monotonic() - started:.0f} s, without an error of lintian", flush=True)
    with image.copy_of(image.image(release, "machine")) as root:
        service = Service(release, debs, root)
        try:
            fine = service.run()
        finally:
            service.container.close()
    return check_two_nodes(release, debs) and fine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--release", choices=image.RELEASES, action="append")
    parser.add_argument("--packages", type=pathlib.Path, help="a folder with packages that are built already")
    parser.add_argument("--out", type=pathlib.Path, default=TOP / "build/service")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # containers and copies are removed on the way out
    reason = unavailable()
    if reason:
        print(f"check-service: cannot run: {reason}")
        return 2
    fine = [check(release, arguments) for release in arguments.release or image.RELEASES]
    print("check-service: " + ("all fine" if all(fine) else "FAILED"))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
