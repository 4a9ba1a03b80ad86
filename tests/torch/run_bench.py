"""`make bench-torch`: tests/bench/bench_torch.py on 2 and 4 processes, with this machine's torch or Debian's."""
import importlib.util
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chroot  # noqa: E402
import torch_image  # noqa: E402
from cluster import ROOT, Cluster  # noqa: E402

LIMIT_S = 300


def main():
    root = None if importlib.util.find_spec("torch") else torch_image.folder(sys.argv[1] if len(sys.argv) > 1 else "sid")
    with Cluster(["solo"], namespaces=False, start=False) as cluster:
        cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cluster.socket("solo")}";\n')
        cluster.start("solo", "--standalone")
        cluster.wait_ready()
        for size in map(int, sys.argv[2:] or ("2", "4")):
            processes = [subprocess.Popen(chroot.command(root, cluster.folder, "python3", ROOT / "tests/bench/bench_torch.py", f"commd://bench-{size}",
                                                         environment={"RANK": str(rank), "WORLD_SIZE": str(size), "COMMD_SOCKET": cluster.socket("solo")}),
                                          stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL if rank else None) for rank in range(size)]
            if any([process.wait(LIMIT_S) for process in processes]):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
