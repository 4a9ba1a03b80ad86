#!/usr/bin/env python3
"""The configuration: --check-config and a start refuse the same files in the same words; reloads and their results; one file for all nodes; names
that do not resolve; settings that differ between nodes."""
import os
import re
import signal
import subprocess
import time
import unittest

from cluster import BUILD, Cluster, namespaces_work, run
from failure_case import FailureCase

WAITS = True

COMMD = BUILD / "commd"


def settings(cluster, name):
    return {row["key"]: row for row in cluster.json(name, "config", "show")["settings"]}


def node_row(cluster, name, other):
    return next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == other)


class Check(unittest.TestCase):
    """Passes each bad file to --check-config and to a start."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["a"], start=False, namespaces=False)
        cls.pki = cls.cluster.folder / "pki"
        run(BUILD / "commctl", "pki", "issue", "c", "--dir", cls.pki)
        run(BUILD / "commctl", "pki", "init", "--dir", cls.cluster.folder / "other")
        run(BUILD / "commctl", "pki", "issue", "a", "--dir", cls.cluster.folder / "other")
        (cls.cluster.folder / "open.key").write_bytes((cls.pki / "a.key").read_bytes())
        (cls.cluster.folder / "open.key").chmod(0o644)
        cls.address = cls.cluster.addresses["a"]

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def lines(self, **changed):
        """A good file, line by line; a change replaces a setting, or adds one."""
        values = {"node_name": '"a"', "nodes": f'( {{ name = "a"; address = "{self.address}"; }} )', "certificate": f'"{self.pki}/a.crt"',
                  "key": f'"{self.pki}/a.key"', "authority": f'"{self.pki}/ca.crt"', "socket_path": f'"{self.cluster.socket("a")}"'}
        values.update(changed)
        return [f"{key} = {value};" for key, value in values.items()]

    def both(self, **changed):
        lines = self.lines(**changed)
        path = self.cluster.config_path("a")
        path.write_text("\n".join(lines) + "\n")
        check = run(COMMD, "--check-config", "--config", path, check=False, timeout=30)
        start = subprocess.Popen([COMMD, "--config", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            said = start.communicate(timeout=5)[1]
        except subprocess.TimeoutExpired:
            start.terminate()
            said = start.communicate()[1]
        return check, start.returncode, said

    def refused(self, setting, value, /, *texts, code=78, **changed):
        changed = {setting: value, **changed}
        check, start_code, said = self.both(**changed)
        what = check.stderr.strip().removeprefix("commd: ")
        self.assertEqual((check.returncode, check.stdout), (78, ""), f"{setting} = {value}: {check.stderr}")
        self.assertIn(what, said, "the start says the same")
        self.assertEqual(start_code, code, said)
        number = next(i for i, text in enumerate(self.lines(**changed), 1) if text.startswith(f"{setting} ="))
        self.assertIn(f"{self.cluster.config_path('a')}:{number}: {setting}", what)
        for text in texts:
            self.assertIn(text, what)

    def test_a_good_file(self):
        path = self.cluster.config_path("a")
        path.write_text("\n".join(self.lines()) + "\n")
        said = run(COMMD, "--check-config", "--config", path).stdout
        self.assertIn("fine: node a, 0 other nodes", said)
        if os.geteuid() == 0:
            self.assertIn(f"checked as root: {self.pki}/a.key belongs to root (uid 0)", said)
        self.assertIn("fine", run(BUILD / "commctl", "config", "check", path).stdout)

    def test_certificates(self):
        folder = self.cluster.folder
        self.refused("certificate", '"/nonexistent/a.crt"', "certificate file /nonexistent/a.crt: No such file")
        self.refused("certificate", f'"{self.pki}/a.key"', "not a certificate in PEM")
        self.refused("key", f'"{self.pki}/c.key"', "does not belong to the certificate")
        self.refused("key", f'"{folder}/open.key"', "mode 0644, expected 0600 or 0400")
        self.refused("key", f'"{self.pki}/a.crt"', "mode 0644" if (self.pki / "a.crt").stat().st_mode & 0o077 else "not an unencrypted private key")
        self.refused("certificate", f'"{self.pki}/c.crt"', 'not of node "a"', 'expected a DNS subject alternative name "a"', key=f'"{self.pki}/c.key"')
        self.refused("certificate", f'"{folder}/other/a.crt"', "CA file", key=f'"{folder}/other/a.key"')
        self.refused("authority", '"/nonexistent/ca.crt"', "CA file /nonexistent/ca.crt: No such file")
        self.refused("revocation_list", '"/nonexistent/ca.crl"', "revocation file /nonexistent/ca.crl: No such file")

    def test_a_key_that_commd_may_not_read(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be another user")
        path = self.cluster.config_path("a")
        path.write_text("\n".join(self.lines()) + "\n")
        self.cluster.folder.chmod(0o755)
        result = run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", COMMD, "--check-config", "--config", path, check=False)
        self.assertEqual(result.returncode, 78)
        self.assertRegex(result.stderr, rf"\.conf:4: key: key file {self.pki}/a.key: uid 65534 may not read it: it belongs to uid 0 \(mode 0600\)")

    def test_addresses(self):
        self.refused("nodes", '( { name = "a"; address = "300.1.1.1:7400"; } )', 'address = "300.1.1.1:7400"', "the host an IP address or a name")
        self.refused("nodes", '( { name = "a"; address = "[::g]:7400"; } )', 'address = "[::g]:7400"', "the host an IP address or a name")
        self.refused("nodes", '( { name = "a"; address = "127.0.0.1:0"; } )', "the port from 1 to 65535")
        self.refused("nodes", '( { name = "a"; address = "127.0.0.1:7400"; }, { name = "b"; address = "127.0.0.1:7400"; } )', 'node "a" at', "has it already")
        self.refused("nodes", '( { name = "a"; address = "127.0.0.1:7400"; }, { name = "a"; address = "127.0.0.1:7500"; } )', '"a" is listed twice')
        self.refused("nodes", '( { name = "a"; address = "127.0.0.1:7400"; }, { name = "b"; address = "192.0.2.1:65535"; } )', "2 rails", "65536", rails=2)
        self.refused("nodes", '( { name = "a"; address = "192.0.2.1:7400"; }, { name = "b"; address = "192.0.2.1:7401"; } )', '"a" and "b"', "2 apart", rails=2)
        self.refused("listen", '"127.0.0.1:65534"', "3 rails need ports up to 65536", rails=3)
        # A name server may answer later, so the start asks again.
        self.refused("listen", '"no-such-host.invalid:7400"', "an address of this node", code=-signal.SIGTERM)

    def test_other_settings(self):
        self.refused("socket_path", f'"/run/{"x" * 120}"', "at most 107 bytes")
        self.refused("admin_socket_path", f'"/run/{"x" * 120}"', "at most 107 bytes")
        self.refused("socket_group", '"no-such-group"', "group on this node")
        self.refused("admin_group", '"no-such-group"', "group on this node")
        self.refused("datagram_bytes", "1000", "expected 0, or 1200 to 65000")
        self.refused("cluster_name", f'"{"x" * 256}"', "256 bytes; expected at most 255")
        self.refused("algorithms", '"all_reduce=magic"', "magic")
        self.refused("certificate", '"/etc/%h.crt"', "expected %n (the node's name) or %%")

    def test_a_node_that_is_not_listed(self):
        check, start_code, said = self.both(node_name='"z"')
        self.assertEqual((check.returncode, start_code), (78, 78))
        self.assertIn('this node, "z", is not among them', check.stderr)
        self.assertIn(check.stderr.strip().removeprefix("commd: "), said)


class Reload(FailureCase):
    def write(self, cluster, more="", names="ab"):
        cluster.names = list(names)
        cluster.write_config("a")
        cluster.config_path("a").write_text(cluster.config_path("a").read_text() + more)

    def test_what_it_says_and_what_is_in_force(self):
        with Cluster("ab") as cluster:
            self.assertEqual(cluster.commctl("a", "reload").returncode, 0)
            self.write(cluster, 'log_level = "debug";\nslice_bytes = 65536;\nuser_limit_sessions = 50;\n')
            done = cluster.commctl("a", "reload")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for text in ("applied: log_level = debug\n", "applied: user_limit_sessions = 50\n", "waits for a restart: slice_bytes = 65536\n"):
                self.assertIn(text, done.stdout)
            shown = settings(cluster, "a")
            self.assertEqual((shown["log_level"]["value"], shown["log_level"]["waiting_value"]), ("debug", ""))
            self.assertEqual((shown["slice_bytes"]["value"], shown["slice_bytes"]["source"], shown["slice_bytes"]["waiting_value"]), ("1048576", "default", "65536"))
            self.assertRegex(cluster.commctl("a", "config", "show").stdout, r"slice_bytes = 65536 \(.*a\.conf:\d+\) waits for a restart")
            self.assertIn("1 settings wait for a restart", cluster.commctl("a", "status").stdout)
            self.write(cluster)
            answer = cluster.json("a", "reload")
            self.assertIn("log_level = info", answer["applied"])
            self.assertEqual(answer["waiting"], [])
            self.assertEqual(settings(cluster, "a")["slice_bytes"]["waiting_value"], "")
            self.assertNotIn("restart", cluster.commctl("a", "status").stdout)

    def test_a_named_pipe(self):
        """Nobody writes to it, and commd does not wait for that."""
        with Cluster("ab") as cluster:
            config = cluster.config_path("a")
            text = config.read_text()
            for setting in (None, "certificate", "key", "authority", "revocation_list"):
                pipe = cluster.folder / "pipe"
                if setting is None:
                    config.unlink()
                    pipe = config
                else:
                    config.write_text(re.sub(rf"\n{setting} = [^;]*;", "", text) + f'\n{setting} = "{pipe}";\n')
                os.mkfifo(pipe)
                done = cluster.commctl("a", "reload")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("expected a regular file", done.stderr)
                self.assertIn(setting or str(config), done.stderr)
                os.unlink(pipe)
                self.assertEqual(cluster.json("a", "status")["nodes_up"], 1)
            config.write_text(text)
            self.assertEqual(cluster.commctl("a", "reload").returncode, 0)

    def test_a_file_with_a_fault(self):
        with Cluster("ab") as cluster:
            before = settings(cluster, "a")
            for more, text in (("heart_beat = 3;\n", r"a\.conf:\d+: heart_beat: unknown key"), ('log_level = "loud";\n', r'a\.conf:\d+: log_level = "loud": expected error'),
                               ('revocation_list = "/nonexistent.crl";\n', r"a\.conf:\d+: revocation_list: revocation file /nonexistent\.crl: No such file")):
                self.write(cluster, more)
                for _ in range(2):
                    failed = cluster.commctl("a", "reload")
                    self.assertEqual((failed.returncode, failed.stdout), (1, ""))
                    self.assertRegex(failed.stderr, text)
                cluster.wait_logged("a", text, is_pattern=True)
            self.assertEqual(settings(cluster, "a"), before)
            self.assertEqual(cluster.commctl("a", "status").returncode, 0)

    def test_nodes(self):
        with Cluster("abc") as cluster:
            self.write(cluster, names="ac")
            self.assertIn("applied: node b: removed\n", cluster.commctl("a", "reload").stdout)
            self.assertNotIn("nodes.b", settings(cluster, "a"))
            self.write(cluster, names="abc")
            self.assertIn(f"applied: node b: added at {cluster.addresses['b']}\n", cluster.commctl("a", "reload").stdout)
            cluster.wait_ready()
            old, cluster.addresses["b"] = cluster.addresses["b"], "192.0.2.9:7400"
            self.write(cluster, names="abc")
            self.assertIn(f"applied: node b: moved from {old} to 192.0.2.9:7400\n", cluster.commctl("a", "reload").stdout)
            self.assertEqual(node_row(cluster, "a", "b")["address"], "192.0.2.9:7400")
            cluster.addresses["a"] = "192.0.2.8:7400"  # its own address: that of the socket, which is bound
            self.write(cluster, names="abc")
            self.assertIn("waits for a restart: listen = 192.0.2.8:7400\n", cluster.commctl("a", "reload").stdout)
            self.assertNotEqual(settings(cluster, "a")["listen"]["value"], "192.0.2.8:7400")

    def test_ports_of_the_rails_in_force(self):
        with Cluster("a", "rails = 2;", namespaces=False) as cluster:
            cluster.settings = "rails = 1;"
            cluster.addresses["b"] = "192.0.2.9:65535"
            self.write(cluster, names="ab")
            self.assertIn("fine", run(COMMD, "--check-config", "--config", cluster.config_path("a")).stdout)
            failed = cluster.commctl("a", "reload")
            self.assertEqual(failed.returncode, 1)
            self.assertRegex(failed.stderr, r'a\.conf:\d+: nodes: address = "192\.0\.2\.9:65535": its 2 rails need ports up to 65536')
            self.assertNotIn("nodes.b", settings(cluster, "a"))

    def test_many_nodes_are_all_shown(self):
        with Cluster("a", namespaces=False) as cluster:
            for i in range(300):
                cluster.addresses[f"n{i}"] = f"192.0.2.1:{10000 + 20 * i}"
            self.write(cluster, names=["a", *(f"n{i}" for i in range(300))])
            done = cluster.commctl("a", "reload")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"and \d+ more changes")
            self.assertEqual(cluster.json("a", "status")["nodes_configured"], 300)
            shown = cluster.json("a", "config", "show")
            self.assertEqual([row["key"] for row in shown["settings"] if row["key"].startswith("nodes.n")], [f"nodes.n{i}" for i in range(300)])
            self.assertNotIn("more nodes and users", cluster.commctl("a", "config", "show").stdout)

    def test_only_administrators(self):
        with Cluster("a", namespaces=False) as cluster:
            for verb in (["reload"], ["log-level", "debug"]):
                refused = cluster.commctl("a", "--admin-socket", "/nonexistent/socket", *verb)
                self.assertEqual(refused.returncode, 1)
                self.assertIn("only administrators", refused.stderr)
            self.assertNotIn("reload", cluster.log("a"))

    def test_log_level(self):
        with Cluster("a", namespaces=False) as cluster:
            self.assertEqual(cluster.commctl("a", "log-level", "debug").returncode, 0)
            row = settings(cluster, "a")["log_level"]
            self.assertEqual((row["value"], row["source"]), ("debug", "commctl"))
            bad = cluster.commctl("a", "log-level", "loud")
            self.assertEqual(bad.returncode, 1)
            self.assertIn('log_level = "loud": expected error, warning, info or debug', bad.stderr)
            self.assertEqual(cluster.commctl("a", "log-level").returncode, 2)
            self.assertEqual(cluster.commctl("a", "reload").returncode, 0)
            self.assertEqual(settings(cluster, "a")["log_level"]["value"], "info")

    def test_by_signal(self):
        with Cluster("a", namespaces=False) as cluster:
            self.write(cluster, "slice_bytes = 65536;\nunknown = 3;\n", names="a")
            cluster.daemons["a"].send_signal(signal.SIGHUP)
            cluster.wait(lambda: "stay as they were" in cluster.log("a"), "refused")
            self.write(cluster, "slice_bytes = 65536;\n", names="a")
            cluster.daemons["a"].send_signal(signal.SIGHUP)
            cluster.wait(lambda: "reload: done" in cluster.log("a"), "reloaded")
            cluster.wait_logged("a", "reload: waits for a restart: slice_bytes = 65536")


class OneFile(FailureCase):
    def test_the_same_file_on_every_node(self):
        with Cluster("ab", start=False) as cluster:
            nodes = ", ".join(f'{{ name = "{name}"; address = "{cluster.addresses[name]}"; }}' for name in "ab")
            text = (f'nodes = ( {nodes} );\ncertificate = "{cluster.folder}/pki/%n.crt";\nkey = "{cluster.folder}/pki/%n.key";\n'
                    f'authority = "{cluster.folder}/pki/ca.crt";\nsocket_path = "{cluster.folder}/%n.sock";\n')
            for name in "ab":
                cluster.config_path(name).write_text(text)
                cluster.start(name, "--node", name)
            cluster.wait_ready()
            self.assertEqual(settings(cluster, "b")["certificate"]["value"], f"{cluster.folder}/pki/b.crt")
            for process in self.ranks(cluster, "ab", "same", "once"):
                self.expect(process, "OK", within_s=20)


HOSTS = 'mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/resolv.conf" /etc/resolv.conf && exec "$@"'


def own_files_work():
    """Returns whether a process may have its own /etc/hosts."""
    return os.geteuid() == 0 and run("unshare", "-m", "mount", "--bind", "/etc/hosts", "/etc/hosts", check=False).returncode == 0


class Names(FailureCase):
    def cluster(self, **options):
        """Nodes whose addresses have names. The test's own /etc/hosts resolves them."""
        cluster = Cluster("ab", "reconnect_max_ms = 500;", start=False, **options)
        self.addCleanup(cluster.close)
        cluster.daemon_command = ["unshare", "-m", "sh", "-c", HOSTS, cluster.folder]
        cluster.numbers = {name: address.rsplit(":", 1) for name, address in cluster.addresses.items()}
        (cluster.folder / "resolv.conf").write_text("nameserver 127.0.0.99\noptions timeout:1 attempts:1\n")
        self.say(cluster, {})
        return cluster

    def say(self, cluster, names):
        (cluster.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in names.items()))

    def named(self, cluster, name, others):
        """Writes a configuration in which these others have names."""
        addresses = dict(cluster.addresses)
        for other in others:
            cluster.addresses[other] = f"{other}.example:{cluster.numbers[other][1]}"
        cluster.write_config(name)
        cluster.addresses = addresses

    def test_a_peer_whose_name_is_not_known(self):
        """A name that does not resolve stops no node, neither the side that dials nor the other. Existing connections stay up."""
        if not own_files_work():
            self.skipTest("needs root, to have its own /etc/hosts")
        cluster = self.cluster(namespaces=False)
        self.named(cluster, "a", "b")  # node a dials
        self.named(cluster, "b", "a")
        for name, other in (("a", "b"), ("b", "a")):
            cluster.start(name)
            cluster.wait(lambda name=name, other=other: cluster.commctl(name, "nodes").returncode == 5 and node_row(cluster, name, other)["state"] == "unresolved",
                         "unresolved")
            cluster.wait(lambda name=name, other=other: f"{other}.example" in node_row(cluster, name, other)["last_error"], "the resolver's reason")
            self.assertIn("unresolved", cluster.commctl(name, "status").stdout)
        time.sleep(2)
        self.assertEqual(len(re.findall("node b is unresolved", cluster.log("a"))), 1, "said once")
        self.say(cluster, {"b.example": "127.0.0.1"})
        cluster.wait_ready()
        row = node_row(cluster, "a", "b")
        self.assertEqual((row["address"], row["resolved_address"]), (f"b.example:{cluster.numbers['b'][1]}", cluster.addresses["b"]))
        self.assertEqual(node_row(cluster, "b", "a")["state"], "up", "the name of a is still not known there")
        for process in self.ranks(cluster, "ab", "named", "once"):
            self.expect(process, "OK", within_s=20)

    def test_a_name_that_gets_another_address(self):
        if not (own_files_work() and namespaces_work()):
            self.skipTest("needs root, to have its own /etc/hosts and addresses")
        cluster = self.cluster()
        self.named(cluster, "a", "b")
        self.say(cluster, {"b.example": "10.97.0.2"})
        cluster.write_config("b")
        cluster.start("a")
        cluster.start("b")
        cluster.wait_ready()
        cluster.daemons["b"].kill()
        cluster.daemons["b"].wait()
        run("ip", "-n", cluster.namespaces["b"], "addr", "del", "10.97.0.2/24", "dev", "veth0")
        run("ip", "-n", cluster.namespaces["b"], "addr", "add", "10.97.0.22/24", "dev", "veth0")
        cluster.addresses["b"] = "10.97.0.22:7400"
        cluster.write_config("b")
        cluster.start("b")
        cluster.wait(lambda: node_row(cluster, "a", "b")["state"] != "up", "b is down")
        self.say(cluster, {"b.example": "10.97.0.22"})
        cluster.wait_ready()
        self.assertEqual(node_row(cluster, "a", "b")["resolved_address"], "10.97.0.22:7400")
        cluster.wait_logged("a", "node b: b.example:7400 is 10.97.0.22:7400 now")
        for process in self.ranks(cluster, "ab", "moved", "once"):
            self.expect(process, "OK", within_s=20)

    def test_a_name_server_that_is_silent(self):
        """The lookup waits on another thread. Meanwhile commd serves its clients and its connected peers."""
        if not (own_files_work() and namespaces_work()):
            self.skipTest("needs root, to have its own /etc/resolv.conf")
        cluster = self.cluster()
        nowhere = ", ".join(f'{{ name = "x{i}"; address = "x{i}.example:7400"; }}' for i in range(20))
        (cluster.folder / "resolv.conf").write_text("nameserver 10.97.0.1\noptions timeout:5 attempts:3\n")
        run("ip", "netns", "exec", cluster.namespaces["a"], "ip", "link", "set", "lo", "up")
        for name in "ab":
            text = cluster.config_path(name).read_text()
            cluster.config_path(name).write_text(text.replace("nodes = ( ", f"nodes = ( {nowhere}, "))
        quiet = subprocess.Popen(cluster.in_node("a", "python3", "-c", "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.97.0.1', 53)); print('here', flush=True); time.sleep(600)"),
                                 stdout=subprocess.PIPE)
        self.addCleanup(quiet.wait)
        self.addCleanup(quiet.kill)
        self.addCleanup(quiet.stdout.close)
        quiet.stdout.readline()
        began = time.monotonic()
        for name in "ab":
            cluster.start(name)
        cluster.wait(lambda: all(cluster.commctl(name, "nodes").returncode in (0, 5) for name in "ab"), "both answer", timeout_s=5)
        for process in self.ranks(cluster, "ab", "quick", "once"):
            self.expect(process, "OK", within_s=5)
        self.assertLess(time.monotonic() - began, 8)
        self.assertEqual(node_row(cluster, "a", "b")["state"], "up")
        self.assertIn(node_row(cluster, "a", "x7")["state"], ("unresolved", "unknown"))
        cluster.daemons["a"].terminate()
        self.assertEqual(cluster.daemons["a"].wait(timeout=5), 0, "an end waits for no name server")


