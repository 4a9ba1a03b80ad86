"""A client that makes false statements about GPUs (doubles of them), and what its tests share."""
import os

import cluster
from cluster import BUILD
from gpu import UNIT, Gpu
from raw_client import HostMemory, RawClient, operation

INVALID_ARGUMENT, PERMISSION, NOT_FOUND, LIMIT, TIMED_OUT, PROTOCOL, BUSY = 2, 5, 6, 8, 10, 11, 24
F32, I64 = 1, 6
ALL_REDUCE, BROADCAST, ALL_GATHER_V, ALL_TO_ALL, SEND, RECEIVE = 0, 1, 4, 8, 11, 12
COMM, WORDS, BUFFER, OTHER = 1, 10, 20, 21  # handle, memories
ELEMENTS = 1000
HUGE = 1 << 63


class HostileGpu(cluster.StandaloneTest):
    gpus = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ.update(cls.cluster.environment("solo"))
        cls.gpu = Gpu(0)
        cls.uuid = cls.gpu.uuid()
        cls.buffer = cls.gpu.alloc(2 * UNIT)

    def setUp(self):
        self.client = RawClient(self.cluster.socket("solo"))
        self.words = HostMemory(self.client, WORDS)
        self.ticket = 0

    def tearDown(self):
        self.words.close()
        self.client.close()
        works = self.cluster.client("solo", BUILD / "tests/system/surface", self.id().rsplit(".", 1)[1], 0, 1, 1, 0)
        output, errors = works.communicate(timeout=30)
        self.assertEqual(works.returncode, 0, f"commd still works: {errors}")
        self.cluster.wait(lambda: all((gpu["memories"], gpu["error"]) == (0, "") for gpu in self.cluster.json("solo", "gpus")["gpus"]), "all memory is let go of")

    # --- What is sent ---

    def register(self, memory, size, expected=0, text="", fd=None, **fields):
        names = {"uuid": 3, "handle": 4, "virtual": 5, "address": 6, "pool": 7, "pool_of": 8}
        body = {1: memory, 2: size, 3: self.uuid}
        body.update({names[name]: value for name, value in fields.items()})
        status, said = self.client.ask(self.client.REGISTER, body, fd)
        self.assertEqual(status, expected, said)
        self.assertIn(text, said)

    def share(self, memory=BUFFER, size=2 * UNIT):
        self.register(memory, size, handle=self.gpu.ipc_handle(self.buffer))

    def map(self, memory, size, fd, expected=0, text=""):
        status, said = self.client.ask(self.client.MAP, {1: memory, 2: size}, fd)
        self.assertEqual(status, expected, said)
        self.assertIn(text, said)

    def join(self, handle=COMM, rank=0, size=1, waits=True, op_timeout_ms=5000):
        body = {1: handle, 2: f"raw-{self.id()[-60:]}", 3: rank, 4: size, 5: 0, 6: 5000, 7: op_timeout_ms, 10: self.uuid}
        if not waits:
            return self.client.tell(self.client.COMM_INIT, body)
        status, text = self.client.ask(self.client.COMM_INIT, body)
        self.assertEqual(status, 0, text)
        return None

    def submission(self, kind=ALL_REDUCE, handle=COMM, **fields):
        """Submits an operation whose end is written to the first word."""
        given = {"dtype": I64, "count": ELEMENTS, "input": (BUFFER, 0), "output": (BUFFER, 0), "ended": (WORDS, 0, self.ticket + 1)}
        self.ticket += 1
        return operation(handle, self.ticket, kind, **{**given, **fields})

    def refused(self, expected, text, kind=ALL_REDUCE, told=True, **fields):
        status, said = self.client.submit(self.submission(kind, **fields))
        self.assertEqual(status, expected, said)
        self.assertIn(text, said)
        if told:
            self.assertEqual(self.words.word(0), self.ticket, "its end is told, also when it is refused")

    def done(self, kind=ALL_REDUCE, **fields):
        status, said = self.client.submit(self.submission(kind, **fields))
        self.assertEqual(status, 0, said)
        self.assertEqual(self.words.word(0), self.ticket)
