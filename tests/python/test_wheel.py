"""The wheel: its contents, and how it works in a fresh virtual environment, without the clone."""
import base64
import email
import hashlib
import os
import re
import subprocess
import sys
import zipfile

import pytest

from ranks import BUILD, ROOT, finish


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as `make wheel` does."""
    library = BUILD / "python/libcommclient.so.0"
    if not library.exists():
        pytest.skip(f"{library} is not built (make wheel-library)")
    if sys.version_info < (3, 11):
        pytest.skip("the wheel is built by Python 3.11 or newer")
    out = tmp_path_factory.mktemp("wheel")
    version = re.search(r'COMMD_VERSION_TEXT "([^"]+)"', (ROOT / "proto/version.h").read_text()).group(1)
    return run(sys.executable, "-B", ROOT / "client/python/build_wheel.py", "--library", library, "--version", version, "--out", out).strip()


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The Python of a virtual environment in which the wheel alone is installed."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    done = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a virtual environment cannot be made: {done.stdout[-300:]}")
    run(folder / "bin/python", "-m", "pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    return folder / "bin"


def test_name(wheel):
    name = os.path.basename(wheel)
    assert re.fullmatch(r"commd-[0-9.]+-py3-none-manylinux_2_\d+_\w+\.whl", name)
    needed = run("objdump", "-T", BUILD / "python/libcommclient.so.0")
    newest = max(tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_(\d+\.\d+)", needed))
    assert f"manylinux_{newest[0]}_{newest[1]}_" in name
    assert "protobuf" not in run("objdump", "-p", BUILD / "python/libcommclient.so.0")


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None and len(names) == len(set(names))
        info = next(name.split("/")[0] for name in names if name.endswith("/METADATA"))
        recorded = {}
        for row in archive.read(f"{info}/RECORD").decode().splitlines():
            name, digest, size = row.rsplit(",", 2)
            recorded[name] = (digest, size)
        assert set(recorded) == set(names)
        for name, (digest, size) in recorded.items():
            if name != f"{info}/RECORD":
                content = archive.read(name)
                assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert int(size) == len(content)
        for name in ("commd/__init__.py", "commd/py.typed", "commd/libcommclient.so.0", f"{info}/licenses/LICENSE"):
            assert name in names
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
        assert metadata["Name"] == "commd" and metadata["Requires-Python"] == ">=3.10" and metadata.get_payload().startswith("# ")
        assert "[console_scripts]" in archive.read(f"{info}/entry_points.txt").decode()


def test_same_files_same_wheel(wheel, tmp_path):
    again = run(sys.executable, "-B", ROOT / "client/python/build_wheel.py", "--library", BUILD / "python/libcommclient.so.0", "--version",
                os.path.basename(wheel).split("-")[1], "--out", tmp_path).strip()
    assert open(wheel, "rb").read() == open(again, "rb").read()


def test_installed(environment):
    assert "No broken requirements" in run(environment / "python", "-m", "pip", "check")
    assert "commd" in run(environment / "python", "-m", "pip", "show", "commd")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COMMD_LIBRARY")}
    text = "import commd, sys; print(commd.c_library_version() == commd.__version__, commd._library.load().path, 'numpy' in sys.modules)"
    answer = run(environment / "python", "-c", text, env=clean, cwd="/").split()
    assert answer[0] == "True" and answer[1].startswith(str(environment.parent)) and answer[2] == "False"


def test_works_without_numpy(daemons, environment, tmp_path):
    """The installed package, with nothing but Python."""
    program = tmp_path / "program.py"
    program.write_text("import array, commd\nwith commd.init() as comm:\n"
                       "    import sys\n"
                       "    total = comm.all_reduce(array.array('q', [comm.rank + 1, 5])).tolist()\n"
                       "    sys.stdout.write(f'{total} {comm.objects.allgather(comm.rank)}\\n')\n")
    process = daemons.start([environment / "commd-run", "-n", "2", program], COMMD_COMMCTL="", PYTHONPATH="", COMMD_LIBRARY="")
    assert finish(process)[1].splitlines() == ["[3, 10] [0, 1]"] * 2


def test_unpacked(tmp_path):
    """A system's package has the same files, without the library, and the metadata by which other programs find it."""
    if sys.version_info < (3, 11):
        pytest.skip("the package is built by Python 3.11 or newer")
    run(sys.executable, "-B", ROOT / "client/python/build_wheel.py", "--unpacked", "--version", "1.2.3", "--out", tmp_path)
    found = {path.relative_to(tmp_path / "commd") for path in (tmp_path / "commd").rglob("*") if path.is_file()}
    source = ROOT / "client/python/commd"
    assert found == {path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    text = ("import commd; from importlib import metadata; print(commd.__file__, metadata.version('commd'), "
            "*(entry.value for entry in metadata.entry_points(group='torch.distributed.backends')))")
    answer = run(sys.executable, "-B", "-c", text, env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd="/").split()
    assert answer == [str(tmp_path / "commd/__init__.py"), "1.2.3", "commd.torch:register"]
