#!/usr/bin/env python3
"""Builds the wheel of commd: the package, with libcommclient in it. It needs no network and no other package.

usage: build_wheel.py --library FILE --version TEXT --out FOLDER
       build_wheel.py --unpacked --version TEXT --out FOLDER

The second form writes what a system's package has: the files as they are installed, without the library.
`make wheel` calls the first, `make install-python` the second. It also is the build backend of pyproject.toml (PEP 517), which builds the library by make first;
so `pip install client/python` works in a clone. Needs Python 3.11 or newer, and objdump.
"""
from __future__ import annotations

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
LIBRARY = "libcommclient.so.0"
# A wheel for manylinux may need these libraries of the system, and no others (PEP 600).
ALLOWED = re.compile(r"^(libc|libm|libdl|librt|libpthread|ld-linux.*)\.so")
# Files of one state have one wheel: its time stamp is the earliest that a zip file can hold.
TIME = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The wheel cannot be built."""


def project() -> dict:
    """Returns the table [project] of pyproject.toml."""
    try:
        import tomllib
    except ImportError:
        raise BuildError("Python 3.11 or newer is needed to build the wheel") from None
    return tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]


def platform_tag(library: pathlib.Path) -> str:
    """Returns the platform tag that fits the library: the newest version of glibc whose symbols it needs."""
    done = subprocess.run(["objdump", "-p", str(library)], check=True, capture_output=True, text=True)
    for needed in re.findall(r"^\s*NEEDED\s+(\S+)", done.stdout, re.MULTILINE):
        if not ALLOWED.match(needed):
            raise BuildError(f"{library} needs {needed}, which other systems may not have")
    versions = [tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_(\d+\.\d+)", done.stdout)]
    if not versions:
        raise BuildError(f"{library} needs no glibc: it is no library for manylinux")
    newest = max(versions)
    return f"manylinux_{newest[0]}_{newest[1]}_{platform.machine()}"


def metadata(version: str) -> str:
    """Returns the text of METADATA."""
    table = project()
    lines = ["Metadata-Version: 2.4", f"Name: {table['name']}", f"Version: {version}", f"Summary: {table['description']}",
             f"Keywords: {','.join(table['keywords'])}", f"License-Expression: {table['license']}"]
    lines += [f"License-File: {name}" for name in table["license-files"]]
    lines += [f"Classifier: {text}" for text in table["classifiers"]]
    lines += [f"Requires-Python: {table['requires-python']}"]
    for extra, requirements in table.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (FOLDER / table["readme"]).read_text()]
    return "\n".join(lines)


def entry_points() -> str:
    """Returns the text of entry_points.txt."""
    table = project()
    groups = {"console_scripts": table.get("scripts", {}), **table.get("entry-points", {})}
    parts = ["\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
             for group, entries in groups.items() if entries]
    return "\n\n".join(parts) + "\n"


def package_files() -> list[tuple[str, bytes]]:
    """Returns the names and contents of the package's files."""
    return [(path.relative_to(FOLDER).as_posix(), path.read_bytes()) for path in sorted((FOLDER / "commd").rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts and path.suffix in (".py", ".typed", ".cc", ".cpp", ".h")]


def described_files(info: str, version: str) -> list[tuple[str, bytes]]:
    """Returns the package's files, and those that tell installers and other programs of it: they are in the folder `info`."""
    return [*package_files(), (f"{info}/METADATA", metadata(version).encode()), (f"{info}/entry_points.txt", entry_points().encode())]


def unpack(version: str, out: pathlib.Path) -> pathlib.Path:
    """Writes the package into the folder `out`, as it is installed, without the library. Returns `out`."""
    for name, content in described_files(f"commd-{version}.dist-info", version):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return out


def make(library: pathlib.Path, version: str, out: pathlib.Path) -> pathlib.Path:
    """Writes the wheel into the folder `out`, and returns its path."""
    tag = f"py3-none-{platform_tag(library)}"
    info = f"commd-{version}.dist-info"
    files = described_files(info, version)
    files.append((f"commd/{LIBRARY}", library.read_bytes()))
    files.append((f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: commd\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()))
    files.append((f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()))
    rows = []
    for name, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}\n")
    files.append((f"{info}/RECORD", ("".join(rows) + f"{info}/RECORD,,\n").encode()))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"commd-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files:
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (0o100755 if name.endswith(LIBRARY) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


# --- PEP 517 ---


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    """Builds the library by make, and the wheel. $COMMD_LIBRARY names a library that is taken instead."""
    folder = pathlib.Path(os.environ.get("COMMD_BUILD", ROOT / "build/release"))
    library = pathlib.Path(os.environ.get("COMMD_LIBRARY", folder / "python" / LIBRARY))
    if "COMMD_LIBRARY" not in os.environ:
        subprocess.run(["make", "-C", str(ROOT), f"BUILD={folder}", "wheel-library"], check=True, stdout=sys.stderr)
    text = (ROOT / "proto/version.h").read_text()
    found = re.search(r'COMMD_VERSION_TEXT "([^"]+)"', text)
    assert found is not None
    return make(library, found.group(1), pathlib.Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """There is none: the package is built from a clone of the repository."""
    raise BuildError("commd has no source distribution: build its wheel in a clone of the repository")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the wheel of commd.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--library", dest="shared_object", type=pathlib.Path)
    what.add_argument("--unpacked", action="store_true")
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        print(unpack(options.version, options.out) if options.unpacked else make(options.shared_object, options.version, options.out))
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
