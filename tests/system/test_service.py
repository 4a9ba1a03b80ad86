"""Runs commd as a service on a booted machine, exactly as systemd/README.md describes it."""
import shutil
import time
import unittest

from cluster import BUILD, ROOT
from machine import Machine, NoBoot, unavailable

WAITS = True

GROUP_ID = 3000
SOCKET = "/run/commd/commd.sock"
ADMIN = "/run/commd-admin/admin.sock"


def install(machine):
    """Copies to the machine what `make install` copies. The unit file comes from the build, with the folders for which it was built."""
    unit = (ROOT / "systemd/commd.service.in").read_text()
    for folder, path in (("BINDIR", "/usr/local/bin"), ("SBINDIR", "/usr/local/sbin"), ("SYSCONFDIR", "/etc")):
        unit = unit.replace(f"@{folder}@", path)
    for source, target in ((BUILD / "commd", "sbin/commd"), (BUILD / "commctl", "bin/commctl"), (BUILD / "libcommclient.so", "lib/libcommclient.so.0"),
                           (ROOT / "systemd/commd.socket", "lib/systemd/system/commd.socket"), (ROOT / "systemd/commd.sysusers", "lib/sysusers.d/commd.conf"),
                           (ROOT / "systemd/commd.tmpfiles", "lib/tmpfiles.d/commd.conf"), (ROOT / "systemd/activate.sh", "activate.sh"),
                           (BUILD / "tests/system/surface", "bin/surface")):
        (machine.local / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, machine.local / target)
    (machine.local / "lib/systemd/system/commd.service").write_text(unit)
    machine.path("/etc/commd").mkdir()
    shutil.copy(ROOT / "config/commd.conf", machine.path("/etc/commd/commd.conf"))
    machine.run("/usr/local/activate.sh", "/usr/local/lib/sysusers.d", "/usr/local/lib/tmpfiles.d")


