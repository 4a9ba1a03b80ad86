"""`make check-torch`: the tests of the torch backend, with Debian's torch in a private root file system (tests/torch/torch_image.py).

    check_torch.py [RELEASE...]     trixie (torch 2.6) and sid (the newest) if none is named
    CHECK_TORCH_OWN=no: leaves torch's own tests out
    CHECK_TORCH_ONLY=WORDS: of our tests, only those that pytest's -k selects

For each release, it runs tests/python/test_torch.py, then torch's own distributed tests on Gloo and on commd with three ranks. What passes on Gloo
must pass on commd.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chroot  # noqa: E402
import torch_image  # noqa: E402
from cluster import BUILD, ROOT, Cluster  # noqa: E402

OWN_LIMIT_S, TESTS_LIMIT_S = 3000, 1200
SELECTED = ["-k", os.environ["CHECK_TORCH_ONLY"]] if "CHECK_TORCH_ONLY" in os.environ else []
# Not decided by the backend: Python's text of an error, which the test compares.
NOT_OURS = re.compile(r"gather_object")


def pytest_in(root, folder, limit_s, *arguments, **environment):
    """Runs pytest in the root. Returns (exit code, output)."""
    command = chroot.command(root, folder, "python3", "-B", "-m", "pytest", "-q", "-rA", "--no-header", "-W", "ignore", "-p", "no:cacheprovider",
                             "--show-capture=no", *arguments, environment=environment)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s)
    return done.returncode, done.stdout


def wheel():
    """The wheel that `make wheel` has built, or nothing."""
    return str(next(iter((BUILD / "python").glob("*.whl")), ""))


def passed(output):
    return set(re.findall(r"^PASSED \S*::(\S+)", output, re.M))


def own_tests(root, cluster, backend):
    """Runs torch's own tests. Returns the names of those that pass, and the output."""
    folder = cluster.folder / f"own-{backend}"
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True)
    code, output = pytest_in(root, cluster.folder, OWN_LIMIT_S, ROOT / "tests/torch/torch_own.py", WORLD_SIZE="3", TEMP_DIR=str(folder),
                             COMMD_TORCH_BACKEND=backend, COMMD_SOCKET=cluster.socket("alpha"))
    shutil.rmtree(folder, ignore_errors=True)
    if code not in (0, 1):
        raise SystemExit(output[-4000:])
    return passed(output), output


def check(release):
    """Returns how many things failed with this release's torch."""
    root = torch_image.folder(release)
    with Cluster(["alpha", "beta"]) as cluster:
        sockets = ",".join(cluster.socket(name) for name in cluster.names)
        code, output = pytest_in(root, cluster.folder, TESTS_LIMIT_S, ROOT / "tests/python/test_torch.py", *SELECTED, TEST_TORCH_SOCKETS=sockets,
                                 TEST_TORCH_WHEEL=wheel())
        print(f"{release}: our tests: {output.strip().splitlines()[-1]}", flush=True)
        print("\n".join(sorted(set(re.findall(r"^SKIPPED.*", output, re.M)))))
        failures = 0
        if code != 0:
            print("\n".join(line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "E  ")))[:6000])
            failures += 1
        if os.environ.get("CHECK_TORCH_OWN") == "no":
            return failures
        gloo, _ = own_tests(root, cluster, "gloo")
        ours, output = own_tests(root, cluster, "commd")
        missing = sorted(name for name in gloo - ours if not NOT_OURS.search(name))
        print(f"{release}: torch's own tests, 3 ranks: {len(gloo)} pass on gloo, {len(ours)} on commd; on gloo alone: {', '.join(missing) or 'none'}",
              flush=True)
        if missing:
            print(output[-6000:])
        return failures + len(missing)


def main():
    lacking = torch_image.missing_tools()
    if lacking:
        print(f"check-torch: needs {', '.join(lacking)}", file=sys.stderr)
        return 2
    if not (BUILD / "commd").exists():
        print(f"check-torch: {BUILD} has no commd", file=sys.stderr)
        return 2
    return min(1, sum(check(release) for release in sys.argv[1:] or ("trixie", "sid")))


if __name__ == "__main__":
    sys.exit(main())
