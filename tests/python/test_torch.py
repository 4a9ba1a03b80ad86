"""commd as torch's backend. It runs where torch is installed; `make check-torch` runs it with Debian's torch."""
import json
import os
import signal
import subprocess
import sys

import pytest

from ranks import Daemons, ROOT, finish

torch = pytest.importorskip("torch", reason="torch is not installed: make check-torch fetches Debian's")
sys.path.insert(0, str(ROOT / "tests/torch"))
CASES = ROOT / "tests/torch/cases.py"
NAMES = [line.split("def ")[1].split("(")[0] for before, line in zip(CASES.read_text().splitlines(), CASES.read_text().splitlines()[1:])
         if before == "@case"]


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


@pytest.fixture(scope="module")
def results(daemons):
    """What three ranks say of each case: the first failure, or None."""
    found = {}
    for process in start(daemons, 3, [CASES, f"commd://cases-{os.getpid()}"], ""):
        output = finish(process, check=False)[1]
        for line in output.splitlines():
            said = json.loads(line)
            found.setdefault(said["case"], []).append(said["failure"])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_case(results, name):
    said = results.get(name, [])
    assert [failure for failure in said if failure] == []
    assert len(said) == 3, "not all ranks have come so far: an earlier case has failed"


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
