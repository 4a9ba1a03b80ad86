"""Runs programs in a root file system with Debian's PyTorch: the repository, the build and the sockets of commd are mounted in it."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from cluster import BUILD, ROOT  # noqa: E402

# Runs in its own mount namespace. $1: the root. $2: the repository. $3: the folder of the build. $4: a folder to share. The rest: the command.
ENTER = r"""
set -eu
root=$1 repository=$2 build=$3 folder=$4
shift 4
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmp "$root/tmp"
for each in "$repository" "$build" "$folder"; do
    mkdir -p "$root$each"
    mount --bind "$each" "$root$each"
done
exec chroot "$root" env -C "$folder" "$@"
"""


def command(root, folder, *words, environment=None):
    """The command line that runs `words` in the root. `folder` has the sockets, and is where it is run and may write."""
    values = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT / "client/python"), "PYTHONDONTWRITEBYTECODE": "1",
              "COMMD_BUILD": str(BUILD), "COMMD_LIBRARY": str(BUILD / "libcommclient.so"), "USE_LIBUV": "0", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
    values.update({name: value for name, value in os.environ.items() if name.startswith(("BENCH_", "COMMD_", "TORCH_")) and name not in values})
    values.update(environment or {})
    if root is None:
        return ["env", *(f"{name}={value}" for name, value in values.items() if name not in ("HOME", "PATH")), *map(str, words)]
    return ["unshare", "-m", "sh", "-c", ENTER, "enter", str(root), str(ROOT), str(BUILD), str(folder), *(f"{name}={value}" for name, value in values.items()),
            *map(str, words)]
