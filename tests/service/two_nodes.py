"""Two fresh containers become a cluster. All commands that a person would type come from README.md and systemd/README.md."""
import os
import re
import signal
import subprocess
import time

from container import Container

COMMANDS_MAX = 10  # for each node; the list of nodes is the only file that a person edits
NODES = {"alpha": "10.98.0.1", "beta": "10.98.0.2"}
CODE_TIMEOUT_S = 30
LOST_TIMEOUT_S = 30


class Person:
    """A command that asks for a code, and the person who reads the screen and answers."""

    def __init__(self, container, line):
        self.said = ""
        self.process = subprocess.Popen(container.entered("sh", "-c", f"cd /root && exec {line} 2>&1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        start_new_session=True)

    def until(self, pattern):
        """Reads until it matches, for at most as long as the commands themselves wait."""
        deadline = time.monotonic() + CODE_TIMEOUT_S
        while not (found := re.search(pattern, self.said)):
            byte = self.process.stdout.read(1)
            assert byte and time.monotonic() < deadline, f"{pattern} did not come: {self.said}"
            self.said += byte
        self.said = self.said[found.end():]
        return found.group(1)

    def say(self, text):
        self.process.stdin.write(text + "\n")

    def end(self):
        said = self.process.communicate(timeout=60)[0]
        assert self.process.returncode == 0, f"{self.process.args[-1]}: {self.process.returncode}\n{said}"

    def close(self):
        """Ctrl-C."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            self.process.communicate(timeout=60)


class TwoNodes:
    """readme_lines: as in check_service.py. roots: a root file system for each node, with the packages to install in /root/build/deb."""

    def __init__(self, roots, install_lines, readme_lines):
        self.install_lines, self.readme_lines = install_lines, readme_lines
        self.nodes, self.typed = {}, {name: 0 for name in NODES}
        try:
            for name, root in zip(NODES, roots):
                self.nodes[name] = Container(root, name)
            self._join_networks()
        except BaseException:
            self.close()
            raise

    def _join_networks(self):
        (first, second), addresses = self.nodes.values(), list(NODES.values())
        subprocess.run(["nsenter", "-t", str(first.init), "-n", "ip", "link", "add", "node0", "type", "veth", "peer", "name", "node0", "netns", str(second.init)],
                       check=True, timeout=20)
        for container, address in ((first, addresses[0]), (second, addresses[1])):
            container.run("ip", "address", "add", f"{address}/24", "dev", "node0")
            container.run("ip", "link", "set", "node0", "up")

    def type(self, node, line, **options):
        self.typed[node] += 1
        return self.nodes[node].shell(line, **options)

    def line(self, pattern, document="systemd/README.md"):
        return self.readme_lines(document, pattern)[0]

    def join(self, name):
        """`join` on the node and `admit` on the first one; two people compare the codes."""
        first = next(iter(NODES))
        joining = Person(self.nodes[name], self.line(r"^commctl pki join").replace("AUTHORITY", NODES[first]).replace("alpha", name))
        self.typed[name] += 1
        try:
            code = joining.until(r"(\d{4}-\d{4})")
            seen = self.admit.until(rf"{name} at \S+ asks for a certificate: code (\d{{4}}-\d{{4}})")
            assert code == seen, f"{name}: the codes differ without an attacker: {code}, {seen}"
            for person in (self.admit, joining):
                person.say(code)
            joining.end()
        finally:
            joining.close()

    def run(self):
        first = next(iter(NODES))
        for name in NODES:
            for line in self.install_lines:
                self.type(name, line, timeout_s=120)
        self.type(first, self.line(r"^commctl pki init"))
        self.certify(NODES)
        for name in NODES:
            self.configure(name, NODES)
            for pattern in (r"^runuser -u commd", r"^systemctl restart commd"):
                self.type(name, self.line(pattern))
        self.wait_nodes()
        self.sum()
        for name, count in self.typed.items():
            assert count <= COMMANDS_MAX, f"{name}: {count} commands"
        return f"commands: {', '.join(f'{name} {count}' for name, count in self.typed.items())} (bar: {COMMANDS_MAX})"

    def certify(self, names):
        """`admit` on the first node, until all of these have joined."""
        first = next(iter(NODES))
        self.admit = Person(self.nodes[first], self.line(r"^commctl pki admit"))
        self.typed[first] += 1
        try:
            self.admit.until(r"(waiting for nodes)")
            for name in names:
                self.join(name)
        finally:
            self.admit.close()

    def configure(self, name, listed):
        rows = ", ".join(f'{{ name = "{each}"; address = "{NODES[each]}:7400"; }}' for each in listed)
        self.nodes[name].path("/etc/commd/commd.conf").write_text(f"nodes = ( {rows} );\n")

    def wait_nodes(self):
        for name in NODES:
            said = self.type(name, self.line(r"^commctl wait nodes"), check=False)
            assert said.returncode == 0, said.stdout + said.stderr + self.nodes[name].shell("journalctl -u commd -n 20 --no-pager -o cat").stdout

    def lost_node(self):
        """The second node is lost, taken out, rebuilt, and joins again; the first goes on meanwhile."""
        (first, here), (lost, there) = self.nodes.items()
        reload_line = self.line(r"^systemctl reload commd")
        pid = here.run("systemctl", "show", "-P", "MainPID", "commd").stdout
        there.run("ip", "link", "set", "node0", "down")
        deadline = time.monotonic() + LOST_TIMEOUT_S
        while not re.search(rf"^{lost} +(down|connecting)", (said := here.shell("commctl nodes", check=False).stdout), re.MULTILINE):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        here.shell(self.line(r"^commctl pki revoke beta") + " && cp pki/ca.crl /etc/commd/pki/")
        self.configure(first, [first])
        here.shell(reload_line)
        assert lost not in here.shell("commctl status && commctl nodes").stdout, "it is still there"
        there.shell("systemctl stop commd.socket commd && rm -r /etc/commd/pki && ip link set node0 up")
        self.certify([lost])
        for name in NODES:
            self.configure(name, NODES)
        here.shell(reload_line)
        there.shell(self.line(r"^systemctl restart commd"))
        self.wait_nodes()
        self.sum()
        assert re.search(rf"{lost} +revoked", here.shell(self.line(r"^commctl pki show")).stdout), "the certificate of the lost one is not revoked"
        assert here.run("systemctl", "show", "-P", "MainPID", "commd").stdout == pid, "the first node's commd was started anew"

    def sum(self):
        """A rank on each node, of commctl itself: every element is checked."""
        benches = [subprocess.Popen(container.entered("commctl", "bench", "--ranks", "1", "--size", "2", "--first-rank", rank, "--max-bytes", "1m",
                                                      "--seconds-per-size", "0.02", "--communicator", "two-nodes"),
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for rank, container in enumerate(self.nodes.values())]
        said = "".join(bench.communicate(timeout=60)[0] for bench in benches)  # the node of rank 0 prints the table
        assert all(bench.returncode == 0 for bench in benches) and "# 0 wrong" in said, said

    def close(self):
        for container in self.nodes.values():
            container.close()

