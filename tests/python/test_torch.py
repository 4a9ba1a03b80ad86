"""commd as torch's backend. It runs where torch is installed; `make check-torch` runs it with Debian's torch."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile

import pytest

from ranks import Daemons, ROOT, finish

torch = pytest.importorskip("torch", reason="torch is not installed: make check-torch fetches Debian's")
sys.path.insert(0, str(ROOT / "tests/torch"))
# torch imports the entry points torch.backends itself. Debian's torch 2.14 does so, too.
LOADS_AT_IMPORT = hasattr(torch, "_import_device_backends")
CASES = ROOT / "tests/torch/cases.py"


def names(mark):
    """The names of the cases that are marked so."""
    texts = [path.read_text() for path in sorted((ROOT / "tests/torch").glob("cases_*.py"))]
    return [name for text in texts for name in re.findall(rf"^@{mark}\ndef (\w+)", text, re.MULTILINE)]


class Outside:
    """Nodes whose daemons run outside of the root file system that has torch. TEST_TORCH_SOCKETS has their sockets."""

    def __init__(self, sockets):
        self.sockets = dict(enumerate(sockets))
        self.names = list(self.sockets)
        self.processes = []

    def start(self, command, node=None, **more):
        environment = dict(os.environ, COMMD_SOCKET=self.sockets[node or 0], **more) if "COMMD_SOCKET" not in more else dict(os.environ, **more)
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=environment)
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def nodes(*names):
    sockets = os.environ.get("TEST_TORCH_SOCKETS")
    return Outside(sockets.split(",")[:len(names)]) if sockets else Daemons(names)


@pytest.fixture(scope="module")
def daemons():
    made = nodes("solo")
    yield made
    made.close()


@pytest.fixture(scope="module")
def two_nodes():
    made = nodes("alpha", "beta")
    yield made
    made.close()


def start(daemons, size, command, init, **more):
    return [daemons.start([sys.executable, "-B", *command], daemons.names[rank % len(daemons.names)], RANK=str(rank), WORLD_SIZE=str(size),
                          USE_LIBUV="0", TEST_INIT=init, **more) for rank in range(size)]


def run_cases(daemons, size):
    """What the ranks say of each case: [(failure or None, reason of a skip or None)] by name."""
    found = {}
    for process in start(daemons, size, [CASES, f"commd://cases-{os.getpid()}-{size}"], ""):
        output, errors = finish(process, check=False)[1:3]
        for line in output.splitlines():
            if line.startswith('{"case"'):
                said = json.loads(line)
                found.setdefault(said["case"], []).append((said["failure"], said["skipped"]))
        found.setdefault("errors", []).append(errors[-1000:])
    return found


@pytest.fixture(scope="module")
def of_three(daemons):
    return run_cases(daemons, 3)


@pytest.fixture(scope="module")
def of_four(two_nodes):
    return run_cases(two_nodes, 4)


def check_case(results, name, size):
    said = results.get(name, [])
    assert [failure for failure, _ in said if failure] == []
    assert len(said) == size, f"not all ranks have come so far: an earlier case has failed. {results['errors']}"
    if said[0][1]:
        pytest.skip(said[0][1])


@pytest.mark.parametrize("name", names("case"))
def test_case(of_three, name):
    check_case(of_three, name, 3)


@pytest.mark.parametrize("name", names("case_of_four"))
def test_case_of_four(of_four, name):
    check_case(of_four, name, 4)


def run_text(daemons, size, text, init="commd://" , **more):
    """Runs a program on each rank: `dist`, `torch`, `rank` and `size` are there, and the group is made."""
    run_text.count = getattr(run_text, "count", 0) + 1
    start_text = ("import datetime, os, sys, time\nimport torch, torch.distributed as dist\nimport commd.torch\n"
                  "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
                  "dist.init_process_group('commd', init_method=os.environ['TEST_INIT'], rank=rank, world_size=size,"
                  " timeout=datetime.timedelta(seconds=30))\n")
    return start(daemons, size, ["-c", start_text + text], f"commd://text-{os.getpid()}-{run_text.count}", **more)


def test_a_rank_that_dies_is_noticed(daemons):
    text = ("dist.all_reduce(torch.ones(1))\nprint('ready', flush=True)\n"
            "if rank == 1: time.sleep(60)\n"
            "began = time.monotonic()\n"
            "try: dist.all_reduce(torch.ones(1))\n"
            "except dist.DistBackendError as error: print(error.result.name, error.ranks, time.monotonic() - began < 20, flush=True)\n")
    processes = run_text(daemons, 3, text)
    assert processes[1].stdout.readline() == "ready\n"
    processes[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        assert finish(processes[rank])[1].splitlines()[-1] == "RANK_LOST (1,) True"


SHRINKS = """
shrink = getattr(dist, 'shrink_group', commd.torch.shrink_group)
def total(group=None):
    tensor = torch.full((5,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    return int(tensor[0])
def refused(kind, *arguments):
    try: shrink(*arguments)
    except kind as error: return str(error)
    raise AssertionError(f'{arguments} was not refused')
dist.new_group([0, 2])
for wrong in [4], [], [1, 1], [0, 1, 2, 3]: refused(ValueError, wrong)
refused(TypeError, ['1'])
refused(RuntimeError, [rank])
assert total() == 10
print('ready', flush=True)
if rank == 1: time.sleep(60)
try: total()
except dist.DistBackendError as error: lost = list(error.ranks)
assert 'lost' in refused(ValueError, [0 if rank else 2]), lost
group = shrink(lost)
assert group is dist.group.WORLD and (dist.get_rank(), dist.get_world_size()) == ([0, 2, 3].index(rank), 3) and total() == 8
tensor = torch.tensor([rank])
dist.broadcast(tensor, 2)
assert tensor.item() == 3
part = dist.new_group([2, 0, 1])
if dist.get_rank() != 1:
    assert total(shrink([1], part, 1)) == 5 and dist.get_process_group_ranks(list(dist.distributed_c10d._world.pg_map)[-1]) == [0, 2]
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 30))
ddp(torch.ones(2, 30)).sum().backward()
dist.barrier()
if rank == 3:
    print('left', flush=True)
    sys.exit()
