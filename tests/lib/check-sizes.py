#!/usr/bin/env python3
"""Prints the sizes of the source beside the bars of the project: lines of the rooms, length and complexity of functions. Fails for what is too
long: a file of more than 600 lines, a function of more than 60.

pmccabe measures functions, in .c files: headers have only short ones. Complexity is McCabe's number of ways through a function; a switch counts as
one branch. Without pmccabe (Debian: pmccabe), functions are left out, and a line says so.

usage: check-sizes.py [FOLDER]    the top folder of a tree, by default the current one
"""
import pathlib
import re
import shutil
import subprocess
import sys

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
COMPLEX = 15  # a function is complex if its complexity is greater
SOURCES = ("proto", "daemon", "client", "kernels")
SUFFIXES = {".c", ".h", ".cc", ".cu", ".cuh", ".py", ".sh"}
# What is counted, its folders, and the most lines that it should have.
ROOMS = (
    ("what carries out operations: exec, p2p, gpu", ("daemon/exec", "daemon/p2p", "daemon/gpu"), 7000),
    ("daemon/exec", ("daemon/exec",), None),
    ("daemon/p2p", ("daemon/p2p",), None),
    ("daemon/gpu", ("daemon/gpu",), None),
    ("daemon", ("daemon",), 30000),
)


def files_of(top, folder):
    return sorted(path for path in (top / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


def lines_of(path):
    return path.read_bytes().count(b"\n")


def functions_of(paths):
    """Returns, for each function, (lines, complexity, where it is and its name)."""
    found = subprocess.run(["pmccabe", *paths], capture_output=True, text=True)
    # It takes the call of a macro outside functions for the head of a function.
    for unread in re.findall(r'^"(.*)", line (\d+): ', found.stderr, re.MULTILINE):
        print("sizes: pmccabe cannot read {} from line {} on: left out".format(*unread))
    rows = (line.split(None, 5) for line in found.stdout.splitlines())
    return sorted((int(lines), int(complexity), f"{path.split('(')[0]}:{first} {path.rsplit(': ', 1)[1]}")
                  for complexity, _, _, first, lines, path in rows)


def row(what, value, bar, is_met, unit=""):
    verdict = "" if bar is None else "  met" if is_met else "  missed"
    print(f"{what:<48}{value:>10}{unit:<3}{'' if bar is None else bar:>10}{verdict}".rstrip())


def print_rooms(top):
    for what, folders, most in ROOMS:
        lines = sum(lines_of(path) for folder in folders for path in files_of(top, folder) if path.suffix in {".c", ".h"})
        row(what, f"{lines:,}", None if most is None else f"{most:,}", most is None or lines <= most)


def print_functions(functions):
    lengths = [lines for lines, _, _ in functions]
    share = 100 * sum(complexity > COMPLEX for _, complexity, _ in functions) / len(functions)
    for what, value, most in (("lines of a function: median", lengths[len(lengths) // 2], 12), ("... of nine in ten", lengths[len(lengths) * 9 // 10], 28),
                              ("... of the longest", lengths[-1], FUNCTION_LINES_MAX)):
        row(what, value, most, value <= most)
    row(f"functions of complexity over {COMPLEX}", f"{share:.1f}", "1", share < 1, " %")


def main():
    top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    all_files = [path for folder in (*SOURCES, "tests") for path in files_of(top, folder)]
    if not all_files:
        sys.exit(f"sizes: no sources in {top.absolute()}")
    too_long = [f"{path.relative_to(top)}: {lines_of(path)} lines; a file may have {FILE_LINES_MAX}"
                for path in all_files if lines_of(path) > FILE_LINES_MAX]
    print(f"{'lines':<48}{'now':>10}{'bar':>13}")
    print_rooms(top)
    if shutil.which("pmccabe"):
        functions = functions_of([path for path in all_files if path.suffix == ".c"])
        too_long += [f"{where}: {lines} lines; a function may have {FUNCTION_LINES_MAX}" for lines, _, where in functions if lines > FUNCTION_LINES_MAX]
        print_functions([each for each in functions if not each[2].startswith(f"{top / 'tests'}/")])
    else:
        print("sizes: pmccabe is not installed: functions are left out")
    print("\n".join(too_long + [f"sizes: {len(all_files)} files, {len(too_long)} problems" if too_long else f"sizes: {len(all_files)} files, none too long"]))
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
