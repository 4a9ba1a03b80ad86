"""Training of models: DDP, sharding, tensor parallelism, pipelines, checkpoints."""
import inspect

import torch
import torch.distributed as dist

from case import case, data, same, skip


def ddp_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))


def batch(rank):
    torch.manual_seed(10 + rank)
    return torch.randn(5, 8)


def reference(size, steps):
    model = ddp_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(model(batch(each)).square().mean() for each in range(size)) / size).backward()
        optimizer.step()
    return model


def check_parameters(found, size, steps):
    for mine, other in zip(found, reference(size, steps).parameters()):
        assert torch.allclose(mine, other, atol=1e-5), (mine - other).abs().max()


@case
def ddp(rank, size):
    for options in ({}, {"gradient_as_bucket_view": True, "static_graph": True}, {"bucket_cap_mb": 0.001}):
        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(batch(rank)).square().mean().backward()
            optimizer.step()
        check_parameters(model.parameters(), size, 3)


@case
def ddp_with_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    wrapped(batch(rank)).square().mean().backward()
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        wrapped(batch(rank)).square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    for gradient in gradients:
        first = gradient.clone()
        dist.broadcast(first, 0)
        assert torch.allclose(gradient, first, atol=1e-6)


@case
def ddp_with_built_in_hooks(rank, size):
    """torch has them in C++."""
    for kind, tolerance in ((dist.BuiltinCommHookType.ALLREDUCE, 1e-5), (dist.BuiltinCommHookType.FP16_COMPRESS, 1e-2)):
        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped._register_builtin_comm_hook(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            wrapped(batch(rank)).square().mean().backward()
            optimizer.step()
        for parameter, expected in zip(model.parameters(), reference(size, 4).parameters()):
            assert torch.allclose(parameter, expected, atol=tolerance), (parameter - expected).abs().max()


@case
def fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    if not hasattr(torch.cpu.Stream, "record_event"):
        skip("torch 2.6's FSDP2 needs GPUs, with gloo, too")
    if hasattr(torch.distributed.fsdp, "fully_shard"):
        from torch.distributed.fsdp import fully_shard
    else:
        from torch.distributed._composable.fsdp import fully_shard
    model = ddp_model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch(rank)).square().mean().backward()
        optimizer.step()
    check_parameters([parameter.full_tensor() for parameter in model.parameters()], size, 3)


@case
def communication_buffers_are_shared(rank, size):
    """If torch asks the backend for memory, it gets memory that is shared with commd."""
    from commd.torch._memory import is_shared
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not hasattr(backend, "supports_tensor_alloc"):
        skip("this torch does not ask backends for memory")
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert is_shared(backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu")))
    from torch.distributed.fsdp import fully_shard
    model = ddp_model()
    fully_shard(model)
    if hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        model.set_allocate_memory_from_process_group_for_comm(True)
    model(batch(rank)).square().mean().backward()


@case
def dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 12.0).view(size * 3, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same(sharded.full_tensor(), whole)
    same(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    same((sharded.t() @ sharded).full_tensor(), whole.t() @ whole)


@case
def ddp_buckets_are_shared(rank, size):
    """Buckets are in commd's memory from the first step, also after the reducer has made them again."""
    from commd.torch._memory import is_shared
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 0.001}):
        seen = []

        def hook(group, bucket):
            seen.append(is_shared(bucket.buffer()))
            bucket.buffer().div_(size)
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
        wrapped.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(batch(rank)).square().mean().backward()
            optimizer.step()
        assert len(seen) >= 3 and all(seen), seen
        check_parameters(model.parameters(), size, 3)


@case
def ddp_without_shared_memory(rank, size):
    """If commd's memory is used up, buckets are ordinary memory."""
    import commd
    from commd.torch import _memory
    before = _memory.empty

    def refuse(*_, **__):
        raise commd.errors.LimitReached("no more", commd.errors.Result.LIMIT, "allocate")

    _memory.empty = refuse
    try:
        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    finally:
        _memory.empty = before
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(batch(rank)).square().mean().backward()
        optimizer.step()
    check_parameters(model.parameters(), size, 2)