shrink([2])
assert total() == 4 and dist.get_world_size() == 2
if rank == 0: dist.group.WORLD.abort('enough')
for _ in range(2):
    try: dist.barrier()
    except dist.DistBackendError: pass
commd.torch.shrink_group()
assert total() == 4 and dist.get_rank() == rank // 2
print('went on', flush=True)
dist.destroy_process_group()
"""


def test_groups_shrink(two_nodes):
    """A rank dies, another one leaves, and a group is aborted: the ranks that are left go on with smaller groups."""
    processes = run_text(two_nodes, 4, SHRINKS)
    assert processes[1].stdout.readline() == "ready\n"
    processes[1].send_signal(signal.SIGKILL)
    assert [finish(processes[rank])[1].splitlines()[-1] for rank in (0, 2, 3)] == ["went on", "went on", "left"]


def test_ddp_fails_well_if_a_rank_dies(daemons):
    text = ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\n"
            "for step in range(10 ** 6):\n"
            "    if rank == 1 and step == 5: os._exit(0)\n"
            "    try: model(torch.ones(2, 300)).sum().backward()\n"
            "    except RuntimeError as error:\n"
            "        print('told', 'rank 1' in str(error), flush=True)\n"
            "        break\n")
    processes = run_text(daemons, 3, text)
    for rank in (0, 2):
        assert "told True" in finish(processes[rank])[1]


def test_ctrl_c_ends_a_wait(daemons):
    text = ("if rank == 1: time.sleep(20)\n"
            "try:\n"
            "    print('ready', flush=True)\n"
            "    dist.recv(torch.ones(1), 1)\n"
            "except KeyboardInterrupt: print('interrupted', flush=True); os._exit(0)\n")
    processes = run_text(daemons, 2, text)
    assert processes[0].stdout.readline() == "ready\n"
    processes[0].send_signal(signal.SIGINT)
    assert "interrupted" in finish(processes[0])[1]
    processes[1].kill()


def test_the_group_is_made_again(daemons):
    text = ("for turn in range(3):\n"
            "    if turn: dist.init_process_group('commd', init_method=os.environ['TEST_INIT'], rank=rank, world_size=size)\n"
            "    tensor = torch.full((3,), float(rank + turn))\n"
            "    dist.all_reduce(tensor)\n"
            "    assert tensor.tolist() == [1.0 + 2 * turn] * 3, tensor\n"
            "    dist.destroy_process_group()\n"
            "print('fine')\n")
    for process in run_text(daemons, 2, text):
        assert finish(process)[1] == "fine\n"


def test_two_nodes(two_nodes):
    text = ("tensor = torch.arange(100000.0) * (rank + 1)\ndist.all_reduce(tensor)\n"
            "assert torch.equal(tensor, torch.arange(100000.0) * 10)\nprint('fine')\n")
    for process in run_text(two_nodes, 4, text):
        assert finish(process)[1] == "fine\n"


def test_detailed_debugging(daemons):
    text = ("tensor = torch.ones(3)\ndist.all_reduce(tensor)\nassert tensor[0] == size\n"
            "try: dist.all_reduce(torch.ones(2 + rank))\n"
            "except RuntimeError as error: print('told', error.result.name)\n")
    for process in run_text(daemons, 2, text, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "told MISMATCH" in finish(process)[1]


@pytest.mark.parametrize("size", [2, 4])
def test_torchrun(daemons, tmp_path, size):
    program = tmp_path / "program.py"
    program.write_text("import os, torch, torch.distributed as dist\nimport commd.torch\n"
                       f"dist.init_process_group('commd', init_method='commd://torchrun-{os.getpid()}-{size}')\n"
                       "tensor = torch.ones(1)\ndist.all_reduce(tensor)\nos.write(1, f'sum {tensor.item()}\\n'.encode())\ndist.destroy_process_group()\n")
    # Debian's newest torch has no libuv, which torchrun's other ways to meet ask for. So torchrun meets in a file, and the ranks in commd.
    process = daemons.start([sys.executable, "-B", "-m", "torch.distributed.run", "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path}/meeting",
                             "--rdzv-conf=store_type=file", f"--nproc-per-node={size}", program], USE_LIBUV="0", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert finish(process)[1].count(f"sum {float(size)}") == size


def installed(folder):
    """The package as a system's package has it, with the metadata by which torch finds it. Returns a value for PYTHONPATH."""
    finish(subprocess.Popen([sys.executable, "-B", ROOT / "client/python/build_wheel.py", "--unpacked", "--version", "1.0", "--out", folder],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return str(folder)


def test_torchrun_of_two_nodes_meets_in_commd(two_nodes, tmp_path):
    """Nobody names a host, a port or a file; the program does not even name the job."""
    program, path = tmp_path / "program.py", installed(tmp_path / "installed")
    program.write_text("import os, torch, torch.distributed as dist, commd.torch\n"
                       "dist.init_process_group('commd', init_method='commd://')\n"
                       "tensor = torch.ones(1)\ndist.all_reduce(tensor)\nos.write(1, f'sum {tensor.item()}\\n'.encode())\ndist.destroy_process_group()\n")
    agents = [two_nodes.start([sys.executable, "-B", "-m", "torch.distributed.run", "--rdzv-backend=commd", f"--rdzv-id=meet-{os.getpid()}", "--nnodes=2",
                               "--nproc-per-node=2", program], node, USE_LIBUV="0", PYTHONPATH=path) for node in two_nodes.names]
    assert [finish(agent)[1].count("sum 4.0") for agent in agents] == [2, 2]


def test_torchrun_needs_the_name_of_the_job(daemons, tmp_path):
    agent = daemons.start([sys.executable, "-B", "-m", "torch.distributed.run", "--rdzv-backend=commd", "--nproc-per-node=1", "program.py"],
                          PYTHONPATH=installed(tmp_path))
    code, _, errors = finish(agent, check=False)
    assert code != 0 and "name the job by --rdzv-id=JOB" in errors


@pytest.mark.parametrize("variables, place, job", [
    ({"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, (1, 3), "a-5"),
    ({"COMMD_RANK": "2", "COMMD_SIZE": "4", "COMMD_JOB": "job", "RANK": "0", "WORLD_SIZE": "9"}, (2, 4), "job"),
    # torchrun inside of commctl run: the inner one counts
    ({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "7", "RANK": "5", "WORLD_SIZE": "6", "COMMD_RANK": "0", "COMMD_SIZE": "1"}, (5, 6), "none-7"),
    ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "88", "SLURM_STEP_ID": "0"}, (1, 2), "88-0"),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "n"}, (3, 4), "n"),
    ({"PALS_RANKID": "1", "PMI_SIZE": "2", "PALS_APID": "p"}, (1, 2), "p"), ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2), None),
    ({"RANK": "1"}, None, None), ({"RANK": "x", "WORLD_SIZE": "2"}, None, None), ({"RANK": "2", "WORLD_SIZE": "2"}, None, None), ({}, None, None)])
