"""Root file systems with Debian's PyTorch, made once and kept outside the repository, in ${XDG_CACHE_HOME:-~/.cache}/commd/torch.

trixie has torch 2.6, sid the newest that Debian has. They come from the mirror of this machine's apt, else from mmdebstrap's default.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
import image  # noqa: E402

CACHE = image.CACHE.parent / "torch"
PACKAGES = ("python3-torch", "python3-numpy", "python3-pytest", "python3-expecttest", "python3-hypothesis", "python3-psutil", "python3-setuptools", "iproute2",
            "libprotobuf-c1")
# A local mirror of sid may be older than sid's index is valid. The signatures are checked all the same.
APT_OPTIONS = {"trixie": (), "sid": ("--aptopt=Acquire::Check-Valid-Until \"false\"",)}
MAKE_TIMEOUT_S = 1800


def missing_tools():
    """Returns the packages of Debian that are needed here and are not installed."""
    return [] if shutil.which("mmdebstrap") else ["mmdebstrap"]


def folder(release):
    """Returns the folder of the root file system; makes it if it is not there (350 MB are fetched)."""
    image.CACHE = CACHE
    key = hashlib.sha256(repr((release, PACKAGES)).encode()).hexdigest()[:12]
    made = CACHE / f"{release}-{key}"
    with image.locked(made.name):
        if not made.is_dir():
            part = CACHE / f"{made.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}",
                            "--aptopt=Acquire::Languages \"none\"", *APT_OPTIONS[release], release, part, *filter(None, [image.mirror()])],
                           check=True, timeout=MAKE_TIMEOUT_S, stdin=subprocess.DEVNULL)
            part.rename(made)
    return made


if __name__ == "__main__":
    print(folder(sys.argv[1]))
