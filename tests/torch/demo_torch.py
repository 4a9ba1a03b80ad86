"""`make demo-torch`: trains a small transformer on two nodes with two processes each, encrypted between the nodes, and the same through Gloo.

It shows both loss curves. torch is this machine's, else Debian's in a private root file system.
"""
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chroot  # noqa: E402
import torch_image  # noqa: E402
from cluster import ROOT, Cluster  # noqa: E402

RANKS, LIMIT_S, STEPS = 4, 200, 100
WIDTH, HEIGHT = 72, 14


def train(cluster, root, sockets, *arguments):
    """Runs the example on four ranks. Returns [(step, loss, seconds)]."""
    processes = []
    for rank in range(RANKS):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "COMMD_SOCKET": sockets[rank % len(sockets)]}
        command = chroot.command(root, cluster.folder, "python3", ROOT / "client/python/examples/train_torch.py", "--steps", STEPS, *arguments,
                                 environment=environment)
        processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join(output[-2000:] for output in outputs))
    return [(int(step), float(loss), float(seconds)) for step, loss, seconds in re.findall(r"step (\d+) loss ([\d.]+) seconds ([\d.]+)", outputs[0])]


def plot(curves):
    """Draws loss over steps; the first letter of a curve's name is its mark, and * where two meet."""
    points = [point for curve in curves.values() for point in curve]
    low, high, last = min(point[1] for point in points), max(point[1] for point in points), max(point[0] for point in points)
    field = [[" "] * WIDTH for _ in range(HEIGHT)]
    for name, curve in curves.items():
        for step, loss, _ in curve:
            row, column = round((high - loss) / (high - low) * (HEIGHT - 1)), round(step / last * (WIDTH - 1))
            field[row][column] = name[0] if field[row][column] in (" ", name[0]) else "*"
    for number, row in enumerate(field):
        print(f"{high - (high - low) * number / (HEIGHT - 1):6.2f} |{''.join(row)}")
    print(f"       +{'-' * WIDTH}\n        step 1 to {last}; " + ", ".join(f"{name[0]}: {name}" for name in curves) + "; *: several")


def main():
    root = None if importlib.util.find_spec("torch") else torch_image.folder(sys.argv[1] if len(sys.argv) > 1 else "sid")
    curves = {}
    with Cluster(["alpha", "beta"]) as cluster:
        sockets = [cluster.socket("alpha"), cluster.socket("beta")]
        curves["commd, DDP"] = train(cluster, root, sockets, "--init", "commd://demo-ddp")
        with tempfile.NamedTemporaryFile(dir=cluster.folder) as meeting:
            curves["gloo, DDP"] = train(cluster, root, sockets, "--backend", "gloo", "--init", f"file://{meeting.name}-gloo")
        curves["shards: commd, FSDP2"] = train(cluster, root, sockets, "--init", "commd://demo-fsdp", "--shard")
    plot(curves)
    for name, curve in curves.items():
        print(f"{name:22} loss {curve[0][1]:.3f} to {curve[-1][1]:.3f} in {curve[-1][2]:.1f} s")
    worst = max(abs(one[1] - other[1]) for one, other in zip(curves["commd, DDP"], curves["gloo, DDP"]))
    print(f"commd's losses and Gloo's differ by at most {worst:.4f}. commd's two nodes talked through encrypted QUIC; Gloo's ranks through loopback.")
    if worst > 0.05:
        raise SystemExit("the curves differ")


if __name__ == "__main__":
    main()