def test_launchers(monkeypatch, variables, place, job):
    from commd.torch import _rendezvous
    launchers = {name for each in _rendezvous._LAUNCHERS for name in (each.mark, each.rank, *each.sizes, *each.job)}
    for name in launchers | set(variables):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for function, expected in ((_rendezvous._place, place), (_rendezvous._job, job)):
        if expected is None:
            with pytest.raises(ValueError, match="commd://: "):
                function("commd://")
        else:
            assert function("commd://") == expected
    assert _rendezvous._place("commd://x?rank=1&world_size=2") == (1, 2)
    assert _rendezvous._job("commd://x/y?rank=1") == "x/y"


def test_a_lost_daemon_is_noted():
    """The next group opens a new connection."""
    from commd import client
    from commd.torch import _failures
    lost = client.Client.__new__(client.Client)
    lost.calls, lost.handle, lost.lost = client._library.load(), None, False
    assert _failures.of_call(lost, 15, "all_reduce").result.name == "RANK_LOST" and not lost.lost
    assert _failures.of_call(lost, 13, "all_reduce").result.name == "DAEMON_LOST" and lost.lost


def test_ctrl_c_ends_the_start(daemons):
    """Rank 1 waits for a rank 0 that never comes."""
    text = ("import os, time, torch.distributed as dist, commd.torch\nprint('ready', flush=True)\n"
            "try: dist.init_process_group('commd', init_method='commd://alone-%d' % os.getpid(), rank=1, world_size=2)\n"
            "except KeyboardInterrupt: print('interrupted', flush=True)\n")
    process = daemons.start([sys.executable, "-B", "-c", text])
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # it waits now, or will notice the signal before
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert "interrupted" in finish(process)[1] and time.monotonic() - began < 20


