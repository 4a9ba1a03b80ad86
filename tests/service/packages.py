"""commd's packages, built by `make deb` in a root file system of the release that they are for."""
import os
import pathlib
import shutil
import subprocess

import image

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 2400  # the first time, OpenSSL and ngtcp2 are built too


def source_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, timeout=60)
    if listed.returncode == 0 and (TOP / ".git").exists():
        return [name for name in listed.stdout.split("\0") if name and os.path.lexists(TOP / name)]
    return [str((pathlib.Path(folder) / name).relative_to(TOP)) for folder, folders, names in os.walk(TOP)
            for name in names if pathlib.Path(folder).relative_to(TOP).parts[:1] not in (("build",), (".git",))]


def copy_sources(target):
    """Copies the sources, and keeps what make built there before. A file that has not changed keeps its time, and one that has changed gets a
    new time. The times in TOP do not help, because the last build may have used another copy of the sources.
    """
    names = set(source_files())
    for path in [path for path in target.rglob("*") if path.relative_to(target).parts[0] != "build" and not path.is_dir()]:
        if str(path.relative_to(target)) not in names:
            path.unlink()
    for name in names:
        source, copy = TOP / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.is_symlink() or (copy.exists() and copy.read_bytes() != source.read_bytes()):
            copy.unlink()
        if not copy.exists():
            shutil.copyfile(source, copy, follow_symlinks=False)
        shutil.copymode(source, copy, follow_symlinks=False)


def build(release, out):
    """Builds the packages into the folder `out`, and returns their paths. If that fails, raises RuntimeError with the end of the output."""
    root = image.image(release, "build")
    with image.locked(f"{root.name}-in-use"):
        copy_sources(root / "commd")
        done = image.run_in(root, "cd /commd && make deb CUDA=no", BUILD_TIMEOUT_S)
        if done.returncode != 0:
            raise RuntimeError(f"make deb on Debian {release}: {done.stdout[-6000:]}")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for path in (root / "commd/build/deb").glob("*.deb"):
            shutil.copy(path, out)
        for name in ("lintian.log", "build.log"):
            shutil.copy(root / "commd/build/deb" / name, out)
    return sorted(out.glob("*.deb"))
