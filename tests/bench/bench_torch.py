"""Times the torch backend beside Gloo, in turn, in one run. Run by tests/torch/run_bench.py, on each rank, with RANK and WORLD_SIZE.

Both have a group of the same processes; a measurement does a few steps of one, then of the other. It prints ratios of medians: commd's time by Gloo's.
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
BATCH = int(os.environ.get("BENCH_BATCH", "24"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))


def measure(steps, counts):
    """steps: by name a function. Runs them in turn, and returns the median seconds of one step by name."""
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
    return {name: statistics.median(values) for name, values in taken.items()}


def model(group):
    torch.manual_seed(1)
    width = int((GRADIENTS / 4 / 4) ** 0.5)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    batch = torch.randn(BATCH, width)

    def step():
        wrapped.zero_grad()
        wrapped(batch).square().mean().backward()

    def alone():
        with wrapped.no_sync():
            step()
    return step, alone


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
    (by_gloo, alone), (by_commd, _) = model(gloo), model(ours)
    ddp = measure({"gloo": by_gloo, "commd": by_commd, "alone": alone}, {"gloo": 3, "commd": 3, "alone": 3})
    if rank == 0:
        print(f"torch {torch.__version__}, {size} processes")
        print(f"all_reduce 24 MB: gloo {large['gloo'] * 1e3:.1f} ms; gloo by commd: ordinary {large['gloo'] / large['ordinary']:.1f}, "
              f"from the pool {large['gloo'] / large['pool']:.1f}")
        for name, found in (("waited", waited), ("asynchronous", later)):
            print(f"all_reduce 4 B, {name}: gloo {found['gloo'] * 1e6:.0f} us, commd {found['commd'] * 1e6:.0f} us; commd by gloo "
                  f"{found['commd'] / found['gloo']:.2f}")
        print(f"DDP step of 21 MB: gloo {ddp['gloo'] * 1e3:.1f} ms, commd {ddp['commd'] * 1e3:.1f} ms (computing alone {ddp['alone'] * 1e3:.1f}); "
              f"commd by gloo {ddp['commd'] / ddp['gloo']:.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
