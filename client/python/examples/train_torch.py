"""Trains a small transformer to continue text, letter by letter, on all processes of a job.

    torchrun --nproc-per-node=2 train_torch.py                        # DDP, through commd
    torchrun --nproc-per-node=2 train_torch.py --shard                # FSDP2: each process keeps a part of the model
    torchrun --nproc-per-node=2 train_torch.py --backend gloo         # the same, through Gloo
    commctl run -n 4 -- python3 train_torch.py --init commd://job-17  # no address of any process is needed

The text is a licence that the system ships; --text names another file.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

try:
    import commd.torch  # noqa: F401 (an installed package needs no import)
except ImportError:
    pass

CONTEXT, WIDTH, HEADS, LAYERS = 32, 64, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.forward_part = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.before_attention, self.before_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, values):
        future = torch.triu(torch.ones(values.shape[1], values.shape[1], dtype=torch.bool), 1)
        normal = self.before_attention(values)
        values = values + self.attention(normal, normal, normal, attn_mask=future, need_weights=False)[0]
        return values + self.forward_part(self.before_forward(values))


class Writer(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.out = nn.Linear(WIDTH, letters)

    def forward(self, text):
        return self.out(self.blocks(self.letter(text) + self.place(torch.arange(text.shape[1]))))


def options():
    parser = argparse.ArgumentParser(description="a small transformer on all processes of a job")
    parser.add_argument("--backend", default="commd")
    parser.add_argument("--init", default="env://", help="how the processes meet: env://, commd://JOB or another of torch's")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--shard", action="store_true", help="FSDP2 instead of DDP")
    return parser.parse_args()


def distribute(model, shard):
    """Makes the processes train one model."""
    if not shard:
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    chosen = options()
    place = {"rank": int(os.environ.get("COMMD_RANK", os.environ.get("RANK", -1))),
             "world_size": int(os.environ.get("COMMD_SIZE", os.environ.get("WORLD_SIZE", -1)))}
    dist.init_process_group(chosen.backend, init_method=chosen.init, **place)
    rank = dist.get_rank()
    torch.set_num_threads(1)
    with open(chosen.text, encoding="utf-8", errors="replace") as file:
        text = file.read()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    torch.manual_seed(1)  # all begin with the same model
    model = distribute(Writer(len(letters)), chosen.shard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(100 + rank)  # each has its own batches
    began = time.monotonic()
    for step in range(1, chosen.steps + 1):
        starts = torch.randint(len(data) - CONTEXT - 1, (8,)).tolist()
        batch = torch.stack([data[start:start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f} seconds {time.monotonic() - began:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
