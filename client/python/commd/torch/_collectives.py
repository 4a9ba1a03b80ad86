"""The collectives of a process group, under the names of torch 2.6 and of later ones."""
from __future__ import annotations

import contextlib
import ctypes

import torch

from .. import _library
from . import _failures
from ._barrier import EarlierFailures
from ._sparse import all_reduce_sparse
from ._tensors import (Buffers, check_dense, dtype_for_copy, dtype_for_reduction, only, operator_of, same_dtype)
from ._work import Several, Work

_profiling = torch._C._autograd._profiler_enabled
_OPTIONS_SIZE = ctypes.sizeof(_library.CallOptions)
_NO_DEADLINE = 0


def _pointers(tensors):
    """Returns the tensors' addresses as the library takes them. A tensor without elements may have none."""
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() or None for tensor in tensors])


def _sizes(counts):
    return (ctypes.c_size_t * len(counts))(*counts)


class Collectives:
    """Operations of all ranks. Each returns a Work."""

    # --- how an operation is submitted ---

    def start(self, name: str, call, arguments, buffers, value, opts=None, factor: float = 1.0, tensor=None,
              collective: bool = True) -> Work:
        """Submits one operation: call(handle, *arguments, options). buffers: what it works on. value: its results."""
        if self.handle is None:
            self.check_open()
        timeout_ms = _timeout_of(opts)
        if collective:
            self._seq += 1
        work = Work(self, name, self._seq if collective else 0, buffers, value, timeout_ms)
        options = _library.CallOptions(_OPTIONS_SIZE, timeout_ms, factor, None, work.new_request())
        if _profiling():
            work._profile = torch.autograd.profiler.record_function(f"commd:{name}")
            work._profile.__enter__()
        if not collective:
            work.expect_message()
        self.record(work)
        if tensor is not None and tensor.is_cuda:
            self._start_on_stream(work, call, arguments, options, tensor, buffers)
        else:
            result = call(self.handle, *arguments, ctypes.byref(options))
            if result != 0:
                self._refused(work, result)
        together = getattr(self._collected, "together", None)
        if together is None:
            self.keep(work)
        else:
            together.append(work)
        collected = getattr(self._collected, "works", None)
        if collected is not None:
            collected.append(work)
        return work

    def _start_on_stream(self, work, call, arguments, options, tensor, buffers) -> None:
        """A GPU's stream orders the operation; the host does not wait for it."""
        from ._streams import Order

        order = Order(tensor.device)
        order.begin()
        options.stream = order.pointer
        options.request = None
        result = call(self.handle, *arguments, ctypes.byref(options))
        if result != 0:
            self._refused(work, result)
        order.submitted()
        work.follow_stream(order)

    def _refused(self, work, result: int) -> None:
        error = _failures.of_call(self._client, result, work.operation, self.context())
        work.abandon(error)
        raise error

    @contextlib.contextmanager
    def _together(self):
        """The library submits what is started in here as one group. Its works are known to others only after that."""
        result = self.calls.comm_group_begin()
        if result != 0:
            raise _failures.of_call(self._client, result, "group", self.context())
        works = self._collected.together = []
        try:
            yield
        finally:
            self._collected.together = None
            result = self.calls.comm_group_end()
            error = _failures.of_call(self._client, result, "group", self.context()) if result != 0 else None
            for work in works:
                if error is None:
                    self.keep(work)
                else:
                    work.abandon(error)
        if error is not None:
            raise error

    def _start_coalescing(self, device=None) -> None:
        """Collects the works of this thread until _end_coalescing."""
        self._collected.works = []

    def _end_coalescing(self, device=None):
        works, self._collected.works = getattr(self._collected, "works", None) or [], None
        return Several(self, works)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # --- reductions ---

    def allreduce(self, tensors, opts=None):
        tensor = only(tensors, "all_reduce")
        if tensor.is_sparse:
            return all_reduce_sparse(self, tensor, opts)
        operator, factor = operator_of(_reduce_op(opts))
        buffers = Buffers()
        target = buffers.write(tensor, fill=True)
        address = target.data_ptr()
        return self.start("all_reduce", self.calls.comm_all_reduce,
                          (address, address, target.numel(), dtype_for_reduction(target), operator), buffers, [tensor],
                          opts, factor, target)

    def allreduce_sparse(self, tensors, opts=None):
        return all_reduce_sparse(self, only(tensors, "all_reduce"), opts)

    def allreduce_coalesced(self, tensors, opts=None):
        same_dtype(tensors)
        with self._together():
            works = [self.allreduce([tensor], opts) for tensor in tensors]
        return Several(self, works)

    def reduce(self, tensors, opts):
        tensor = only(tensors, "reduce")
        root = opts.rootRank
        operator, factor = operator_of(opts.reduceOp)
        buffers = Buffers()
        target = buffers.write(tensor, fill=True) if root == self._rank else buffers.read(tensor)
        address = target.data_ptr()
        return self.start("reduce", self.calls.comm_reduce,
                          (address, address, target.numel(), dtype_for_reduction(target), operator, root), buffers,
                          [tensor], opts, factor, target)

    def reduce_scatter_single(self, output, source, opts=None):
        """Reduces `source`, of one block for each rank; this rank's block goes to `output`."""
        if source.numel() != output.numel() * self._size:
            raise ValueError(f"reduce_scatter: the input must have {self._size} times the output's elements: it has "
                             f"{source.numel()}, the output {output.numel()}")
        same_dtype([source, output])
        operator, factor = operator_of(_reduce_op(opts))
        buffers = Buffers()
        read, target = buffers.read(source), buffers.write(output)
        return self.start("reduce_scatter", self.calls.comm_reduce_scatter,
                          (read.data_ptr(), target.data_ptr(), target.numel(), dtype_for_reduction(target), operator),
                          buffers, [output], opts, factor, target)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        with self._together():
            works = [self.reduce_scatter_single(output, source, opts) for output, source in zip(outputs, inputs)]
        return Several(self, works)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs, inputs, opts=None):
        output, sources = only(outputs, "reduce_scatter"), only_list(inputs, "reduce_scatter")
        self._check_blocks("reduce_scatter", sources)
        same_dtype([output, *sources])
        if sources[self._rank].numel() != output.numel():
            raise ValueError(f"reduce_scatter: the output has {output.numel()} elements, this rank's input "
                             f"{sources[self._rank].numel()}")
        operator, factor = operator_of(_reduce_op(opts))
        buffers = Buffers()
        reads, target = [buffers.read(source) for source in sources], buffers.write(output)
        counts = _sizes([read.numel() for read in reads])
        return self.start("reduce_scatter", self.calls.comm_reduce_scatter_list,
                          (_pointers(reads), target.data_ptr(), counts, dtype_for_reduction(target), operator), buffers,
                          [output], opts, factor, target)

    # --- copies ---

    def broadcast(self, tensors, opts=None):
        tensor = only(tensors, "broadcast")
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else 0
        buffers = Buffers()
        target = buffers.write(tensor, fill=True) if root != self._rank else buffers.read(tensor)
        dtype, count = dtype_for_copy(target)
        return self.start("broadcast", self.calls.comm_broadcast, (target.data_ptr(), count, dtype, root), buffers,
                          [tensor], opts, tensor=target)

    def all_gather_single(self, output, source, opts=None):
        """`output` gets the tensors of all ranks, one after the other."""
        if output.numel() != source.numel() * self._size:
            raise ValueError(f"all_gather: the output must have {self._size} times the input's elements: it has "
                             f"{output.numel()}, the input {source.numel()}")
        same_dtype([output, source])
        buffers = Buffers()
        read, target = buffers.read(source), buffers.write(output)
        dtype, count = dtype_for_copy(read)
        return self.start("all_gather", self.calls.comm_all_gather, (read.data_ptr(), target.data_ptr(), count, dtype),
                          buffers, [output], opts, tensor=target)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        with self._together():
            works = [self.all_gather_single(output, source, opts) for output, source in zip(outputs, inputs)]
        return Several(self, works)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts=None):
        targets, source = only_list(outputs, "all_gather"), only(inputs, "all_gather")
        self._check_blocks("all_gather", targets)
        same_dtype([source, *targets])
        if targets[self._rank].numel() != source.numel():
            raise ValueError(f"all_gather: the input has {source.numel()} elements, this rank's output "
                             f"{targets[self._rank].numel()}")
        buffers = Buffers()
        read, writes = buffers.read(source), [buffers.write(target) for target in targets]
        dtype = dtype_for_copy(read)[0]
        counts = _sizes([dtype_for_copy(write)[1] for write in writes])
        return self.start("all_gather", self.calls.comm_all_gather_list,
                          (read.data_ptr(), _pointers(writes), counts, dtype), buffers, list(targets), opts, tensor=read)

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """output_lists[rank] gets the inputs of that rank."""
        self._check_lists("all_gather", output_lists, len(inputs))
        with self._together():
            works = [self.allgather([[outputs[index] for outputs in output_lists]], [source], opts)
                     for index, source in enumerate(inputs)]
        return Several(self, works)

    def gather(self, outputs, inputs, opts):
        source, root = only(inputs, "gather"), opts.rootRank
        buffers = Buffers()
        read = buffers.read(source)
        dtype, count = dtype_for_copy(read)
        targets = only_list(outputs, "gather") if root == self._rank else []
        pointers, counts = None, None
        if root == self._rank:
            self._check_blocks("gather", targets)
            same_dtype([source, *targets])
            writes = [buffers.write(target) for target in targets]
            pointers, counts = _pointers(writes), _sizes([dtype_for_copy(write)[1] for write in writes])
        elif outputs and outputs[0]:
            raise ValueError("gather: only the root has outputs")
        return self.start("gather", self.calls.comm_gather_list,
                          (read.data_ptr(), count, pointers, counts, dtype, root), buffers, list(targets), opts,
                          tensor=read)

    def scatter(self, outputs, inputs, opts):
        output, root = only(outputs, "scatter"), opts.rootRank
        buffers = Buffers()
        target = buffers.write(output)
        dtype, count = dtype_for_copy(target)
        pointers, counts = None, None
        if root == self._rank:
            sources = only_list(inputs, "scatter")
            self._check_blocks("scatter", sources)
            same_dtype([output, *sources])
            reads = [buffers.read(source) for source in sources]
            pointers, counts = _pointers(reads), _sizes([dtype_for_copy(read)[1] for read in reads])
        elif inputs and inputs[0]:
            raise ValueError("scatter: only the root has inputs")
        return self.start("scatter", self.calls.comm_scatter_list,
                          (pointers, counts, target.data_ptr(), count, dtype, root), buffers, [output], opts,
                          tensor=target)

    def alltoall(self, outputs, inputs, opts=None):
        self._check_blocks("all_to_all", outputs)
        self._check_blocks("all_to_all", inputs)
        same_dtype([*outputs, *inputs])
        buffers = Buffers()
        reads, writes = [buffers.read(each) for each in inputs], [buffers.write(each) for each in outputs]
        arguments = (_pointers(reads), _sizes([dtype_for_copy(each)[1] for each in reads]), _pointers(writes),
                     _sizes([dtype_for_copy(each)[1] for each in writes]), dtype_for_copy(reads[0])[0])
        return self.start("all_to_all", self.calls.comm_all_to_all_list, arguments, buffers, list(outputs), opts,
                          tensor=reads[0])

    def all_to_all_single(self, output, source, output_splits=(), input_splits=(), opts=None):
        """Row blocks of `source` go to the ranks in turn; `output` gets their blocks. Without sizes, all are equal."""
        same_dtype([output, source])
        buffers = Buffers()
        read, target = buffers.read(source), buffers.write(output)
        dtype = dtype_for_copy(read)[0]
        arguments = (read.data_ptr(), self._rows("input", read, input_splits), None, target.data_ptr(),
                     self._rows("output", target, output_splits), None, dtype)
        return self.start("all_to_all", self.calls.comm_all_to_all_v, arguments, buffers, [output], opts,
                          tensor=target)

    alltoall_base = all_to_all_single

    def _rows(self, what: str, tensor, splits):
        """Returns how many elements each rank's rows have."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ValueError(f"all_to_all: the {what}'s {rows} rows cannot be divided by {self._size} ranks")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or min(splits) < 0 or sum(splits) != rows:
            raise ValueError(f"all_to_all: the {what} has {rows} rows, but the sizes are {list(splits)} for "
                             f"{self._size} ranks")
        each = dtype_for_copy(tensor)[1] // rows if rows else 0
        return _sizes([split * each for split in splits])

    def barrier(self, opts=None):
        return self.start("barrier", self.calls.comm_barrier, (), EarlierFailures(self), [], opts)

    def monitored_barrier(self, opts=None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. If some do not come in time, the exception names them."""
        from ._barrier import wait_monitored

        wait_monitored(self, getattr(opts, "timeout", opts), wait_all_ranks)

    def _check_lists(self, name: str, lists, count: int) -> None:
        if len(lists) != self._size or any(len(each) != count for each in lists):
            raise ValueError(f"{name}: for each of {self._size} ranks a list of {count} outputs is needed")

    def _check_blocks(self, name: str, tensors) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{name}: one tensor for each of {self._size} ranks is needed, not {len(tensors)}")
        for tensor in tensors:
            check_dense(tensor)


def only_list(lists, what: str):
    """Returns the only list of a list of lists."""
    if len(lists) != 1:
        raise ValueError(f"{what}: commd takes one list of tensors for each process, not {len(lists)}")
    return lists[0]


def _reduce_op(opts):
    """Returns the reduction of torch's options. The options may be the reduction itself, or None for a sum."""
    if opts is None:
        return torch.distributed.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _timeout_of(opts) -> int:
    """Returns a call's own deadline in milliseconds, or 0 for the group's."""
    timeout = getattr(opts, "timeout", None)
    if timeout is None or timeout.days < 0:
        return _NO_DEADLINE
    return max(1, min(0xFFFFFFFE, timeout.days * 86400000 + timeout.seconds * 1000 + timeout.microseconds // 1000))
