"""Fixtures that all tests of the Python package share."""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from ranks import BUILD, Daemons  # noqa: E402

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
