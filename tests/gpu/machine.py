"""What check_gpu.py and bench_gpu.py share: where things are, whether there is a GPU, and how programs run.

The programs may have been built on another machine and carried here. The libraries that they need are then in $COMMD_BUILD/lib.
"""
import ctypes
import glob
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("COMMD_BUILD", str(ROOT / "build/release"))
BUILD = pathlib.Path(os.environ["COMMD_BUILD"]).resolve()
SKIPPED = 77
COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
CARRIED = f"/tmp/commd-libraries-{os.getpid()}"
DOUBLES = {"COMMD_CUDA_LIBRARY": str(BUILD / "tests/libcuda_double.so"), "COMMD_NCCL_LIBRARY": str(BUILD / "tests/libnccl_double.so")}

sys.path.insert(0, str(ROOT / "tests/system"))


class NoGpu(Exception):
    pass


def use_carried_libraries():
    """Uses only those carried libraries that this machine lacks, so that it replaces none of the machine's own. The loader reads its path only
    when a process begins, so this process starts itself again."""
    if os.environ.get("COMMD_CARRIED") == str(os.getpid()):
        return
    os.environ["COMMD_CARRIED"] = str(os.getpid())
    missing = [library for library in sorted((BUILD / "lib").glob("*.so*")) if not is_here(library.name)]
    if not missing:
        return
    os.makedirs(CARRIED, exist_ok=True)
    for library in missing:
        os.symlink(library, os.path.join(CARRIED, library.name))
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), CARRIED]))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])


def is_here(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def find_nccl():
    """Looks for NCCL beside PyTorch, where the loader does not look."""
    if "COMMD_NCCL_LIBRARY" in os.environ:
        return
    for folder in sys.path:
        found = glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2"))
        if found:
            os.environ["COMMD_NCCL_LIBRARY"] = found[0]
            return


class Gpu:
    """The first GPU, as the driver describes it."""

    def __init__(self):
        try:
            driver = ctypes.CDLL(os.environ.get("COMMD_CUDA_LIBRARY", "libcuda.so.1"))
        except OSError as error:
            raise NoGpu(f"no CUDA driver: {error}") from error
        count, device, mode, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(96)
        result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
        if result or count.value == 0:
            raise NoGpu(f"the CUDA driver has no GPU to show (error {result})")
        driver.cuDeviceGet(ctypes.byref(device), 0)
        driver.cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, device)
        if mode.value != 0:
            raise NoGpu("the GPU is for one process alone, or for none (nvidia-smi -c DEFAULT lets several use it)")
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDriverGetVersion(ctypes.byref(version))
        self.name = name.value.decode(errors="replace")
        self.count = count.value
        self.cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        self.driver = self._kernel_driver()

    @staticmethod
    def _kernel_driver():
        try:
            words = pathlib.Path("/proc/driver/nvidia/version").read_text().split()
        except OSError:
            return "unknown"
        return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "unknown")


def find_gpu(double):
    """Returns the GPU, or raises NoGpu. double: from here on, everything uses the double of the driver, with one GPU."""
    if double:
        folder = f"/dev/shm/commd-gpu-{os.getpid()}"
        os.makedirs(folder, exist_ok=True)
        os.environ.update(DOUBLES, CUDA_DOUBLE_FOLDER=folder, CUDA_DOUBLE_DEVICES="1")
    else:
        find_nccl()
    for needed in ("commd", "commctl", "libcommclient.so", "tests/gpu/bench_device"):
        if not (BUILD / needed).exists():
            raise SystemExit(f"{BUILD / needed} is not there: $COMMD_BUILD says where it was built, or carried to")
    return Gpu()


def tidy():
    """Removes what this run made."""
    shutil.rmtree(CARRIED, ignore_errors=True)
    if os.environ.get("CUDA_DOUBLE_FOLDER", "").startswith("/dev/shm/commd-gpu-"):
        shutil.rmtree(os.environ["CUDA_DOUBLE_FOLDER"], ignore_errors=True)


def run(*command, timeout_s, environment=None):
    """Returns (exit code, None when out of time; output; errors)."""
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", env=dict(os.environ, **(environment or {}))) as process:
        try:
            output, errors = process.communicate(timeout=max(1, timeout_s))
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            return None, output, errors
    return process.returncode, output, errors


def find_tool(name):
    """Finds a tool of a CUDA toolkit, on the PATH or where toolkits are usually installed. Returns None if there is none."""
    patterns = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/usr/local/nvidia/bin", "/opt/nvidia/*", "/opt/nvidia/*/*")
    places = [shutil.which(name), *(place for pattern in patterns for place in sorted(glob.glob(f"{pattern}/{name}")))]
    return next((place for place in places if place and os.path.isfile(place) and os.access(place, os.X_OK)), None)
