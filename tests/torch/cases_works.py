"""Handles of operations, groups, deadlines, records and forked children."""
import datetime
import json
import os
import threading

import torch
import torch.distributed as dist

from case import POISON, case, data, rejected, same, shared_folder, skip


@case
def futures(rank, size):
    tensor = data(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    same(chained.wait(), 2 * sum(data(each) for each in range(size)))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    same(work.get_future().wait()[0], torch.full((3,), float(size)))


@case
def a_callback_that_submits_and_waits(rank, size):
    def again(done):
        inner = done.value()[0].clone()
        return dist.all_reduce(inner, async_op=True).get_future().wait()[0]

    chained = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again)
    same(chained.wait(), torch.full((3,), float(size * size)))


@case
def works_that_nobody_waits_for(rank, size):
    tensors = [data(rank, shift=step) for step in range(50)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    for step, tensor in enumerate(tensors):
        dist.group.WORLD._wait_for_pending_works()
        same(tensor, sum(data(each, shift=step) for each in range(size)))


@case
def groups(rank, size):
    for members in ([0, 1], [1, 2], [0, 2], [2]):
        group = dist.new_group(members)
        if rank in members:
            tensor = data(rank)
            dist.all_reduce(tensor, group=group)
            same(tensor, sum(data(each) for each in members))
            dist.barrier(group=group)
            half = group.split_group([group.rank()])
            tensor = data(rank)
            half.allreduce([tensor]).wait()
            same(tensor, data(rank))
        dist.barrier()
        if rank in members:
            dist.destroy_process_group(group)


@case
def barriers(rank, size):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))


@case
def a_monitored_barrier_names_who_is_missing(rank, size):
    import commd.torch
    group = dist.new_group()
    if rank != 1:
        error = rejected(RuntimeError, lambda: commd.torch.monitored_barrier(group, datetime.timedelta(seconds=1), wait_all_ranks=True),
                         "Rank 1 failed to pass monitoredBarrier in 1000 ms" if rank == 0 else "Missing: 1")
        assert error.ranks == (1,), error.ranks
    dist.barrier()


@case
def a_wait_has_a_limit(rank, size):
    if rank == 0:
        out = torch.zeros(3)
        work = dist.irecv(out, 1, tag=9)
        rejected(dist.DistBackendError, lambda: work.wait(datetime.timedelta(milliseconds=50)), "50 ms")
        assert not work.is_completed()
    dist.barrier()
    if rank == 0:
        work.wait()
        same(out, data(1, 3))
    elif rank == 1:
        dist.send(data(1, 3), 0, tag=9)


@case
def a_call_has_a_deadline(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        error = rejected(dist.DistBackendError, lambda: dist.all_reduce(torch.ones(3), group=group), "all_reduce")
        assert error.result.name == "TIMED_OUT" and 1 in error.ranks, (error.result, error.ranks)
    dist.barrier()


@case
def ranks_that_contradict_each_other(rank, size):
    group = dist.new_group()
    error = rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(3 + (rank == 1)), group=group), "all_reduce")
    assert error.result.name == "MISMATCH", error.result
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)  # the group goes on
    same(tensor, torch.full((2,), float(size)))


@case
def sequence_numbers(rank, size):
    group = dist.new_group()
    first = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
    assert group._get_sequence_number_for_group() == first + 3


@case
def records(rank, size):
    import commd.torch
    dist.all_reduce(torch.ones(2, 3))
    last = commd.torch.flight_records()
    json.dumps(last)
    entry = [each for each in last["entries"] if each["profiling_name"] == "commd:all_reduce"][-1]
    assert entry["state"] == "completed", entry
    assert any(each["input_sizes"] == [(2, 3)] for each in last["entries"])


@case
def the_profiler_names_operations(rank, size):
    with torch.autograd.profiler.profile() as profiler:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    names = [event.name for event in profiler.function_events]
    assert names.count("commd:all_reduce") == 2, names


@case
def shared_tensors(rank, size):
    import commd.torch
    from commd.torch._memory import is_shared
    tensor = commd.torch.empty(300, 100)
    assert tensor.shape == (300, 100) and is_shared(tensor) and not is_shared(torch.ones(100))
    tensor.copy_(data(rank, 30000).view(300, 100))
    dist.all_reduce(tensor)
    same(tensor.view(-1), sum(data(each, 30000) for each in range(size)))
    for _ in range(50):
        del tensor
        tensor = commd.torch.empty(1 << 20, dtype=torch.bfloat16)
    assert commd.torch.empty(0).shape == (0,)


