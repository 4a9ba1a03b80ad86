#!/usr/bin/env python3
"""One rank whose buffers are PyTorch's tensors, in PyTorch's current stream: torch_rank.py NAME RANK SIZE

PyTorch computes the inputs and uses the results in the stream around each operation. Tensors are freed at once, and the next ones get their
memory. The results are compared with what PyTorch computes from all ranks' inputs. Prints what is wrong and exits with 1, or prints the number
of operations.
"""
import ctypes
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from cluster import Library  # noqa: E402

TURNS = 48
COUNTS = (1, 1000, 4099, 1 << 20, 3000001)
DTYPES = ((torch.float32, 1), (torch.bfloat16, 3), (torch.float16, 2), (torch.int64, 6), (torch.float64, 0), (torch.uint8, 13))
SUM = 0
LATE_MATRIX = 2048  # a product of such matrices delays what follows it in the stream


class CallOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_uint32), ("factor", ctypes.c_double), ("stream", ctypes.c_void_p),
                ("request", ctypes.c_void_p), ("persistent", ctypes.c_int), ("compression", ctypes.c_int), ("top_k_permille", ctypes.c_uint32),
                ("residual", ctypes.c_void_p)]


class Rank:
    def __init__(self, name, rank, size):
        self.rank, self.size = rank, size
        self.client_calls = Library()
        self.client_calls.calls.comm_all_gather.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        result, self.client = self.client_calls.open()
        self.must(result, "comm_client_open")
        result, self.comm = self.client_calls.init(self.client, name, rank, size, device=0)
        self.must(result, "comm_init")
        self.late = torch.ones(LATE_MATRIX, LATE_MATRIX, device="cuda")

    def must(self, result, what):
        if result:
            raise SystemExit(f"rank {self.rank}: {what}: {self.client_calls.NAMES[result]}: {self.client_calls.error()}")

    def options(self):
        return CallOptions(ctypes.sizeof(CallOptions), 0, 1.0, torch.cuda.current_stream().cuda_stream, None, 0, 0, 0, None)

    def all_reduce(self, send, receive, number):
        options = self.options()
        self.must(self.client_calls.comm_all_reduce(self.comm, send.data_ptr(), receive.data_ptr(), send.numel(), number, SUM, ctypes.byref(options)),
                  "comm_all_reduce")

    def all_gather(self, send, receive, number):
        options = self.options()
        self.must(self.client_calls.comm_all_gather(self.comm, send.data_ptr(), receive.data_ptr(), send.numel(), number, ctypes.byref(options)),
                  "comm_all_gather")

    def end(self):
        self.must(self.client_calls.comm_sync(self.comm, 0), "comm_sync")
        self.client_calls.comm_destroy(self.comm)
        self.client_calls.comm_client_close(self.client)


def values(of, turn, count, dtype):
    """Returns a rank's input before it is doubled, on the host."""
    generator = torch.Generator().manual_seed(1000 * turn + of)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def folded(inputs, dtype):
    """Sums of 16-bit floats are computed in 32 bits, and rounded once."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = inputs[0].to(wide)
    for one in inputs[1:]:
        total = total + one.to(wide)
    return total.to(dtype)


def one_turn(rank, turn):
    dtype, number = DTYPES[turn % len(DTYPES)]
    count = COUNTS[turn % len(COUNTS)]
    before = [values(of, turn, count, dtype) for of in range(rank.size)]
    place = turn % 7  # begins this many elements into the allocation
    memory = torch.zeros(count + place, dtype=dtype, device="cuda")
    mine = memory[place:]
    mine.copy_(before[rank.rank])
    if turn % 2 == 0:
        torch.mm(rank.late, rank.late)
    mine.mul_(2)
    gathered = torch.empty(count * rank.size, dtype=dtype, device="cuda")
    rank.all_gather(mine, gathered, number)
    reduced = mine if turn % 3 == 0 else torch.empty_like(mine)
    rank.all_reduce(mine, reduced, number)
    used = reduced.clone()
    del memory, mine, reduced
    if turn % 5 == 0:
        torch.cuda.empty_cache()  # unmaps or frees the memory, perhaps while the operations are still in the stream
    torch.full((count,), 9, dtype=dtype, device="cuda")  # may take the memory that the freed tensors had
    doubled = [(one.cuda() * 2) for one in before]
    for what, got, expected in (("all_reduce", used, folded(doubled, dtype)), ("all_gather", gathered, torch.cat(doubled))):
        if not torch.equal(got, expected):
            wrong = (got != expected).nonzero().flatten()
            at = int(wrong[0])
            raise SystemExit(f"rank {rank.rank}, turn {turn}: {what} of {count} {dtype}: {wrong.numel()} elements differ, the first, {at}: "
                             f"{got[at].item()}, not {expected[at].item()}")


def main():
    rank = Rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    beside = torch.cuda.Stream()
    for turn in range(TURNS):
        if turn % 4 < 2:
            one_turn(rank, turn)
        else:
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                one_turn(rank, turn)
            torch.cuda.current_stream().wait_stream(beside)
        if turn % 10 == 9:
            torch.cuda.empty_cache()
    rank.end()
    print(f"{2 * TURNS} operations checked, {torch.cuda.memory_reserved() >> 20} MiB reserved")


if __name__ == "__main__":
    main()
