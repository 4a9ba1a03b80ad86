"""Functions that the cases share: names of cases, data, and checks of results and failures."""
import os
import tempfile
import unittest

import torch
import torch.distributed as dist

CASES = {}
CASES_OF_FOUR = {}
POISON = 77


def case(function):
    """A case for three ranks."""
    CASES[function.__name__] = function
    return function


def case_of_four(function):
    """A case for four ranks."""
    CASES_OF_FOUR[function.__name__] = function
    return function


def skip(reason):
    """Ends the case. All ranks must call it."""
    raise unittest.SkipTest(reason)


def data(rank, count=10, dtype=torch.float32, shift=0):
    return ((torch.arange(count) * 3 + rank * 7 + shift) % 11 + 1).to(dtype)


def shared_folder(rank):
    """A folder of all ranks. Rank 0 makes it."""
    name = [tempfile.mkdtemp(dir=os.getcwd()) if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    return name[0]


def same(found, expected):
    if found.dtype.is_floating_point or found.dtype.is_complex:
        found, expected = found.to(torch.complex128), expected.to(torch.complex128)
    assert torch.equal(found, expected), f"found {found}, expected {expected}"


def rejected(kind, function, *words):
    try:
        function()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} is not in: {error}"
        return error
    raise AssertionError(f"no {kind} was raised")