def test_gloo_beside(daemons):
    text = ("beside = dist.new_group(backend='gloo')\nfor group in (beside, None):\n"
            "    tensor = torch.ones(1)\n    dist.all_reduce(tensor, group=group)\n    assert tensor.item() == size\nprint('fine')\n")
    for process in run_text(daemons, 2, text):
        assert "fine" in finish(process)[1]


def test_no_daemon_is_one_clear_exception(daemons):
    text = ("import torch.distributed as dist, commd.torch\n"
            "try: dist.init_process_group('commd', init_method='commd://x', rank=0, world_size=1)\n"
            "except RuntimeError as error: print(error.result.name)\n")
    process = daemons.start([sys.executable, "-B", "-c", text], COMMD_SOCKET="/nonexistent/commd.sock")
    assert finish(process)[1] == "DAEMON_LOST\n"


def test_import_is_light(daemons):
    text = "import sys, commd\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    finish(daemons.start([sys.executable, "-B", "-c", text]))
    text = "import commd.torch, sys\nassert 'commd.torch._group' not in sys.modules\n"
    finish(daemons.start([sys.executable, "-B", "-c", text]))


def test_torchrun_starts_the_ranks_again(daemons, tmp_path):
    """A worker dies in the middle of DDP. torchrun ends the others, starts all again, and they go on from the last checkpoint."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, torch, torch.distributed as dist\nimport commd.torch\n"
        f"dist.init_process_group('commd', init_method='commd://again-{os.getpid()}')\n"
        "rank, turn, saved = dist.get_rank(), int(os.environ['TORCHELASTIC_RESTART_COUNT']), 'checkpoint.pt'\n"
        "torch.manual_seed(1)\nmodel = torch.nn.Linear(4, 4)\nbegin = 0\n"
        "if os.path.exists(saved):\n"
        "    state = torch.load(saved)\n    model.load_state_dict(state['model'])\n    begin = state['step']\n"
        "wrapped = torch.nn.parallel.DistributedDataParallel(model)\n"
        "for step in range(begin, 6):\n"
        "    wrapped(torch.ones(2, 4) * (rank + 1)).sum().backward()\n"
        "    if rank == 0: torch.save({'model': model.state_dict(), 'step': step + 1}, saved + '.part'); os.replace(saved + '.part', saved)\n"
        "    dist.barrier()\n"
        "    if rank == 1 and turn == 0 and step == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.write(1, f'turn {turn} began at {begin} and ended\\n'.encode())\ndist.destroy_process_group()\n")
    process = daemons.start([sys.executable, "-B", "-m", "torch.distributed.run", "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path}/meeting",
                             "--rdzv-conf=store_type=file", "--max-restarts=1", "--monitor-interval=0.2", "--nproc-per-node=3",
                             "--no-python", "env", "-C", tmp_path, sys.executable, "-B", program], USE_LIBUV="0", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert finish(process)[1].count("turn 1 began at 4 and ended") == 3


def test_ctrl_c_in_the_middle_of_ddp(daemons):
    """All ranks are interrupted, as by a terminal. Each ends soon, by the interrupt or because another rank has left before it."""
    text = ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\n"
            "for step in range(10 ** 6):\n"
            "    model(torch.ones(2, 300)).sum().backward()\n"
            "    if step == 5: print('ready', flush=True)\n")
    processes = run_text(daemons, 3, text)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGINT)
    ended = [finish(process, check=False) for process in processes]
    assert time.monotonic() - began < 20
    for code, _, errors in ended:
        assert code in (1, -signal.SIGINT) and ("KeyboardInterrupt" in errors or "BackendError" in errors or "RuntimeError" in errors), ended
    assert any("KeyboardInterrupt" in errors for _, _, errors in ended), ended


def test_desynchronised_ranks_are_reported(daemons):
    """With torch's detailed debugging, too, each rank's exception and records show who called what."""
    text = ("dist.all_reduce(torch.ones(3))\n"
            "try:\n"
            "    if rank == 1: dist.broadcast(torch.ones(3), 0)\n"
            "    else: dist.all_reduce(torch.ones(3))\n"
            "except RuntimeError as error:\n"
            "    entries = [each for each in commd.torch.flight_records()['entries'] if each['error']]\n"
            "    print('told', error.result.name, 'broadcast' in str(error), 'all_reduce' in str(error), 'rank 1' in str(error), len(entries))\n"
            "    assert commd.torch.last_failure() is error or str(commd.torch.last_failure()) == str(error)\n")
    for process in run_text(daemons, 3, text, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "told MISMATCH True True True 1" in finish(process)[1]


def test_detailed_debugging_of_ddp(daemons):
    text = ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 30))\n"
            "for step in range(3): model(torch.ones(2, 30)).sum().backward()\nprint('fine')\n")
    for process in run_text(daemons, 2, text, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "fine" in finish(process)[1]


def test_torch_may_keep_its_buckets(daemons):
    """DDP_DISABLE_COMM_MEM=1 is torch's own switch."""
    text = ("from commd.torch._memory import is_shared\nseen = []\n"
            "def hook(state, bucket):\n"
            "    seen.append(is_shared(bucket.buffer()))\n"
            "    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\nmodel.register_comm_hook(None, hook)\n"
            "for step in range(3): model(torch.ones(2, 300)).sum().backward()\nprint(seen)\n")
    for process in run_text(daemons, 2, text, DDP_DISABLE_COMM_MEM="1"):
        assert finish(process)[1] == "[False, False, False]\n"


