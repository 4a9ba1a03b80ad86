#!/usr/bin/env python3
"""Who may see and do what: users on the clients' socket, administrators on their socket, and sockets that commd inherits."""
import fcntl
import grp
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

from cluster import BUILD, ROOT, StandaloneTest, run

NOBODY = 65534
NOWHERE = "/nonexistent/admin.sock"
COMMD = BUILD / "commd"


def as_user(*command, groups=()):
    """Returns the command, to run as nobody."""
    kept = ["--groups", ",".join(str(group) for group in groups)] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), *kept, "--", *[str(part) for part in command]]


@unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
class Users(StandaloneTest):
    """A communicator "train" of root and another one of nobody with the same name, each with one rank that waits for the other."""

    def setUp(self):
        os.chmod(self.cluster.folder, 0o755)
        self.ranks = [self.cluster.rank("solo", "train", 0, 2, "once"),
                      self.cluster.client("solo", *as_user(sys.executable, "-B", ROOT / "tests/system/rank.py", "train", 0, 2, "once"))]
        self.cluster.wait(lambda: len(self.cluster.json("solo", "comms")["comms"]) == 2, "both communicators")

    def tearDown(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.cluster.wait(lambda: {row["program"] for row in self.cluster.json("solo", "clients")["clients"]} == {"commctl"}, "no client is left")

    def as_nobody(self, *arguments, groups=()):
        return run(*as_user(BUILD / "commctl", "--socket", self.cluster.socket("solo"), *arguments, groups=groups))

    def json_as_nobody(self, *arguments):
        return json.loads(self.as_nobody("-f", "json", *arguments).stdout)

    def test_a_user_sees_his_own(self):
        comms = self.json_as_nobody("comms")
        self.assertEqual([row["owner_uid"] for row in comms["comms"]], [NOBODY])
        self.assertEqual(comms["others"], 1)
        clients = self.json_as_nobody("clients")
        self.assertEqual({row["uid"] for row in clients["clients"]}, {NOBODY})
        self.assertEqual({row["pid"] for row in clients["clients"]} & {self.ranks[0].pid}, set())
        self.assertEqual(clients["others"], 1)
        self.assertIn("and 1 communicator of other users", self.as_nobody("comms").stdout)
        self.assertIn("and 1 client of other users", self.as_nobody("clients").stdout)
        self.assertNotIn(str(self.ranks[0].pid), self.as_nobody("clients").stdout)
        status = self.json_as_nobody("status")
        self.assertEqual((status["comms_forming"], status["clients"]), (2, 3))  # every user may see the numbers

    def test_what_users_hold(self):
        users = self.json_as_nobody("users")
        self.assertEqual({row["uid"] for row in users["users"]}, {NOBODY})
        self.assertGreaterEqual(users["others"], 1)
        self.assertEqual(sum(row["kinds"]["communicators"]["used"] for row in users["users"]), 1)
        self.assertGreaterEqual(users["users"][0]["kinds"]["sessions"]["ceiling"], 1)
        self.assertRegex(self.as_nobody("users").stdout, r"(?s)^USER +SESSIONS .*\(limit\) .*of other users")
        rows = self.cluster.json("solo", "users")["users"]
        self.assertEqual({row["uid"] for row in rows}, {0, NOBODY})
        self.assertEqual(sum(row["kinds"]["communicators"]["used"] for row in rows), 2)
        self.assertNotIn("other users", self.cluster.commctl("solo", "users").stdout)

    def test_root_on_the_clients_socket_is_a_user(self):
        comms = self.cluster.json("solo", "--admin-socket", NOWHERE, "comms")
        self.assertEqual([row["owner_uid"] for row in comms["comms"]], [0])
        self.assertEqual(comms["others"], 1)

    def test_an_administrator_sees_all(self):
        self.assertEqual(sorted(row["owner_uid"] for row in self.cluster.json("solo", "comms")["comms"]), [0, NOBODY])
        self.assertEqual({row["uid"] for row in self.cluster.json("solo", "clients")["clients"]}, {0, NOBODY})
        self.assertEqual(self.cluster.json("solo", "clients")["others"], 0)
        self.assertNotIn("other users", self.cluster.commctl("solo", "comms").stdout)

    def test_paths_of_keys(self):
        hidden = {"certificate", "key", "authority", "revocation_list"}
        for shown in (self.json_as_nobody("config", "show"), self.cluster.json("solo", "--admin-socket", NOWHERE, "config", "show")):
            self.assertEqual({row["key"] for row in shown["settings"]} & hidden, set())
            self.assertEqual(shown["hidden"], len(hidden))
        self.assertNotIn("node.key", self.as_nobody("config", "show").stdout)
        self.assertIn("and 4 more that only administrators see", self.as_nobody("config", "show").stdout)
        self.assertLessEqual(hidden, {row["key"] for row in self.cluster.json("solo", "config", "show")["settings"]})

    def test_the_administrators_socket_is_closed_to_others(self):
        path = self.cluster.socket("solo") + ".admin"
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        done = run(*as_user(BUILD / "commctl", "--socket", path, "status"), check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Permission denied", done.stderr)
        # Even if anybody may open the socket, commd checks who has connected.
        os.chmod(path, 0o666)
        try:
            done = run(*as_user(BUILD / "commctl", "--socket", path, "status"), check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"uid {NOBODY}", done.stderr)
            self.assertIn("admin_group", done.stderr)
            self.assertEqual(self.json_as_nobody("comms")["others"], 1, "and commctl goes on as a user")
        finally:
            os.chmod(path, 0o600)


@unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
class Gpus(StandaloneTest):
    gpus = 1

    def test_a_user_sees_his_own_on_gpus(self):
        os.chmod(self.cluster.folder, 0o755)
        rank = self.cluster.rank("solo", "train", 0, 1, "loop", "device=0")
        while rank.stdout.readline().strip() != "READY":
            self.assertIsNone(rank.poll())
        try:
            call = as_user(BUILD / "commctl", "--socket", self.cluster.socket("solo"))
            gpu = json.loads(run(*call, "-f", "json", "gpus").stdout)["gpus"][0]
            self.assertEqual((gpu["comms"], gpu["clients"], gpu["other_comms"], gpu["other_clients"]), ([], [], 1, 1))
            self.assertGreater(gpu["memories"], 0, "numbers are everybody's")
            text = run(*call, "gpus").stdout
            self.assertIn("and 1 client of other users", text)
            self.assertNotIn(str(rank.pid), text)
            gpu = self.cluster.json("solo", "gpus")["gpus"][0]
            self.assertEqual(([row["pid"] for row in gpu["clients"]], gpu["other_clients"]), ([rank.pid], 0))
        finally:
            rank.kill()
            rank.communicate()


@unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
class Ended(StandaloneTest):
    """Root and nobody each have a communicator "train" with two busy ranks. Each of the two users may end only some of them."""

    def setUp(self):
        os.chmod(self.cluster.folder, 0o755)
        rank_program = ROOT / "tests/system/rank.py"
        self.root = [self.cluster.rank("solo", "train", rank, 2, "loop") for rank in range(2)]
        self.nobody = [self.cluster.client("solo", *as_user(sys.executable, "-B", rank_program, "train", rank, 2, "loop")) for rank in range(2)]
        for rank in self.root + self.nobody:
            while rank.stdout.readline().strip() != "READY":
                self.assertIsNone(rank.poll())

    def tearDown(self):
        for rank in self.root + self.nobody:
            rank.kill()
            rank.communicate()
        self.cluster.wait(lambda: {row["program"] for row in self.cluster.json("solo", "clients")["clients"]} == {"commctl"}, "no client is left")

    def as_nobody(self, *arguments):
        return run(*as_user(BUILD / "commctl", "--socket", self.cluster.socket("solo"), *arguments), check=False)

    def expect(self, ranks, *texts):
        for rank in ranks:
            said = rank.communicate(timeout=10)[0]
            for text in texts:
                self.assertIn(text, said)

    def expect_at_work(self, ranks):
        posted = [row["ops_completed"] for row in self.cluster.json("solo", "comms")["comms"]]
        self.cluster.wait(lambda: [row["ops_completed"] for row in self.cluster.json("solo", "comms")["comms"]] > posted, "operations go on")
        self.assertEqual([rank.poll() for rank in ranks], [None] * len(ranks))

    def test_a_user_aborts_his_own(self):
        done = self.as_nobody("abort", "train", "--reason", "wrong data\x1b")
        self.assertEqual(done.returncode, 2, "commctl refuses control characters")
        done = self.as_nobody("abort", "train", "--reason", "wrong data")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.expect(self.nobody, "ABORTED", f'communicator "train": aborted by uid {NOBODY} on node solo: wrong data')
        self.expect_at_work(self.root)

    def test_a_user_aborts_nobody_elses(self):
        done = self.as_nobody("abort", "train", "--uid", "root")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"uid {NOBODY} may end only its own communicators", done.stderr)
        done = self.as_nobody("disconnect", self.root[0].pid)
        self.assertEqual(done.returncode, 4)
        self.assertIn(f"no client of yours has pid {self.root[0].pid}", done.stderr)
        done = self.cluster.commctl("solo", "--admin-socket", NOWHERE, "abort", "train", "--uid", NOBODY)
        self.assertEqual(done.returncode, 1, "root is a user on the clients' socket")
        self.assertEqual(self.cluster.commctl("solo", "--admin-socket", NOWHERE, "disconnect", self.nobody[0].pid).returncode, 4)
        self.expect_at_work(self.root + self.nobody)

    def test_an_administrator_aborts_any(self):
        done = self.cluster.commctl("solo", "abort", "train")
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 users have a communicator \"train\"", done.stderr)
        self.assertEqual(self.cluster.commctl("solo", "abort", "brain").returncode, 4)
        self.assertEqual(self.cluster.commctl("solo", "abort", "train", "--uid", 12345).returncode, 4)
        self.assertEqual(self.cluster.commctl("solo", "abort", "train", "--uid", NOBODY).returncode, 0)
        self.expect(self.nobody, "ABORTED", "aborted by uid 0 on node solo")
        self.expect_at_work(self.root)
        self.assertEqual(self.cluster.commctl("solo", "abort", "--reason", "night", "train").returncode, 0)
        self.expect(self.root, "ABORTED", "aborted by uid 0 on node solo: night")

    def test_an_administrator_disconnects_a_process(self):
        pid = self.nobody[1].pid  # the pid of setpriv, which has become the rank
        self.assertEqual(self.cluster.commctl("solo", "disconnect", pid, "--reason", "maintenance").returncode, 0)
        self.expect(self.nobody[1:], "ABORTED", "this process was disconnected by uid 0 on node solo: maintenance")
        self.expect(self.nobody[:1], "RANK_LOST", f"rank 1 (pid {pid}) of node solo was disconnected by uid 0 on node solo: maintenance")
        self.expect_at_work(self.root)

    def test_a_user_disconnects_his_own(self):
        self.assertEqual(self.as_nobody("disconnect", self.nobody[0].pid).returncode, 0)
        self.expect(self.nobody[:1], "ABORTED", f"disconnected by uid {NOBODY} on node solo")
        self.expect(self.nobody[1:], "RANK_LOST", f"was disconnected by uid {NOBODY}")
        self.expect_at_work(self.root)

    def test_a_process_that_stands_still_is_disconnected(self):
        self.nobody[1].send_signal(signal.SIGSTOP)
        self.assertEqual(self.cluster.commctl("solo", "disconnect", self.nobody[1].pid).returncode, 0)
        self.expect(self.nobody[:1], "RANK_LOST", "was disconnected by uid 0")
        self.nobody[1].send_signal(signal.SIGCONT)
        self.expect(self.nobody[1:], "this process was disconnected by uid 0")

    def test_wrong_arguments(self):
        for arguments in (["abort"], ["abort", "a", "b"], ["abort", "a", "--uid", "no such user"], ["disconnect"], ["disconnect", "0"],
                          ["disconnect", "x"], ["disconnect", "7", "--uid", "1"]):
            self.assertEqual(self.cluster.commctl("solo", *arguments).returncode, 2, arguments)
        self.assertEqual(self.cluster.commctl("solo", "disconnect", 2 ** 31 - 1).returncode, 4)


