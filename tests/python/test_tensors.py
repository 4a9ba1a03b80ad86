"""Tensors of PyTorch as arrays. Skipped where there is no torch."""
import numpy
import pytest

POISON = 77


def data(rank, count=1000, dtype=None):
    import torch
    return (torch.arange(count) % 11 + 1 + rank * 3).to(dtype or torch.float32)


# --- Functions that the ranks run ---


def dtypes(comm):
    import torch
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "complex64", "complex128"):
        dtype = getattr(torch, name)
        own = data(comm.rank, 13, dtype)
        expected = sum(data(rank, 13, dtype) for rank in range(comm.size))
        total = comm.all_reduce(own)
        assert isinstance(total, torch.Tensor) and total.dtype == dtype and torch.equal(total, expected), name
    for name in ("float8_e4m3fn", "float8_e5m2"):
        own = data(comm.rank, 4).to(getattr(torch, name))
        gathered = comm.all_gather(own).float()
        assert torch.equal(gathered, torch.stack([data(rank, 4).to(getattr(torch, name)).float() for rank in range(comm.size)]))
    flags = torch.arange(8) % (comm.rank + 2) == 0
    assert comm.all_reduce(flags, "lor").dtype == torch.bool


def shared(comm):
    import commd
    import torch
    own = comm.empty((300, 400), torch.bfloat16)
    assert own.shape == (300, 400) and own.dtype == torch.bfloat16 and commd.is_shared(own)
    own.fill_(comm.rank + 1)
    part = own[7]
    comm.all_reduce(own, out=own)
    del own
    assert (part == sum(range(1, comm.size + 1))).all()
    large = comm.all_reduce(torch.ones(100000))
    assert commd.is_shared(large) and (large == comm.size).all()
    both = comm.all_reduce(numpy.ones(10), out=torch.zeros(10, dtype=torch.float64))
    assert isinstance(both, torch.Tensor) and (both == comm.size).all()
    assert comm.empty((0, 2), torch.int8).shape == (0, 2)


def lists(comm):
    import torch
    out = [torch.full((rank + 1,), POISON, dtype=torch.float32) for rank in range(comm.size)]
    comm.all_gather(data(comm.rank, comm.rank + 1), out=out)
    assert all(torch.equal(out[rank], data(rank, rank + 1)) for rank in range(comm.size))
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = torch.full((50,), POISON, dtype=torch.float32)
    comm.send_recv(data(comm.rank, 50), following, received, before)
    assert torch.equal(received, data(before, 50))
    weights = torch.ones(5, requires_grad=True)
    assert (comm.all_reduce(weights.grad if weights.grad is not None else torch.ones(5)) == comm.size).all()


def wrong(comm):
    import torch
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    shrunk = torch.ones(100)
    shrunk.untyped_storage().resize_(40)
    for bad in (torch.ones(4, 4)[:, 1], torch.ones(4, 4).T, torch.ones(4, device="meta"), torch.eye(3).to_sparse(), freed, shrunk,
                torch.complex(torch.ones(3), torch.ones(3)).conj(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), torch.float32,
                torch.device("cpu"), torch):
        for call in (comm.all_reduce, comm.broadcast, lambda array: comm.all_reduce(torch.ones(4), out=array)):
            try:
                call(bad)
            except (TypeError, ValueError, RuntimeError, NotImplementedError):
                continue
            raise AssertionError(f"{bad} was accepted")
    assert (comm.all_reduce(torch.ones(4)) == comm.size).all()


FUNCTIONS = [dtypes, shared, lists, wrong]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_tensors(daemons, function):
    pytest.importorskip("torch")
    for size in (1, 2):
        daemons.run_ranks(function, size)
