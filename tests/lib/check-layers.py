#!/usr/bin/env python3
"""Checks the #include lines. Every file may include only files of the layers below it (daemon/README.md, Rooms). Only the files that
wrap a library may include that library's headers. Prints file:line and the rule that was broken.

usage: check-layers.py [FOLDER]    the top folder of a tree, by default the current one
"""
import pathlib
import re
import sys

TOPS = ("proto", "daemon", "client", "kernels")  # tests may include everything

# Folder: the folders that its files may include, besides their own. Folders of one layer do not include each other, except that daemon/gpu includes
# daemon/host.
BASE = ["daemon/base", "proto"]
LAYER_2 = ["daemon/coll", "daemon/gpu", "daemon/host", "daemon/net", "daemon/conf"]
LAYER_3 = ["daemon/mesh", "daemon/exec", "daemon/p2p"]
BELOW = {
    "proto": [],
    "kernels": ["proto"],
    "daemon/base": ["proto"],
    "daemon/coll": BASE,
    "daemon/host": BASE + ["kernels"],
    "daemon/gpu": BASE + ["daemon/host", "kernels"],
    "daemon/net": BASE,
    "daemon/conf": BASE,
    "daemon/mesh": BASE + LAYER_2,
    "daemon/exec": BASE + LAYER_2,
    "daemon/p2p": BASE + LAYER_2,
    "daemon/comm": BASE + LAYER_2 + LAYER_3,
    "daemon/store": BASE + LAYER_2 + LAYER_3,
    "daemon/gather": BASE + LAYER_2 + LAYER_3,
    "daemon/api": BASE + LAYER_2 + LAYER_3 + ["daemon/comm", "daemon/store", "daemon/gather"],
    "daemon": BASE + LAYER_2 + LAYER_3 + ["daemon/comm", "daemon/store", "daemon/gather", "daemon/api"],
    "client/include": ["client/include/commclient"],
    "client/include/commclient": [],
    "client/lib": ["proto", "client/include", "client/lib/gpu", "daemon/host"],  # of daemon/host only reduce.h: see ALLOWED_ALONE
    "client/lib/gpu": ["proto", "client/include", "client/lib"],
    "client/commctl": ["proto", "client/include"],
    "client/nccl": ["client/include", "proto"],
    "client/examples": ["client/include", "proto"],
}

# A library's headers: the files that may include them, and the text for others.
WRAPPED = [
    (r"ngtcp2/", r"daemon/net/quic", "ngtcp2 is for daemon/net/quic* alone"),
    (r"openssl/", r"daemon/net/(quic|tls)|client/commctl/", "OpenSSL is for daemon/net/quic*, daemon/net/tls* and client/commctl alone"),
    (r"event2/|event\.h|evhttp\.h", r"daemon/base/loop\.|daemon/api/metrics_http\.c", "libevent is for daemon/base/loop.* and daemon/api/metrics_http.c alone"),
    (r"cuda|nccl", r"daemon/gpu/(cuda|nccl)|kernels/|client/nccl/", "CUDA and NCCL are for daemon/gpu/cuda*, daemon/gpu/nccl* and kernels alone"),
    (r"uthash", r"daemon/base/table\.h", "uthash is for daemon/base/table.h alone: it ends the process without memory"),
    (r"hwloc", r"daemon/base/placement\.", "hwloc is for daemon/base/placement.* alone"),
    (r"libconfig", r"daemon/conf/|client/commctl/", "libconfig is for daemon/conf and client/commctl alone"),
    (r"jansson", r"client/commctl/", "jansson is for client/commctl alone"),
    (r"systemd/", r"daemon/[^/]*$", "libsystemd is for the top of the daemon alone"),
    (r"cmocka", r"(?!)", "cmocka is for tests alone"),
]
# Folders of which a folder may include some headers only: the library reduces by the daemon's code, so that all results have the same bits.
ALLOWED_ALONE = {("client/lib", "daemon/host"): {"daemon/host/reduce.h"}}
PUBLIC_HEADER = "commclient.h"  # included without a folder, as its users do
PUBLIC_PARTS = "commclient/"  # its parts, which only it includes
KIND_CASE = re.compile(r"\bcase OP_KIND_")  # elsewhere, plans, schedules and the facts of proto/types.h say what a kind does
INCLUDE = re.compile(r'^\s*#\s*(?:include|include_next|import)\s*(.*)')


def problems_of(path, text):
    folder = path.parent.as_posix()
    if folder not in BELOW:
        yield f"{path}:1: the folder {folder} is in no layer"
        return
    for number, line in enumerate(text.splitlines(), 1):
        if KIND_CASE.search(line) and folder != "daemon/coll":
            yield f"{path}:{number}: only daemon/coll branches by the kind of an operation; see op_kind_... in proto/types.h"
        match = INCLUDE.match(line)
        if match:
            for problem in problems_of_include(path, folder, match.group(1).strip()):
                yield f"{path}:{number}: {problem}"


def problems_of_include(path, folder, operand):
    written = re.match(r'([<"])([^>"]+)[>"]', operand)
    if not written:
        yield f"{operand}: an include by macro cannot be checked"
        return
    bracket, name = written.groups()
    for header, files, rule in WRAPPED:
        if re.match(header, name) and not re.match(files, path.as_posix()):
            yield f"{name}: {rule}"
    if name.startswith(PUBLIC_PARTS):
        name = f"client/include/{name}"
    target = "client/include" if name == PUBLIC_HEADER else pathlib.PurePosixPath(name).parent.as_posix()
    if ".." in name.split("/"):
        yield f"{name}: project headers are written from the top folder"
    elif name.split("/")[0] in TOPS + ("tests",) and "/" in name or name == PUBLIC_HEADER:
        if target != folder and target not in BELOW[folder]:
            allowed = ", ".join(BELOW[folder]) or "nothing of the project"
            yield f"{name}: {folder} must not include {target}; below it: {allowed}"
        elif name not in ALLOWED_ALONE.get((folder, target), {name}):
            yield f"{name}: of {target}, {folder} may include only {', '.join(ALLOWED_ALONE[folder, target])}"
    elif bracket == '"':
        yield f'"{name}": project headers are written from the top folder, others as <{name}>'


def main():
    top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = [path for folder in TOPS for suffix in (".c", ".h", ".cc", ".cpp", ".cu", ".cuh")
             for path in sorted((top / folder).rglob("*" + suffix))]
    problems = [problem for path in files
                for problem in problems_of(path.relative_to(top), path.read_text(errors="replace"))]
    for problem in problems:
        print(problem)
    print(f"layers: {len(files)} files, {len(problems)} problems" if problems else f"layers: {len(files)} files, all in order")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