class Differences(FailureCase):
    def differ(self, setting, text):
        with Cluster("ab", start=False) as cluster:
            cluster.config_path("b").write_text(cluster.config_path("b").read_text() + setting + "\n")
            for name in "ab":
                cluster.start(name)
            for name, other in ("ab", "ba"):
                cluster.wait(lambda name=name, other=other: cluster.commctl(name, "nodes").returncode == 5 and node_row(cluster, name, other)["state"] == "up", "up")
                cluster.wait(lambda name=name, other=other: f"node {other}: {text[name]}: no communicator forms" in cluster.log(name), "the log says so")
                self.assertIn(f"node {other}: {text[name]}", cluster.commctl(name, "nodes").stdout)
                self.assertEqual(node_row(cluster, name, other)["settings_differ"], text[name])
                self.assertIn("1 with other settings", cluster.commctl(name, "status").stdout)
            for order in ((0, 1), (1, 0)):
                began = time.monotonic()
                first = cluster.rank("ab"[order[0]], "differs", order[0], 2, "once", "timeout_ms=30000")
                time.sleep(0.5)
                second = cluster.rank("ab"[order[1]], "differs", order[1], 2, "once", "timeout_ms=30000")
                for process in (first, second):
                    self.expect(process, "MISMATCH", setting.split()[0], "commd.conf of the two nodes differs", within_s=10)
                self.assertLess(time.monotonic() - began, 10, "neither waits")

    def test_slice_bytes(self):
        self.differ("slice_bytes = 65536;", {"a": "slice_bytes is 65536 there, 1048576 here", "b": "slice_bytes is 1048576 there, 65536 here"})

    def test_algorithms(self):
        self.differ('algorithms = "all_reduce=ring";', {"a": 'algorithms is "all_reduce=ring" there, "" here', "b": 'algorithms is "" there, "all_reduce=ring" here'})


if __name__ == "__main__":
    unittest.main()
