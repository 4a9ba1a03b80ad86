#!/usr/bin/env python3
"""commd for arm64: cross-built packages, and the unit tests under qemu-user, in a root file system of Debian. Needs root.

usage: check_arm64.py [--release 12|13] [--only TEST,...]

The exit code is 1 if a test or the build failed, 2 if it cannot run here.
"""
import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import image  # noqa: E402
import packages  # noqa: E402

HOST = "aarch64-linux-gnu"
PREPARE_TIMEOUT_S, BUILD_TIMEOUT_S, TESTS_TIMEOUT_S = 900, 3000, 3600
ONE_TEST_TIMEOUT_S = 1200  # qemu-user takes some 15 times as long
PREPARED = "etc/commd-arm64-prepared"
# The command of systemd/README.md. If lintian is installed, `make deb` runs it.
PREPARE = ("dpkg --add-architecture arm64 && apt-get update -qq && apt-get install crossbuild-essential-arm64 qemu-user dpkg-dev git python3 lintian"
           " && apt-get build-dep --host-architecture arm64 ./systemd")
# What qemu-user cannot run, and why. It runs one processor's instructions, and gives the programs this machine's kernel.
LEFT_OUT = {
    "host/test_guard": "qemu-user has no userfaultfd",
    "host/test_memory": "qemu-user has no userfaultfd",
    "coll/test_check_random": "qemu-user is slow: it is out of time",
    "base/test_fd_reaper": "qemu-user has descriptors of its own, and its own files in /proc/self",
    "base/test_thread": "qemu-user gives a program other signals and stacks than the kernel does",
}


def run(root, command, timeout_s, what):
    done = image.run_in(root, command, timeout_s)
    if done.returncode != 0:
        print(done.stdout[-8000:])
        print(f"check-arm64: {what} failed", file=sys.stderr)
    return done


def check(release, only):
    root = image.image(release, "arm64")
    with image.locked(f"{root.name}-in-use"):
        packages.copy_sources(root / "commd")
        if not (root / PREPARED).exists() or (root / PREPARED).read_text() != PREPARE:
            if run(root, f"cd /commd && {PREPARE}", PREPARE_TIMEOUT_S, "the installation of the cross compiler").returncode != 0:
                return 1
            (root / PREPARED).write_text(PREPARE)
        build = f"build/release-{HOST}"
        done = run(root, f"cd /commd && make HOST={HOST} CUDA=no tests", BUILD_TIMEOUT_S, "the build")
        if done.returncode != 0:
            return 1
        programs = sorted(str(path.relative_to(root / "commd")) for path in (root / "commd" / build / "tests/unit").glob("*/test_*")
                          if path.suffix == "" and os.access(path, os.X_OK))
        short = {path: "/".join(pathlib.Path(path).parts[-2:]) for path in programs}
        wanted = [path for path in programs if (short[path] in only if only else short[path] not in LEFT_OUT)]
        settings = f"COMMD_TEST_TIMEOUT_S={ONE_TEST_TIMEOUT_S} COMMD_TEST_RUNNER='qemu-aarch64 -L /usr/{HOST}'"
        done = image.run_in(root, f"cd /commd && {settings} python3 -B tests/lib/run-tests.py {' '.join(wanted)}", TESTS_TIMEOUT_S)
        print("\n".join(line for line in done.stdout.splitlines() if not line.startswith("ok ")))
        for path in programs:
            if not only and path not in wanted:
                print(f"left out: {short[path]}: {LEFT_OUT[short[path]]}")
        if done.returncode != 0 or only:
            return int(done.returncode != 0)
        done = run(root, f"cd /commd && make deb HOST={HOST} CUDA=no", BUILD_TIMEOUT_S, "make deb")
        print(done.stdout.strip().splitlines()[-1] if done.returncode == 0 else "no packages")
        return int(done.returncode != 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=sorted(image.RELEASES), default="13")
    parser.add_argument("--only", default="", help="these tests alone, as host/test_compress, separated by commas")
    options = parser.parse_args()
    lacking = image.missing_tools()
    if lacking or os.geteuid() != 0:
        print(f"check-arm64: needs {'root' if os.geteuid() != 0 else ', '.join(lacking)}", file=sys.stderr)
        return 2
    return check(options.release, [name for name in options.only.split(",") if name])


if __name__ == "__main__":
    sys.exit(main())
