"""torch's own distributed tests, on the backend that COMMD_TORCH_BACKEND names (gloo or commd).

They are loaded as tests of gloo, so their decorators select what gloo can do. Groups of the default backend are then made with the other backend.
If a test names gloo for a group, the group stays gloo's. So both backends may run at the same time.
"""
import os
import sys

BACKEND = os.environ.get("COMMD_TORCH_BACKEND", "commd")
os.environ["BACKEND"] = "gloo"

import torch  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

if BACKEND == "commd":
    import commd.torch  # noqa: E402, F401 (registers the backend)


class Name(str):
    """The backend's name. The tests that ask for gloo while they run get the same answer as those that ask before."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = Name(BACKEND)


class TestOwn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # torch is imported once only


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_tests(sys.argv)
