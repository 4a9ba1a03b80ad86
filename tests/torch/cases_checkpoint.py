"""Four ranks as a mesh of two by two: sharded training, and checkpoints that are loaded in another layout."""
import datetime
import shutil

import torch
import torch.distributed as dist

from case import case_of_four, data, rejected, same, shared_folder, skip


def mesh_of(*shape, names=None):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@case_of_four
def checkpoint_in_another_layout(rank, size):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    folder = shared_folder(rank)
    whole = torch.arange(48.0).view(8, 6)
    square = mesh_of(2, 2, names=("replicas", "shards"))
    state = {"weight": distribute_tensor(whole, square, [Shard(0), Shard(1)]), "plain": data(0), "step": 17}
    checkpoint.save(state, checkpoint_id=folder)
    row = mesh_of(4)
    for place, mesh in (([Shard(1), Replicate()], square), ([Shard(0)], row)):
        target = distribute_tensor(torch.full_like(whole, -1.0), mesh, place)
        loaded = {"weight": target, "plain": torch.zeros(10), "step": 0}
        checkpoint.load(loaded, checkpoint_id=folder)
        same(loaded["weight"].full_tensor(), whole)
        same(loaded["plain"], data(0))
        assert loaded["step"] == 17
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@case_of_four
def checkpoint_in_the_background(rank, size):
    import torch.distributed.checkpoint as checkpoint
    folder = shared_folder(rank)
    group = dist.new_group(backend="gloo") if not _takes_any_cpu_group() else None
    future = checkpoint.async_save({"values": data(0, 1000), "step": 3}, checkpoint_id=folder, process_group=group)
    getattr(future, "upload_completion", future).result(10)
    loaded = {"values": torch.zeros(1000), "step": 0}
    checkpoint.load(loaded, checkpoint_id=folder)
    same(loaded["values"], data(0, 1000))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def _takes_any_cpu_group():
    """async_save wants a group that works on the CPU, and finds out by its devices."""
    return torch.device("cpu") in dist.group.WORLD._device_types


@case_of_four
def checkpoint_of_a_sharded_model(rank, size):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    if not hasattr(torch.cpu.Stream, "record_event"):
        skip("torch 2.6's FSDP2 needs GPUs, with gloo, too")
    from torch.distributed.fsdp import fully_shard
    folder = shared_folder(rank)

    def make(mesh, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model(data(rank, 16).view(2, 8) / 10).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    model, optimizer = make(mesh_of(2, 2, names=("replicas", "shards")), 1)
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    other, other_optimizer = make(mesh_of(4), 2)
    weights, states = get_state_dict(other, other_optimizer)
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=states)
    for mine, loaded in zip(model.parameters(), other.parameters()):
        same(loaded.full_tensor(), mine.full_tensor())
        for name in ("exp_avg", "exp_avg_sq"):
            same(other_optimizer.state[loaded][name].full_tensor(), optimizer.state[mine][name].full_tensor())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@case_of_four
def checkpoint_of_fsdp1(rank, size):
    """State of FSDP1, whole and in shards, is loaded into another model by a checkpoint."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    folder = shared_folder(rank)

    def make(steps):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            wrapped(data(rank, 16).view(2, 8) / 10).square().mean().backward()
            optimizer.step()
        return wrapped, optimizer

    try:
        trained, optimizer = make(3)
    except (RuntimeError, AttributeError) as error:
        skip(f"this torch's FSDP1 does not run on the CPU: {error}")
    trained.clip_grad_norm_(1.0)
    for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
        with FullyShardedDataParallel.state_dict_type(trained, kind):
            trained.load_state_dict(trained.state_dict())
            FullyShardedDataParallel.optim_state_dict(trained, optimizer)
    weights, states = get_state_dict(trained, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    other, other_optimizer = make(1)
    weights, states = get_state_dict(other, other_optimizer)
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=states)
    with FullyShardedDataParallel.summon_full_params(trained), FullyShardedDataParallel.summon_full_params(other):
        for mine, loaded in zip(trained.parameters(), other.parameters()):
            same(loaded.detach(), mine.detach())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@case_of_four
def tensors_and_shards_in_two_dimensions(rank, size):
    """Tensor parallelism along one dimension of the mesh, FSDP2 along the other."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    if not hasattr(torch.cpu.Stream, "record_event"):
        skip("torch 2.6's FSDP2 needs GPUs, with gloo, too")
    from torch.distributed.fsdp import fully_shard
    mesh = mesh_of(2, 2, names=("data", "tensor"))
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    batches = [data(each, 12).view(2, 6) / 10 for each in range(2)]
    (sum(model(each).square().mean() for each in batches) / 2).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    model(batches[mesh["data"].get_local_rank()]).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), expected):
        assert torch.allclose(parameter.grad.full_tensor(), gradient, atol=1e-5)


@case_of_four
def slices_of_a_mesh(rank, size):
    mesh = mesh_of(2, 2, names=("rows", "columns"))
    for name, members in (("rows", [rank % 2, rank % 2 + 2]), ("columns", [rank - rank % 2, rank - rank % 2 + 1])):
        group = mesh[name].get_group()
        assert dist.get_process_group_ranks(group) == members, (name, members)
        tensor = data(rank)
        dist.all_reduce(tensor, group=group)
        same(tensor, sum(data(each) for each in members))


@case_of_four
def split_of_the_world(rank, size):
    """torch.distributed.split_group, which torch itself offers only for groups that are bound to a GPU."""
    part = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    members = [0, 2] if rank % 2 == 0 else [1, 3]
    assert dist.get_process_group_ranks(part) == members
    for _ in range(2):  # parts of a part; and the same parts again
        tensor = data(rank)
        dist.all_reduce(tensor, group=part)
        same(tensor, sum(data(each) for each in members))
        again = dist.split_group(part, [[0, 1]])
        tensor = data(rank)
        dist.broadcast(tensor, members[1], group=again)
        same(tensor, data(members[1]))
    some = dist.split_group(split_ranks=[[0, 3]], timeout=datetime.timedelta(seconds=30), group_desc="outer")
    assert (rank in (0, 3)) == (some is not None and some != dist.GroupMember.NON_GROUP_MEMBER)
    if rank in (0, 3):
        dist.barrier(group=some)
        assert some.group_desc == "outer"
    for wrong in ([], [[]], [[0, 0]], [[0, 4]], [[0, -1]]):
        rejected(ValueError, lambda wrong=wrong: dist.split_group(split_ranks=wrong), "split_group")
    dist.destroy_process_group(part)
    dist.barrier()
