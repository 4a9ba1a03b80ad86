"""commd as a backend of torch.distributed: `init_process_group("commd")`.

Importing this module registers the backend, and the rendezvous `commd://`. An installed package needs no import:
torch finds the backend by the package's entry points. Nothing else is loaded before the first process group.

monitored_barrier, shrink_group, empty, flight_records, write_flight_records, last_failure and Store are described where
they are defined. torchrun calls torchrun_handler for --rdzv-backend=commd.
"""
from __future__ import annotations

import importlib

from ._register import autoload, register

__all__ = ["BackendError", "ProcessGroup", "Store", "empty", "flight_records", "last_failure", "monitored_barrier",
           "register", "shrink_group", "torchrun_handler", "write_flight_records"]

# Where each name is defined. These modules import torch, so they are loaded when the name is used.
_HOMES = {"BackendError": "_failures", "ProcessGroup": "_group", "Store": "_store", "empty": "_memory",
          "flight_records": "_records", "last_failure": "_failures", "monitored_barrier": "_barrier",
          "shrink_group": "_shrink",
          "torchrun_handler": "_rendezvous", "write_flight_records": "_records"}


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


autoload()