@unittest.skipIf(unavailable(), f"no machine can be booted: {unavailable()}")
class Service(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.machine = Machine()
        except NoBoot as reason:
            raise unittest.SkipTest(f"no machine boots here: {str(reason)[-200:]}") from None
        try:
            install(cls.machine)
        except BaseException:
            cls.machine.close()
            raise
        cls.shipped = cls.machine.path("/etc/commd/commd.conf").read_text()

    @classmethod
    def tearDownClass(cls):
        cls.machine.close()

    def tearDown(self):
        self.systemctl("stop", "commd-admin.socket", "commd.socket", "commd", check=False)
        for drop_in in ("commd.service.d", "commd.socket.d", "commd-admin.socket"):
            path = self.machine.path(f"/etc/systemd/system/{drop_in}")
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed")
        self.configure(self.shipped)

    def systemctl(self, *arguments, **options):
        return self.machine.run("systemctl", "--no-pager", *arguments, **options)

    def show(self, name):
        return self.systemctl("show", "-P", name, "commd").stdout.strip()

    def commctl(self, *arguments, **options):
        return self.machine.run("commctl", *arguments, check=False, **options)

    def configure(self, text):
        self.machine.path("/etc/commd/commd.conf").write_text(text)

    def drop_in(self, unit, text):
        path = self.machine.path(f"/etc/systemd/system/{unit}.d/test.conf")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.systemctl("daemon-reload")

    def journal(self):
        self.machine.run("journalctl", "--sync")  # otherwise the last lines may not be there yet
        return self.machine.run("journalctl", "-u", "commd", "--no-pager", "-n", "30", "-o", "cat").stdout

    def owner(self, path):
        return self.machine.run("stat", "-c", "%U:%G %a", path).stdout.strip()

    def test_one_machine_without_configuration(self):
        self.systemctl("enable", "--now", "commd")
        self.assertEqual((self.show("ActiveState"), self.show("Result"), self.show("StatusText")), ("active", "success", "Node solo"))
        self.assertEqual(self.systemctl("is-active", "commd.socket").stdout.strip(), "active")
        self.assertEqual((self.owner(SOCKET), self.owner(ADMIN)), ("commd:commd 666", "commd:commd 600"))
        self.assertIn("solo (standalone)", self.commctl(user="alice").stdout)
        self.assertIn("standalone", self.commctl("status").stdout)
        self.assertEqual([self.machine.run("surface", "alone", "0", "1", "1", user=user, check=False).returncode for user in ("alice", "bob")], [0, 0])
        rows = {user: self.commctl("users", user=user).stdout for user in ("alice", None)}
        self.assertIn("alice", rows["alice"])
        self.assertNotIn("bob", rows["alice"])
        self.assertIn("administration", rows[None])
        self.assertEqual((self.show("OOMScoreAdjust"), self.show("LimitMEMLOCK"), self.show("MemoryMax")), ("-500", "infinity", "infinity"))

    def test_an_installation_is_stopped_and_forgotten(self):
        """Does what `make uninstall` does before and after it removes the files."""
        self.systemctl("enable", "--now", "commd")
        self.machine.run("/usr/local/activate.sh", "--stop")
        states = [self.systemctl(question, unit, check=False).stdout.strip() for question in ("is-active", "is-enabled") for unit in ("commd", "commd.socket")]
        self.assertEqual(states, ["inactive"] * 2 + ["disabled"] * 2)
        self.assertFalse(self.machine.path("/run/commd").exists())
        self.machine.run("/usr/local/activate.sh", "--forget")
        self.machine.run("/usr/local/activate.sh", "/usr/local/lib/sysusers.d", "/usr/local/lib/tmpfiles.d")
        self.assertEqual(self.owner("/run/commd"), "commd:commd 755")

    def test_stop_and_the_next_client_starts_it(self):
        self.systemctl("start", "commd")
        self.systemctl("stop", "commd")
        self.assertEqual(self.show("ActiveState"), "inactive")
        self.assertTrue(self.machine.path(SOCKET).is_socket(), "systemd keeps it")
        self.assertEqual(self.commctl(user="alice").returncode, 0)
        self.assertEqual(self.show("ActiveState"), "active")
        self.systemctl("restart", "commd")
        self.assertEqual(self.commctl(user="alice").returncode, 0)

    def test_reload_reports_a_fault(self):
        self.systemctl("start", "commd")
        self.systemctl("reload", "commd")
        self.configure(self.shipped + 'heart_beat = 3;\n')
        self.assertNotEqual(self.systemctl("reload", "commd", check=False).returncode, 0)
        self.assertRegex(self.journal(), r"commd\.conf:\d+: heart_beat: unknown key")
        self.assertEqual((self.show("ActiveState"), self.commctl(user="alice").returncode), ("active", 0))

    def test_a_reload_says_what_waits(self):
        self.systemctl("start", "commd")
        self.configure(self.shipped + 'slice_bytes = 65536;\nlog_level = "debug";\n')
        self.systemctl("reload", "commd")
        self.assertIn("waits for a restart: slice_bytes = 65536", self.journal())
        self.assertRegex(self.commctl("config", "show").stdout, r"slice_bytes +1048576 +default")
        self.assertEqual(self.commctl("log-level", "info", user="alice").returncode, 1)
        self.assertEqual(self.commctl("log-level", "info").returncode, 0)

    def test_a_fault_is_not_tried_for_ever(self):
        """systemd does not try for ever, not even while clients come: the socket gives up, too."""
        self.systemctl("start", "commd.socket")
        self.configure(self.shipped + 'heart_beat = 3;\n')
        deadline = time.monotonic() + 60
        while self.systemctl("show", "-P", "ActiveState", "commd.socket").stdout.strip() != "failed":
            self.assertLess(time.monotonic(), deadline, self.journal())
            self.assertNotEqual(self.commctl("-t", "0.5", user="alice").returncode, 0)
        self.assertEqual((self.show("ActiveState"), self.show("ExecMainStatus")), ("failed", "78"))
        starts = self.machine.run("journalctl", "-u", "commd", "--no-pager", "-o", "cat").stdout.count("heart_beat: unknown key")
        self.assertLess(starts, 100)

    def test_an_own_name_that_is_known_later(self):
        pki = "/etc/commd/pki"
        self.commctl("pki", "init", "--dir", "/root/names")
        self.commctl("pki", "issue", "beta", "--dir", "/root/names")
        self.machine.run("sh", "-c", f"mkdir -p {pki} && cp /root/names/beta.crt /root/names/beta.key /root/names/ca.crt /root/names/ca.crl {pki} && chown commd {pki}/beta.key")
        hosts = self.machine.path("/etc/hosts")
        before = hosts.read_text() if hosts.exists() else ""
        self.configure('node_name = "beta";\nnodes = ( { name = "beta"; address = "beta.cluster:7400"; } );\n')
        self.systemctl("start", "--no-block", "commd")
        deadline = time.monotonic() + 30
        while 'listen: address "beta.cluster:7400"' not in self.journal():
            self.assertLess(time.monotonic(), deadline, self.journal())
            time.sleep(0.2)
        time.sleep(2)
        try:
            hosts.write_text(before + "127.0.0.1 beta.cluster\n")
            deadline = time.monotonic() + 30
            while self.show("ActiveState") != "active":
                self.assertLess(time.monotonic(), deadline, self.journal())
                time.sleep(0.2)
            self.assertRegex(self.commctl("nodes").stdout, r"beta +up ")
        finally:
            hosts.write_text(before)
            self.machine.run("rm", "-r", pki)

    def test_a_reload_does_not_join_a_cluster(self):
        self.systemctl("start", "commd")
        self.configure('node_name = "solo";\nnodes = ( { name = "solo"; address = "127.0.0.1:7400"; } );\n')
        self.systemctl("kill", "--kill-who=main", "-s", "HUP", "commd")
        deadline = time.monotonic() + 30
        while "a standalone node joins a cluster only with a restart" not in self.journal():
            self.assertLess(time.monotonic(), deadline, self.journal())
            time.sleep(0.1)
        self.assertIn("standalone", self.commctl(user="alice").stdout)

    def test_death_restarts_it(self):
        self.systemctl("start", "commd")
        before = self.show("MainPID")
        self.machine.run("kill", "-9", before)
        deadline = time.monotonic() + 30
        while self.show("MainPID") in ("0", before):
            self.assertLess(time.monotonic(), deadline, self.journal())
            time.sleep(0.1)
        self.assertEqual(self.commctl(user="alice").returncode, 0)

    def test_clients_are_told_of_a_restart(self):
        """commd asks systemd, by D-Bus, whether it will be started again."""
        if self.systemctl("is-active", "dbus.socket", check=False).stdout.strip() != "active":
            self.skipTest("no D-Bus in this machine")
        for verb, says in (("restart", "restarting"), ("stop", "stopping")):
            self.systemctl("start", "commd")
            self.machine.run("sh", "-c", "surface alone 0 1 1000000 >/dev/null 2>/tmp/told & until commctl -f json status | grep -q '\"comms_formed\": 1'; do sleep 0.05; done",
                             user="alice")
            self.systemctl(verb, "commd")
            told = self.machine.path("/tmp/told")
            deadline = time.monotonic() + 10
            while "node solo: commd is" not in told.read_text():  # to a call of comm_split, or at the end
                self.assertLess(time.monotonic(), deadline, told.read_text() + self.journal())
                time.sleep(0.1)
            self.assertRegex(told.read_text(), f"node solo: commd is {says}")

    def with_groups(self):
        groups = self.machine.path("/etc/group")
        if "mlusers" not in groups.read_text():
            groups.write_text(groups.read_text() + f"mlusers:x:{GROUP_ID}:\n")
        self.configure(self.shipped + '\nsocket_mode = "0660";\nsocket_group = "mlusers";\nadmin_group = "mlusers";\n')

    def test_groups_hold(self):
        self.with_groups()
        self.drop_in("commd.service", "[Service]\nSupplementaryGroups=mlusers\n")
        self.systemctl("start", "commd")
        self.assertEqual((self.owner(SOCKET), self.owner(ADMIN)), ("commd:mlusers 660", "commd:mlusers 660"))
        self.assertIn("Permission denied", self.commctl(user="alice").stderr)
        self.assertIn("administration", self.commctl("users", user="bob", groups=[GROUP_ID]).stdout)

    def test_groups_that_cannot_hold_fail_the_start(self):
        self.with_groups()
        self.systemctl("start", "commd", check=False)
        self.assertNotEqual(self.show("ActiveState"), "active")
        self.assertRegex(self.journal(), "socket_group says \"mlusers\".*SocketGroup=mlusers, or commd's SupplementaryGroups=mlusers")
        self.systemctl("stop", "commd.socket", "commd")
        self.drop_in("commd.socket", "[Socket]\nSocketGroup=mlusers\nSocketMode=0660\n")
        self.systemctl("start", "commd", check=False)
        self.assertRegex(self.journal(), r"chown to group mlusers \(admin_group\).*member.*SupplementaryGroups=")

    def test_administration_by_activation(self):
        self.machine.path("/etc/systemd/system/commd-admin.socket").write_text(
            f"[Socket]\nListenSequentialPacket={ADMIN}\nFileDescriptorName=admin\nSocketUser=commd\nSocketMode=0600\nService=commd.service\n")
        self.systemctl("daemon-reload")
        self.systemctl("start", "commd-admin.socket", "commd.socket")
        for _ in range(2):
            self.assertIn("administration", self.commctl("users").stdout, self.journal())
            self.assertEqual(self.show("ActiveState"), "active")
            self.systemctl("stop", "commd")
            self.assertTrue(self.machine.path(ADMIN).is_socket(), "systemd keeps it")

    def test_a_node_that_joins(self):
        """After two commands, commd can read the files that it needs, and the node is up."""
        pki, code = "/etc/commd/pki", "agreed in advance by both sides"
        self.machine.run("rm", "-rf", pki)  # of another authority's node
        self.machine.run("sh", "-c", "umask 077; commctl pki init --dir /root/joined && {"
                         f" timeout 60 commctl pki admit --dir /root/joined --once --yes-code '{code}' </dev/null &"
                         f" for turn in $(seq 100); do commctl pki join 127.0.0.1 alpha --code '{code}' && break; sleep 0.1; done; wait $!; }}")
        for name, owner in (("alpha.key", "commd:commd 600"), ("alpha.crt", "root:root 644"), ("ca.crt", "root:root 644"), ("ca.crl", "root:root 644")):
            self.assertEqual(self.owner(f"{pki}/{name}"), owner, name)
        self.configure('node_name = "alpha";\ncluster_name = "lab";\nnodes = ( { name = "alpha"; address = "127.0.0.1:7400"; } );\n'
                       f'certificate = "{pki}/alpha.crt";\nkey = "{pki}/alpha.key";\nauthority = "{pki}/ca.crt";\nrevocation_list = "{pki}/ca.crl";\n')
        self.systemctl("start", "commd")
        self.assertRegex(self.commctl("nodes").stdout, r"alpha +up ")
        self.systemctl("stop", "commd.socket", "commd")
        self.machine.run("rm", "-r", pki, "/root/joined")

    def test_a_cluster_with_the_key_of_root(self):
        pki = "/etc/commd/pki"
        self.commctl("pki", "init", "--dir", "/root/pki")
        self.commctl("pki", "request", "alpha", "--dir", pki)
        self.assertEqual(self.owner(f"{pki}/alpha.key"), "commd:commd 600")
        self.machine.run("chown", "root", f"{pki}/alpha.key")  # as somebody may have made it
        self.commctl("pki", "issue", "alpha", "--request", f"{pki}/alpha.csr", "--dir", "/root/pki")
        self.machine.run("cp", "/root/pki/alpha.crt", "/root/pki/ca.crt", "/root/pki/ca.crl", pki)
        settings = ('node_name = "alpha";\ncluster_name = "lab";\nnodes = ( { name = "alpha"; address = "127.0.0.1:7400"; } );\n')  # no path: the node's files are found by its name
        self.configure(settings)
        self.systemctl("start", "commd", check=False)
        self.assertRegex(self.journal(), f"key: key file {pki}/alpha.key: uid \\d+ may not read it: it belongs to uid 0")
        self.systemctl("stop", "commd.socket", "commd")
        self.machine.run("chown", "commd", f"{pki}/alpha.key")
        self.systemctl("start", "commd")
        self.assertRegex(self.commctl("nodes").stdout, r"alpha +up ")
        self.assertRegex(self.commctl("config", "show").stdout, f"revocation_list +{pki}/ca.crl +default")
        self.systemctl("stop", "commd.socket", "commd")
        self.machine.run("chown", "root", f"{pki}/alpha.key")
        self.configure(settings + 'key = "$CREDENTIALS_DIRECTORY/node.key";\n')
        self.drop_in("commd.service", f"[Service]\nLoadCredential=node.key:{pki}/alpha.key\nMemoryMax=4G\n")
        self.systemctl("start", "commd")
        self.assertRegex(self.commctl("nodes").stdout, r"alpha +up ")
        self.assertEqual(self.show("MemoryMax"), str(4 << 30))
        self.commctl("pki", "renew", "alpha", "--dir", "/root/pki")
        self.machine.run("cp", "/root/pki/alpha.crt", pki)
        self.systemctl("reload", "commd")
        self.assertIn("reload: done", self.journal())


if __name__ == "__main__":
    unittest.main()
