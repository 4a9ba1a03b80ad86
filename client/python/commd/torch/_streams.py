"""CUDA streams: where operations on GPU tensors run, and how others wait for them.

As with NCCL, an operation runs on a stream of its own. It begins after the work that is in the current stream at the
call. Work.wait() makes the then current stream wait; the host does not.
"""
from __future__ import annotations

import torch

_streams: dict = {}


def stream_for(device):
    """Returns this process's stream for operations of commd on that GPU."""
    stream = _streams.get(device.index)
    if stream is None:
        stream = _streams[device.index] = torch.cuda.Stream(device)
    return stream


class Order:
    """Orders one operation on a GPU against the program's streams."""

    def __init__(self, device) -> None:
        self.device = device
        self.stream = stream_for(device)
        self.event = torch.cuda.Event()

    @property
    def pointer(self) -> int:
        return self.stream.cuda_stream

    def begin(self) -> None:
        """Before the call: what the current stream holds comes first."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def submitted(self) -> None:
        """After the call: marks the operation's end."""
        self.event.record(self.stream)

    def finish(self, buffers) -> None:
        """The current stream waits for the operation. Then results are copied back, in that stream, if need be."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.event)
        for tensor in buffers.held:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)
        buffers.finish()

    def reached(self) -> bool:
        return self.event.query()
