"""Messages from one rank to another, on arrays."""
from __future__ import annotations

from contextlib import nullcontext
from operator import index

from . import _library
from ._buffers import describe, describe_output
from ._group import Group, any_open, current
from .request import Received, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANY_SOURCE = -1
TAG_MAX = (1 << 31) - 1  # tags above are for objects
_OBJECT_TAG = 1 << 31


def _tag_number(tag: int) -> int:
    number = index(tag)
    if not 0 <= number <= TAG_MAX:
        raise ValueError(f"tag must be between 0 and 2^31 - 1: {tag}")
    return number


class Messages:
    """Part of Communicator."""

    if TYPE_CHECKING:
        rank: int
        size: int
        on_gpu: Any
        _library: Any
        _submit: Any
        _check_rank: Any
        _tune: Any

    def send(self, array: Any, dest: int, tag: int = 0, wait: bool = True, timeout: float | None = None, *,
             stream: int | None = None) -> Request | None:
        """Sends an array to a rank. A message of at most 16 KiB is copied, and its send ends at once; others end when
        they are received."""
        return self._send_tagged(array, self._check_rank(dest, "dest"), _tag_number(tag), wait, timeout, stream)

    def _send_tagged(self, array: Any, dest: int, tag: int, wait: bool, timeout: float | None,
                     stream: int | None = None) -> Request | None:
        source = describe(array)
        return self._submit("send", self._library.comm_send, (source.pointer, source.count, source.dtype, dest, tag),
                            (array, source), None, wait, timeout, self._tune(source, stream=stream))

    def recv(self, out: Any, source: int = ANY_SOURCE, tag: int = 0, wait: bool = True, timeout: float | None = None, *,
             stream: int | None = None) -> Received | Request:
        """Receives the oldest message with this tag into `out`, from a rank or ANY_SOURCE. Returns (source, count): the
        message may be shorter than out. If it is longer, or has another dtype, Mismatch is raised."""
        return self._recv_tagged(out, self._check_source(source), _tag_number(tag), wait, timeout, stream)

    def _check_source(self, source: int) -> int:
        number = index(source)
        return number if number == ANY_SOURCE else self._check_rank(number, "source")

    def _recv_tagged(self, out: Any, source: int, tag: int, wait: bool, timeout: float | None,
                     stream: int | None = None) -> Any:
        target = describe_output(out)
        peer = _library.ANY_SOURCE if source == ANY_SOURCE else source
        request = self._submit("recv", self._library.comm_recv, (target.pointer, target.count, target.dtype, peer, tag),
                               (out, target), None, wait=False, timeout=timeout,
                               tune=self._tune(target, stream=stream))
        return request.wait() if wait and not (any_open and current() is not None) else request

    def send_recv(self, array: Any, dest: int, out: Any, source: int = ANY_SOURCE, tag: int = 0,
                  timeout: float | None = None, *, stream: int | None = None) -> Received:
        """Sends and receives at the same time, and waits for both. Returns (source, count) of the message received."""
        dest = self._check_rank(dest, "dest")
        describe(array)  # nothing is begun if the array is unusable
        # Operations in one CUDA stream run one after the other, unless they are in one group.
        with Group(self._library, wait=False) if self.on_gpu else nullcontext():
            receive = self.recv(out, source, tag, wait=False, timeout=timeout, stream=stream)
            send = self.send(array, dest, tag, wait=False, timeout=timeout, stream=stream)
        assert isinstance(receive, Request) and isinstance(send, Request)
        try:
            send.wait()
        finally:
            received = receive.wait()
        return received
