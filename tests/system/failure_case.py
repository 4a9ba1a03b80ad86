"""What the tests of failures share: ranks that run operations, some of which are then lost."""
import os
import time
import unittest

HEARTBEAT_BOUND_S = 5.0
LOG_CHARACTERS = 1200  # of each node, in the text of a failure


def read_until(process, word):
    """Reads one line, and not a byte more. If Python read ahead into its buffer, communicate() would miss these bytes."""
    line = b""
    while byte := os.read(process.stdout.fileno(), 1):
        line += byte
        if byte == b"\n":
            if line.startswith(word.encode()):
                return line.decode()
            line = b""
    raise AssertionError(f"no {word}: {process.stderr.read()}")


class FailureCase(unittest.TestCase):
    gpus_there = None  # on a machine with fewer GPUs than a test uses, ranks share them: the number that it has

    def ranks(self, cluster, layout, name, mode, *options, devices=None):
        """layout: the node of each rank. devices: the GPU of each rank on its node, or None for memory of the host."""
        return [cluster.rank(node, name, rank, len(layout), mode, *options, *([f"device={self.gpu_of(devices[rank])}"] if devices else []))
                for rank, node in enumerate(layout)]

    def gpu_of(self, device):
        return device % self.gpus_there if self.gpus_there else device

    def start(self, cluster, layout, name, mode, *options, devices=None):
        ranks = self.ranks(cluster, layout, name, mode, *options, devices=devices)
        for process in ranks:
            read_until(process, "READY")
        return ranks

    def last_line(self, process, within_s):
        output, errors = process.communicate(timeout=within_s + 10)
        return output.strip().splitlines()[-1] if output.strip() else errors

    def expect(self, process, code, *texts, within_s):
        started = time.monotonic()
        line = self.last_line(process, within_s)
        if not line.startswith(code):
            self.fail(f"{line} (exit {process.returncode}), not {code}\n{process.cluster.logs(LOG_CHARACTERS)}")
        for text in texts:
            self.assertIn(text, line)
        self.assertLess(time.monotonic() - started, within_s)

    def check_new_communicator(self, cluster, layout, name, devices=None):
        for process in self.ranks(cluster, layout, name, "once", devices=devices):
            self.expect(process, "OK", within_s=15)