@case
def ddp_on_gloo_is_left_alone(rank, size):
    from commd.torch._memory import is_shared
    seen = []

    def hook(group, bucket):
        seen.append(is_shared(bucket.buffer()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped = torch.nn.parallel.DistributedDataParallel(ddp_model(), process_group=dist.new_group(backend="gloo"))
    wrapped.register_comm_hook(None, hook)
    for _ in range(2):
        wrapped(batch(rank)).sum().backward()
    assert len(seen) >= 2 and not any(seen), seen


@case
def ddp_accumulates_and_joins(rank, size):
    """Steps without synchronisation, then one with it; and ranks with different numbers of batches."""
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with wrapped.no_sync():
        wrapped(batch(rank)).square().mean().backward()
    wrapped(batch(rank + size)).square().mean().backward()
    alone = ddp_model()
    (sum(alone(batch(each)).square().mean() for each in range(2 * size)) / size).backward()
    for mine, other in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad, other.grad, atol=1e-5)
    steps = 0
    with wrapped.join():
        for step in range(2 + rank):
            wrapped(batch(rank)).sum().backward()
            steps += 1
    assert steps == 2 + rank


@case
def zero_redundancy_optimizer(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = ddp_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(batch(rank)).square().mean().backward()
        optimizer.step()
    check_parameters(model.parameters(), size, 3)
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        assert len(optimizer.state_dict()["param_groups"]) == 1


@case
def zero_overlapped_with_ddp(rank, size):
    """The optimizer's steps and broadcasts run in DDP's hook, while the backward pass goes on."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer
    for kind in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        model = ddp_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
        try:
            hook = kind(default_hooks.allreduce_hook, wrapped, optimizer)
        except RuntimeError as error:
            skip(f"this torch's hooks are for backends that it knows: {error}")
        wrapped.register_comm_hook(None, hook)
        for _ in range(5):
            wrapped(batch(rank)).square().mean().backward()
        for parameter in model.parameters():
            first = parameter.detach().clone()
            dist.broadcast(first, 0)
            assert torch.allclose(parameter, first, atol=1e-6)


@case
def fsdp1(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = ddp_model()
        try:
            wrapped = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id=torch.device("cpu"))
        except (RuntimeError, AttributeError) as error:
            skip(f"this torch's FSDP1 does not run on the CPU: {error}")
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(batch(rank)).square().mean().backward()
            optimizer.step()
        with FullyShardedDataParallel.summon_full_params(wrapped):
            check_parameters([parameter.detach().clone() for parameter in wrapped.parameters()], size, 3)


@case
def tensors_in_shards(rank, size):
    """FSDP1's shards, which torch gathers to one rank on the device that fits the backend."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    shards = sharded_tensor.full(ChunkShardingSpec(0, [f"rank:{each}/cpu" for each in range(size)]), (2 * size, 4), 7.0)
    whole = torch.zeros(2 * size, 4) if rank == 1 else None
    shards.gather(1, whole)
    if rank == 1:
        same(whole, torch.full((2 * size, 4), 7.0))


@case
def interleaved_pipeline(rank, size):
    """Each rank has two layers, and works on them in turn."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(2 * size)]
    inputs, targets = data(0, 16 * size * 6).view(-1, 6) / 10, data(1, 16 * size * 6).view(-1, 6) / 10
    stages = [PipelineStage(layers[each], each, 2 * size, torch.device("cpu")) for each in (rank, rank + size)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2 * size, loss_fn=torch.nn.functional.mse_loss)
    losses = []
    if rank == 0:
        schedule.step(inputs)
    elif rank == size - 1:
        schedule.step(target=targets, losses=losses)
        expected = torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(inputs), targets)
        assert torch.allclose(torch.stack(losses).mean(), expected, atol=1e-6)
    else:
        schedule.step()


@case
def pipeline(rank, size):
    """Each rank has a layer; forward and backward passes go through messages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(size)]
    inputs, targets = data(0, 8 * 6).view(8, 6) / 10, data(1, 8 * 6).view(8, 6) / 10
    whole = torch.nn.Sequential(*layers)
    expected_loss = torch.nn.functional.mse_loss(whole(inputs), targets)
    expected_loss.backward()
    batches = 4
    factor = 1 if "scale_grads" in inspect.signature(Schedule1F1B.__init__).parameters else batches  # torch 2.6 adds the batches' gradients
    expected = [parameter.grad * factor for parameter in layers[rank].parameters()]
    for kind in (ScheduleGPipe, Schedule1F1B):
        layers[rank].zero_grad()
        stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=batches, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=targets, losses=losses)
            assert torch.allclose(torch.stack(losses).mean(), expected_loss, atol=1e-6)
        else:
            schedule.step()
        for parameter, gradient in zip(layers[rank].parameters(), expected):
            assert torch.allclose(parameter.grad, gradient, atol=1e-6), (parameter.grad - gradient).abs().max()


@case
def tensor_parallel(rank, size):
    """A layer split by columns, then one split by rows, is the same as on one rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4 * size), torch.nn.ReLU(), torch.nn.Linear(4 * size, 3))
    inputs = data(0, 20).view(4, 5) / 10
    whole = model(inputs)
    whole.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    split = parallelize_module(model, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    found = split(inputs)
    assert torch.allclose(found, whole, atol=1e-5)
    found.sum().backward()
    for parameter, gradient in zip(split.parameters(), gradients):
        assert torch.allclose(parameter.grad.full_tensor(), gradient, atol=1e-5)


@case
def averaged_parameters(rank, size):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    model = ddp_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank + 1.0)
            parameter.grad = torch.zeros_like(parameter)  # only parameters with gradients are averaged
    PeriodicModelAverager(period=1, warmup_steps=0).average_parameters(model.parameters())
    for parameter in model.parameters():
        same(parameter.detach(), torch.full_like(parameter, (size + 1) / 2))


@case
def batch_norm(rank, size):
    """The running mean and variance are broadcast from rank 0 before each forward pass."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        wrapped(batch(rank)).sum().backward()
    wrapped(batch(rank))  # the forward pass begins with rank 0's buffers
    mean = model[1].running_mean.clone()
    everyone = [torch.empty_like(mean) for _ in range(size)]
    dist.all_gather(everyone, mean)
    assert not mean.isnan().any() and not torch.equal(everyone[0], everyone[1]), "each rank has its own batch"
    assert model[1].num_batches_tracked.item() == 3
