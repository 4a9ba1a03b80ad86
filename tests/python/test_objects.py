"""Collectives and messages of Python objects."""
import pytest


def thing(rank, size=3):
    return {"rank": rank, "list": list(range(rank, rank + size)), "text": "x" * size}


def messages(comm):
    objects = comm.objects
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 5, 3000):
        objects.send(thing(comm.rank, size), following, tag=size)
        assert objects.recv(before, tag=size) == thing(before, size)
    for size in range(16350, 16380):  # around the size that needs a second message
        objects.send(bytes([comm.rank]) * size, following, tag=size)
        assert objects.recv(before, tag=size) == bytes([before]) * size
    objects.send(thing(comm.rank), following)
    assert objects.recv_from() == (thing(before), before)
    import numpy
    comm.send(numpy.ones(3), following, tag=4)  # an array and an object with one tag do not meet
    objects.send("object", following, tag=4)
    assert objects.recv(before, tag=4) == "object"
    out = numpy.zeros(3)
    comm.recv(out, before, tag=4)
    assert out.all()


def large_messages(comm):
    """A long send ends only when the message is received, so one rank sends first."""
    if comm.rank == 0:
        for rank in range(1, comm.size):
            comm.objects.send(thing(0, 200000), rank)
    else:
        assert comm.objects.recv(0) == thing(0, 200000)


def collectives(comm):
    objects, size, rank = comm.objects, comm.size, comm.rank
    for extent in (0, 10, 900, 5000):
        root = size - 1
        assert objects.bcast(thing(root, extent) if rank == root else None, root) == thing(root, extent)
    assert objects.allgather(thing(rank, rank)) == [thing(each, each) for each in range(size)]
    gathered = objects.gather(thing(rank, rank), root=size - 1)
    assert gathered == ([thing(each, each) for each in range(size)] if rank == size - 1 else None)
    assert objects.scatter([thing(each, each * 3) for each in range(size)] if rank == 0 else None) == thing(rank, rank * 3)
    received = objects.alltoall([thing(rank, each) for each in range(size)])
    assert received == [thing(each, rank) for each in range(size)]
    assert objects.allreduce(rank + 1) == sum(range(1, size + 1))
    assert objects.reduce([rank], lambda a, b: a + b, root=0) == (list(range(size)) if rank == 0 else None)
    assert objects.bcast(None) is None


def failures(comm):
    """If a rank cannot pickle its object, all ranks raise, and the communicator goes on."""
    import commd
    bad, objects = (lambda: 0), comm.objects
    last = comm.size - 1

    def raises(call, kinds):
        try:
            call()
        except kinds:
            return
        raise AssertionError(f"rank {comm.rank}: nothing was raised")

    own = (Exception,) if comm.rank == last else (commd.Error,)
    mine = bad if comm.rank == last else 1
    raises(lambda: objects.bcast(mine, last), own)
    raises(lambda: objects.allgather(mine), own)
    raises(lambda: objects.gather(mine), own)
    raises(lambda: objects.scatter([bad] * comm.size if comm.rank == last else None, last), own)
    raises(lambda: objects.scatter([1] * (comm.size + 1) if comm.rank == last else None, last), own)
    raises(lambda: objects.alltoall([mine] * comm.size), own)
    raises(lambda: objects.send(bad, 0), Exception)
    assert objects.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("function", (messages, large_messages, collectives, failures), ids=lambda function: function.__name__)
def test_one_node(daemons, function, size):
    daemons.run_ranks(function, size)


@pytest.mark.parametrize("function", (messages, large_messages, collectives), ids=lambda function: function.__name__)
def test_two_nodes(two_nodes, function):
    two_nodes.run_ranks(function, 4)
