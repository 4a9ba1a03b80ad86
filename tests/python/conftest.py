"""Fixtures that all tests of the Python package share."""
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from ranks import BUILD, Daemons  # noqa: E402

# A shell that starts the tests in the background ignores SIGINT for them. Programs that they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["COMMD_LIBRARY"] = str(BUILD / "libcommclient.so")


@pytest.fixture(scope="module")
def daemons():
    """One daemon for all tests of a file."""
    made = Daemons()
    yield made
    made.close()


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes for all tests of a file."""
    made = Daemons(("alpha", "beta"))
    yield made
    made.close()
