"""Times the torch backend beside Gloo, in turn, in one run. Run by tests/torch/run_bench.py, on each rank, with RANK and WORLD_SIZE.

Both have a group of the same processes. In each round, a measurement does a few steps of one, then of the other. It prints medians of the rounds'
ratios, commd's time by Gloo's: what else the machine does then changes both alike.

The batch of the DDP step decides how long computing takes, and so what a faster all_reduce can gain: see the share of computing alone, without any
synchronisation, in Gloo's step. A step "without reducing" has a hook that returns the bucket as it is. DDP's own copies are in it, so no backend can be
faster. "commd by that" says how near commd is.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import commd.torch

LARGE = 24 << 20
GRADIENTS = 21 << 20
WIDTH = int((GRADIENTS / 4 / 4) ** 0.5)  # of each of four layers
SMALL_WIDTH = 158  # four layers of 158 x 158: 0.1 M parameters
BATCHES = [int(batch) for batch in os.environ.get("BENCH_BATCHES", "4 8 12").split()]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "15"))


def measure(steps, counts):
    """steps: by name a function. Runs them in turn. Returns the seconds of one step in each round, by name."""
    taken = {name: [] for name in steps}
    for round_ in range(ROUNDS + 1):
        for name, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(counts[name]):
                step()
            seconds = (time.perf_counter() - began) / counts[name]
            if round_ > 0:  # the first warms up
                taken[name].append(seconds)
    return taken


def median(found, name, unit=1e3):
    """The median time, in milliseconds."""
    return statistics.median(found[name]) * unit


def ratio(found, name, base="gloo"):
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(found[name], found[base]))


def network(layers, width):
    torch.manual_seed(1)
    return torch.nn.Sequential(*[layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())])


def stepper(layers, width, count, **options):
    """Returns the DDP model, and a function that does one step on a batch of `count` rows."""
    wrapped = torch.nn.parallel.DistributedDataParallel(network(layers, width), **options)
    batch = torch.randn(count, width)

    def step():
        wrapped.zero_grad()
        wrapped(batch).square().mean().backward()
    return wrapped, step


def unreduced(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def ddp_steps(ours, gloo, batch):
    """By name: the steps that are compared."""
    by_gloo, gloo_step = stepper(4, WIDTH, batch, process_group=gloo)
    copies, copies_step = stepper(4, WIDTH, batch, process_group=ours)
    copies.register_comm_hook(None, unreduced)

    def alone():
        with by_gloo.no_sync():
            gloo_step()
    return {"gloo": gloo_step, "commd": stepper(4, WIDTH, batch, process_group=ours)[1], "alone": alone, "unreduced": copies_step,
            "views": stepper(4, WIDTH, batch, process_group=ours, gradient_as_bucket_view=True)[1]}


def evenly(steps, count):
    """As measure takes them, `count` steps at a time of each."""
    return steps, dict.fromkeys(steps, count)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("commd", init_method=sys.argv[1], rank=rank, world_size=size)
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    plain, shared, small = torch.ones(LARGE // 4), commd.torch.empty(LARGE // 4), torch.ones(1)
    shared.fill_(1)
    one = {"gloo": lambda: dist.all_reduce(plain, group=gloo), "ordinary": lambda: dist.all_reduce(plain), "pool": lambda: dist.all_reduce(shared)}
    large = measure(one, {"gloo": 3, "ordinary": 3, "pool": 10})
    waited = measure({"gloo": lambda: dist.all_reduce(small, group=gloo), "commd": lambda: dist.all_reduce(small)}, {"gloo": 300, "commd": 300})
    later = measure({"gloo": lambda: dist.all_reduce(small, group=gloo, async_op=True).wait(),
                     "commd": lambda: dist.all_reduce(small, async_op=True).wait()}, {"gloo": 300, "commd": 300})
    ddp = {batch: measure(*evenly(ddp_steps(ours, gloo, batch), 3)) for batch in BATCHES}
    small_model = measure(*evenly({"gloo": stepper(4, SMALL_WIDTH, 8, process_group=gloo)[1], "commd": stepper(4, SMALL_WIDTH, 8, process_group=ours)[1]}, 30))
    if rank == 0:
        print(f"torch {torch.__version__}, {size} processes")
        print(f"all_reduce 24 MB: gloo {median(large, 'gloo'):.1f} ms; gloo by commd: ordinary {ratio(large, 'gloo', 'ordinary'):.1f}, "
              f"from the pool {ratio(large, 'gloo', 'pool'):.1f}")
        for name, found in (("waited", waited), ("asynchronous", later)):
            print(f"all_reduce 4 B, {name}: gloo {median(found, 'gloo', 1e6):.0f} us, commd {median(found, 'commd', 1e6):.0f} us; commd by gloo "
                  f"{ratio(found, 'commd'):.2f}")
        for batch, found in ddp.items():
            part = {name: f"{ratio(found, name):.2f}" for name in found}
            print(f"DDP step of 21 MB, batch {batch:2}: gloo {median(found, 'gloo'):.1f} ms; commd by gloo {part['commd']}, with gradients as views of "
                  f"buckets {part['views']}; computing alone {part['alone']}, without reducing {part['unreduced']}; commd by that "
                  f"{ratio(found, 'commd', 'unreduced'):.2f}")
        print(f"DDP step of 0.1 M parameters: gloo {median(small_model, 'gloo'):.2f} ms, commd {median(small_model, 'commd'):.2f} ms; commd by gloo "
              f"{ratio(small_model, 'commd'):.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