@unittest.skipIf(os.geteuid() != 0, "needs root, to be several users")
class Started(unittest.TestCase):
    """One commd for each test, with sockets that it makes or inherits."""

    GROUP = grp.getgrgid(1)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="commd-test-")
        os.chmod(self.folder.name, 0o755)
        self.socket = os.path.join(self.folder.name, "commd.sock")
        self.admin = self.socket + ".admin"
        self.sockets = []
        self.daemon = None

    def tearDown(self):
        for each in self.sockets:
            each.close()
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.communicate()
        self.folder.cleanup()

    def listener(self, path, mode=0o666):
        each = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sockets.append(each)
        each.bind(path)
        each.listen(8)
        if not path.startswith("\0"):
            os.chmod(path, mode)
        return each

    def start(self, *options, passed=(), names=None, prefix=()):
        """The descriptors in `passed` become 3, 4, ..., as systemd passes them."""
        high = [fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, 100) for each in passed]
        moves = "".join(f"exec {3 + i}<&{fd}; " for i, fd in enumerate(high))
        names = f"LISTEN_FDNAMES={names} " if names else ""
        # The shell becomes the daemon by exec, so its pid is the daemon's.
        call = " ".join(f'"{part}"' for part in (*prefix, COMMD, "--standalone", "--socket", self.socket, *options))
        command = f"{moves}{'LISTEN_PID=$$ ' + names + f'LISTEN_FDS={len(passed)} ' if passed else ''}exec {call}"
        self.daemon = subprocess.Popen(["bash", "-c", command], pass_fds=high, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for fd in high:
            os.close(fd)

    def wait_ready(self):
        for line in self.daemon.stderr:
            if "ready on" in line:
                return
        self.fail("commd did not start")

    def expect_refused(self, *texts):
        said = self.daemon.communicate(timeout=20)[1]
        self.assertEqual(self.daemon.returncode, 78, said)
        for text in texts:
            self.assertIn(text, said)

    def mode(self, path):
        return stat.S_IMODE(os.stat(path).st_mode)

    def test_members_of_the_group_administer(self):
        self.start("--set", f"admin_group={self.GROUP.gr_name}")
        self.wait_ready()
        self.assertEqual((self.mode(self.admin), os.stat(self.admin).st_gid), (0o660, self.GROUP.gr_gid))

        def others(groups):
            done = run(*as_user(BUILD / "commctl", "-f", "json", "--socket", self.socket, "config", "show", groups=groups))
            return json.loads(done.stdout)["hidden"]
        self.assertEqual(others(groups=[self.GROUP.gr_gid]), 0)
        self.assertEqual(others(groups=[]), 4)

    def test_a_path_of_its_own(self):
        path = os.path.join(self.folder.name, "made", "admin.sock")
        self.start("--set", f"admin_socket_path={path}")
        self.wait_ready()
        self.assertFalse(os.path.exists(self.admin))
        environment = dict(os.environ, COMMD_SOCKET=self.socket, COMMD_ADMIN_SOCKET=path)
        for arguments, extra in ((["--admin-socket", path, "--socket", self.socket], {}), ([], {"env": environment})):
            done = run(BUILD / "commctl", *arguments, "-f", "json", "config", "show", **extra)
            self.assertEqual(json.loads(done.stdout)["hidden"], 0)

    def test_mode_and_group_hold_for_a_socket_that_was_passed(self):
        self.start("--set", "socket_mode=0660", "--set", f"socket_group={self.GROUP.gr_name}", passed=[self.listener(self.socket)])
        self.wait_ready()
        self.assertEqual((self.mode(self.socket), os.stat(self.socket).st_gid), (0o660, self.GROUP.gr_gid))
        self.assertEqual(self.mode(self.admin), 0o600, "the other one is commd's own")
        done = run(*as_user(BUILD / "commctl", "--socket", self.socket, "status"), check=False)
        self.assertIn("Permission denied", done.stderr)

    def test_a_mode_that_nobody_set_stays(self):
        self.start(passed=[self.listener(self.socket, mode=0o640)])
        self.wait_ready()
        self.assertEqual(self.mode(self.socket), 0o640)

    def test_a_mode_that_cannot_be_set(self):
        os.chmod(self.folder.name, 0o777)
        self.start("--set", "socket_mode=0600", passed=[self.listener(self.socket)], prefix=as_user())
        self.expect_refused("its mode is 0666", "socket_mode says 0600", "SocketMode=0600")

    def test_a_group_that_cannot_be_set(self):
        os.chmod(self.folder.name, 0o777)
        self.start("--set", f"socket_group={self.GROUP.gr_name}", passed=[self.listener(self.socket)], prefix=as_user())
        self.expect_refused("its group is 0", f"socket_group says \"{self.GROUP.gr_name}\"", f"SocketGroup={self.GROUP.gr_name}")

    def test_a_mode_that_is_right_already(self):
        os.chmod(self.folder.name, 0o777)
        self.start("--set", "socket_mode=0606", passed=[self.listener(self.socket, mode=0o606)], prefix=as_user())
        self.wait_ready()

    def test_a_socket_without_a_file(self):
        self.start("--set", "socket_mode=0600", passed=[self.listener(f"\0commd-test-{os.getpid()}")])
        self.expect_refused("socket_mode", "has no file")

    def test_both_sockets_are_passed(self):
        self.start(passed=[self.listener(self.admin), self.listener(self.socket)], names="admin:clients")
        self.wait_ready()
        self.assertEqual(self.mode(self.admin), 0o600)
        done = run(BUILD / "commctl", "--socket", self.socket, "-f", "json", "config", "show")
        self.assertEqual(json.loads(done.stdout)["hidden"], 0)
        done = run(BUILD / "commctl", "--socket", self.socket, "--admin-socket", NOWHERE, "-f", "json", "config", "show")
        self.assertEqual(json.loads(done.stdout)["hidden"], 4)

    def test_two_sockets_for_clients(self):
        self.start(passed=[self.listener(self.admin), self.listener(self.socket)])
        self.expect_refused("2 sockets were passed", "FileDescriptorName=admin")


if __name__ == "__main__":
    unittest.main()