@case
def an_abort(rank, size):
    group = dist.new_group()
    if rank == 0:
        dist.barrier()
        group.abort("enough of it")
    else:
        failures = []
        thread = threading.Thread(target=lambda: failures.append(rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(1), group=group), "enough of it")))
        thread.start()
        dist.barrier()
        thread.join(20)
        assert failures and failures[0].result.name == "ABORTED", failures
    dist.barrier()


@case
def data_loader_workers(rank, size):
    dataset = torch.utils.data.TensorDataset(torch.arange(40.0))
    total = torch.zeros(1)
    for (values,) in torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"):
        total += values.sum()
        dist.all_reduce(torch.ones(1))
    same(total, torch.tensor([780.0]))


@case
def a_fork_is_told(rank, size):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.group.WORLD.allreduce([torch.ones(1)])
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read, 1000)
    dist.barrier()


@case
def records_of_messages_and_failures(rank, size):
    """Records have what a tool that compares ranks needs: numbers in order, states, separate messages, failures with their text."""
    import commd.torch
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    other = dist.irecv(torch.zeros(3), (rank + 1) % size, tag=77)
    began = [each for each in commd.torch.flight_records()["entries"] if each["is_p2p"]][-1]
    assert began["state"] == "started" and began["profiling_name"] == "commd:recv" and began["time_discovered_completed_ns"] is None, began
    dist.send(torch.ones(3), (rank - 1) % size, tag=77)
    other.wait()
    if rank == 0:
        rejected(RuntimeError, lambda: dist.all_reduce(torch.ones(3), group=group))
    for _ in range(2):
        dist.barrier()
    found = commd.torch.flight_records()
    numbers = [each["collective_seq_id"] for each in found["entries"] if not each["is_p2p"] and each["process_group"][0] == dist.group.WORLD.group_name]
    assert numbers == sorted(numbers) and len(numbers) > 1
    failed = [each for each in found["entries"] if each["error"] and each["process_group"][0] == group.group_name]
    assert [each["profiling_name"] for each in failed] == (["commd:all_reduce"] if rank == 0 else []), failed
    status = found["pg_status"][group.group_name]
    assert status["last_enqueued_collective"] == (1 if rank == 0 else 0), status


@case
def torchs_analyser_reads_the_records(rank, size):
    """It finds nothing wrong with collectives of all kinds, and names the rank that called another one. Other cases have left groups that failed."""
    try:
        from torch.distributed.flight_recorder.components import builder, config_manager, loader
    except ImportError:
        skip("this torch has no analyser of flight records")
    import commd.torch

    def analysed(name):
        folder = shared_folder(rank)
        commd.torch.write_flight_records(f"{folder}/{name}_")
        dist.barrier()
        arguments = config_manager.JobConfig().parse_args(["-p", f"{name}_", "--mismatch_cap", "1000", folder])
        found, version = loader.read_dir(arguments)
        ours = [each for each in builder.build_db(found, arguments, version).collectives if each.group_id == group.group_name]
        return [each for each in ours if not each.pass_check], len(ours)

    group = dist.new_group()
    one, several, flat = torch.ones(2, 3), [torch.ones(2, 3) for _ in range(size)], torch.ones(2 * size, 3)
    dist.all_gather(several, one, group=group)
    dist.all_gather_into_tensor(flat, one, group=group)
    dist.reduce_scatter(one, several, group=group)
    dist.gather(one, several if rank == 1 else None, dst=1, group=group)
    dist.scatter(one, several if rank == 1 else None, src=1, group=group)
    dist.broadcast(one, 2, group=group)
    dist.all_to_all(several, [each.clone() for each in several], group=group)
    dist.send(one, (rank + 1) % size) if rank == 0 else dist.recv(one, 0) if rank == 1 else None
    wrong, count = analysed("right")
    assert not wrong and count == 7, (wrong, count)
    rejected(RuntimeError, lambda: dist.broadcast(one, 0, group=group) if rank == 1 else dist.all_reduce(one, group=group))
    wrong, _ = analysed("wrong")
    assert wrong and any("broadcast" in str(each) and "all_reduce" in str(each) for each in wrong), wrong


@case
def a_work_without_references(rank, size):
    """Tensors and works that the program drops stay alive until the operation has ended."""
    for step in range(30):
        dist.all_reduce(torch.full((50_000,), float(rank + step)), async_op=True)
    future = dist.all_reduce(torch.full((50_000,), float(rank)), async_op=True).get_future()
    same(future.wait()[0], torch.full((50_000,), float(sum(range(size)))))