def test_a_program_that_ends_in_the_middle(daemons):
    """Nothing was destroyed, futures are pending, and a receive never ends: the interpreter ends as usual."""
    text = ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\n"
            "model(torch.ones(2, 300)).sum().backward()\n"
            "pending = dist.irecv(torch.zeros(4), 1 - rank)\n"
            "futures = [dist.all_reduce(torch.ones(100000), async_op=True).get_future() for _ in range(20)] + [pending.get_future()]\n"
            "print('fine', flush=True)\n")
    for process in run_text(daemons, 2, text):
        assert finish(process)[1] == "fine\n"


def test_programs_that_end_with_ddp(daemons):
    """The thread that completed the last step's futures does not disturb the interpreter's end."""
    text = ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\n"
            "for step in range(3): model(torch.ones(2, 300)).sum().backward()\n")
    for _ in range(3):
        for process in run_text(daemons, 2, text):
            finish(process)


def test_the_installed_wheel_needs_no_import(daemons, tmp_path):
    """In a fresh virtual environment, torch finds the backend, and its store, by the package's entry points."""
    wheel = os.environ.get("TEST_TORCH_WHEEL")
    if not wheel:
        pytest.skip("the wheel is not built: make check-torch builds it")
    folder = tmp_path / "environment"
    finish(daemons.start([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder]))
    site = next(folder.glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)  # Debian's minimal system has no pip; of a wheel without data, pip does no more
    text = ("import os, sys, torch, torch.distributed as dist\nassert 'commd.torch._group' not in sys.modules\n"
            "dist.init_process_group('commd', init_method=os.environ['TEST_INIT'])\n"
            "import commd\nassert commd.__file__.startswith(sys.prefix), commd.__file__\n"
            "tensor = torch.ones(1)\ndist.all_reduce(tensor)\nassert tensor.item() == dist.get_world_size() == 2\n"
            "dist.destroy_process_group()\nprint('fine')\n")
    for init in ("env://", f"commd://wheel-{os.getpid()}") if LOADS_AT_IMPORT else ("env://",):
        processes = [daemons.start([folder / "bin/python", "-B", "-c", text], daemons.names[0], RANK=str(rank), WORLD_SIZE="2", USE_LIBUV="0",
                                   TEST_INIT=init, PYTHONPATH="", COMMD_LIBRARY="", MASTER_ADDR="127.0.0.1", MASTER_PORT="29617") for rank in range(2)]
        for process in processes:
            assert finish(process)[1] == "fine\n"
