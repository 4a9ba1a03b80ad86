#!/usr/bin/env python3
"""Checks that every file includes only what stands below it (README, How it works)."""
import pathlib
import re
import sys

# Folder: the folders that its files may include besides their own.
BELOW = {
    "proto": [],
    "daemon/base": ["proto"],
    "daemon/coll": ["daemon/base", "proto"],
    "daemon/dev": ["daemon/base", "kernels", "proto"],
    "daemon/net": ["daemon/base", "proto"],
    "daemon/conf": ["daemon/base", "proto"],
}
LAYER_2 = ["daemon/coll", "daemon/dev", "daemon/net", "daemon/conf"]
BELOW["daemon/mesh"] = ["daemon/net", "daemon/conf", "daemon/base", "proto"]
BELOW["daemon/exec"] = LAYER_2 + ["daemon/base", "proto"]
BELOW["daemon/req"] = ["daemon/mesh", "daemon/exec"] + LAYER_2 + ["daemon/base", "proto"]
BELOW["daemon/api"] = ["daemon/req"] + BELOW["daemon/req"]
BELOW["daemon"] = ["daemon/api"] + BELOW["daemon/api"]
BELOW["client/lib"] = ["proto"]
BELOW["client/commctl"] = ["proto"]
BELOW["client/examples"] = []
BELOW["client/include"] = []
BELOW["kernels"] = ["proto"]

# Headers of libraries that only some files may see.
PRIVATE = [
    (re.compile(r"^(ngtcp2/)"), re.compile(r"^daemon/net/quic")),
    (re.compile(r"^openssl/"), re.compile(r"^(daemon/net/quic|client/commctl/pki)")),
    (re.compile(r"^event2/|^event\.h"), re.compile(r"^daemon/base/loop\.")),
    (re.compile(r"^(cuda|nccl)"), re.compile(r"^(daemon/dev/(cuda|nccl)|kernels/)")),
    (re.compile(r"^libconfig"), re.compile(r"^(daemon/conf/|client/commctl/)")),
    (re.compile(r"^jansson"), re.compile(r"^client/commctl/")),
    (re.compile(r"^systemd/"), re.compile(r"^daemon/[a-z_]+\.c$")),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def check(path, text):
    folder = str(path.parent)
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        for header, allowed in PRIVATE:
            if header.search(name) and not allowed.search(str(path)):
                yield f"{path}:{number}: <{name}> belongs to {allowed.pattern} alone"
        if match.group(1) != '"' or folder not in BELOW:
            continue
        target = str(pathlib.PurePosixPath(name).parent)
        if name == "commclient.h":
            if folder not in ("client/lib", "client/examples", "client/commctl"):
                yield f"{path}:{number}: commclient.h is for the client's side"
        elif target == ".":
            yield f"{path}:{number}: \"{name}\" is not written from the top folder"
        elif target != folder and target not in BELOW[folder]:
            yield f"{path}:{number}: {folder} must not include {target}"


def main():
    problems, files = [], 0
    for top in ("proto", "daemon", "client", "kernels"):
        for path in sorted(pathlib.Path(top).rglob("*.[ch]")):
            files += 1
            if str(path.parent) not in BELOW:
                problems.append(f"{path}: folder {path.parent} is in no layer")
            problems += check(path, path.read_text())
    print("\n".join(problems) if problems else f"layers: {files} files, all in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
