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
    """What make built there before stays."""
    target.mkdir(exist_ok=True)
    for each in target.iterdir():
        if each.name != "build":
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    names = "\0".join(source_files())
    pack = subprocess.Popen(["tar", "--null", "--files-from=-", "-c"], cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    unpack = subprocess.Popen(["tar", "-x", "--no-same-owner", "-C", target], stdin=pack.stdout)
    pack.stdout.close()
    pack.stdin.write(names.encode())
    pack.stdin.close()
    if pack.wait(timeout=60) != 0 or unpack.wait(timeout=60) != 0:
        raise OSError(f"the sources could not be copied to {target}")


def build(release, out):
    """Builds them into the folder `out`; returns their paths. Raises RuntimeError with the end of what was said."""
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