class OfSharedMemory(torch.utils.data.Dataset):
    """Rows of commd's memory, which forked workers read."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place] * 2


@case
def workers_that_read_shared_memory(rank, size):
    import commd.torch
    rows = commd.torch.empty(40, 1000)
    rows.copy_(data(rank, 40_000).view(40, 1000))
    loader = torch.utils.data.DataLoader(OfSharedMemory(rows), batch_size=8, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        total = torch.zeros(1000)
        for batch in loader:
            total += batch.sum(0)
            dist.all_reduce(torch.ones(1))
        same(total, rows.sum(0) * 2)
    del loader
    dist.all_reduce(rows)
    same(rows.view(-1), sum(data(each, 40_000) for each in range(size)))


@case
def a_child_that_ends_as_usual(rank, size):
    """The child of a fork drops its copies of a group, a work and a tensor, and ends. The parent notices nothing."""
    import multiprocessing

    import commd.torch
    group, shared = dist.new_group(), commd.torch.empty(100_000)
    shared.fill_(rank + 1)
    pending = dist.irecv(torch.zeros(5), (rank + 1) % size, tag=51)

    def child():
        nonlocal group, shared, pending
        assert shared.sum().item() == 100_000 * (rank + 1)
        del group, shared, pending  # no collection of garbage: groups of gloo that are in it would wait for threads that no child has

    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join(10)
    assert process.exitcode == 0, process.exitcode
    dist.all_reduce(shared, group=group)
    same(shared, torch.full((100_000,), size * (size + 1) / 2))
    dist.send(torch.ones(5), (rank - 1) % size, tag=51)
    pending.wait()


@case
def thousands_of_works_before_the_others_come(rank, size):
    """More works than a group keeps without looking at them. Rank 1 comes late, so nothing has ended when the last is started."""
    import time
    if rank == 1:
        time.sleep(0.3)
    tensors = [torch.full((3,), float(step + rank)) for step in range(3000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for step, (tensor, work) in enumerate(zip(tensors, works)):
        work.wait()
        same(tensor, torch.full((3,), float(step * size + sum(range(size)))))
    tensors = [[torch.full((3,), float(step + rank)) for _ in range(3)] for step in range(500)]
    if rank == 2:
        time.sleep(0.3)
    works = [dist.group.WORLD.allreduce_coalesced(some) for some in tensors]
    for step, (some, work) in enumerate(zip(tensors, works)):
        work.wait()
        for tensor in some:
            same(tensor, torch.full((3,), float(step * size + sum(range(size)))))


@case
def thousands_of_futures_and_messages(rank, size):
    futures = [dist.all_reduce(torch.full((3,), float(step)), async_op=True).get_future() for step in range(2000)]
    for step, future in enumerate(futures):
        same(future.wait()[0], torch.full((3,), float(step * size)))
    following, before = (rank + 1) % size, (rank - 1) % size
    received = [torch.full((3,), float(POISON)) for _ in range(1500)]
    works = [dist.irecv(tensor, before, tag=number) for number, tensor in enumerate(received)]
    for number in reversed(range(1500)):
        dist.send(torch.full((3,), float(number + rank)), following, tag=number)
    for number, (tensor, work) in enumerate(zip(received, works)):
        work.wait()
        same(tensor, torch.full((3,), float(number + before)))


@case
def threads_with_groups_of_their_own(rank, size):
    failures = []

    def run(group, number):
        try:
            for step in range(100):
                tensor = torch.full((50,), float(step + number))
                if number % 2:
                    dist.all_reduce(tensor, group=group)
                else:
                    tensor = dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()[0]
                same(tensor, torch.full((50,), float(size * (step + number))))
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=run, args=(dist.new_group(), number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@case
def a_callback_that_raises(rank, size):
    def fail(_):
        raise ZeroDivisionError("on purpose")

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(fail)
    rejected(RuntimeError, future.wait, "ZeroDivisionError", "on purpose")
    same(dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0], torch.full((3,), float(size)))


@case
def a_work_that_threads_share(rank, size):
    """Some threads ask whether the work has ended while another thread waits for it."""
    for _ in range(20):
        tensor = torch.full((2000,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        asking = [threading.Thread(target=lambda: [work.is_completed() for _ in range(50)]) for _ in range(2)]
        for thread in asking:
            thread.start()
        work.wait()
        same(tensor, torch.full((2000,), float(sum(range(size)))))
        for thread in asking:
            thread.join()
