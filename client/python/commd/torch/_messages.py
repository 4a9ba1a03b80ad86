"""Sends and receives of a process group."""
from __future__ import annotations

from .. import _library
from ._tensors import Buffers, dtype_for_copy, only


class Messages:
    """Messages between two ranks. Each call returns a Work."""

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self._size:
            raise ValueError(f"there is no rank {rank} in a group of {self._size}")
        return rank

    def send(self, tensors, rank: int, tag: int = 0):
        tensor = only(tensors, "send")
        buffers = Buffers()
        read = buffers.read(tensor)
        dtype, count = dtype_for_copy(read)
        return self.start("send", self.calls.comm_send,
                          (read.data_ptr(), count, dtype, self._peer(rank), tag & 0xFFFFFFFF), buffers, [tensor],
                          tensor=read, collective=False)

    def recv(self, tensors, rank: int, tag: int = 0):
        return self._receive(tensors, self._peer(rank), tag)

    def recv_anysource(self, tensors, tag: int = 0):
        """Receives from whichever rank sends first. The work's source_rank() tells which."""
        return self._receive(tensors, _library.ANY_SOURCE, tag)

    def _receive(self, tensors, rank: int, tag: int):
        tensor = only(tensors, "recv")
        buffers = Buffers()
        target = buffers.write(tensor, fill=True)
        dtype, count = dtype_for_copy(target)
        return self.start("recv", self.calls.comm_recv, (target.data_ptr(), count, dtype, rank, tag & 0xFFFFFFFF),
                          buffers, [tensor], tensor=target, collective=False)
