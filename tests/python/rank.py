"""One rank of a test: calls a function of a test file with a communicator, and arguments as JSON.

usage: rank.py FILE FUNCTION [JSON]
"""
import importlib
import importlib.util
import json
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "tests/system")]
if not any((pathlib.Path(folder) / "commd").is_dir() for folder in sys.path):
    sys.path.insert(0, str(ROOT / "client/python"))


class Decorators(types.ModuleType):
    """What test files decorate their tests with. A rank runs no test, and to import pytest would take a third of its start. All else comes from
    pytest."""

    class mark:
        @staticmethod
        def parametrize(*_arguments, **_options):
            return lambda function: function

    @staticmethod
    def fixture(*_arguments, **_options):
        return lambda function: function

    def __getattr__(self, name):
        if sys.modules["pytest"] is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


def load(path):
    specification = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    import commd
    sys.modules["pytest"] = Decorators("pytest")
    function = getattr(load(sys.argv[1]), sys.argv[2])
    with commd.init(timeout=30, op_timeout=20) as comm:
        function(comm, *json.loads(sys.argv[3] if len(sys.argv) > 3 else "[]"))
