"""Registers the backend with torch. It imports nothing of commd before the first process group is made."""
from __future__ import annotations

import importlib
import logging

NAME = "commd"


def create(options, backend_options=None):
    """Makes a process group. torch calls it on each rank of the group."""
    from . import _group

    return _group.create(options, backend_options)


def rendezvous(url: str, timeout=None, **_):
    """Meets the other processes at commd://job: yields the store, this process's rank and the number of processes."""
    from . import _rendezvous

    yield from _rendezvous.rendezvous(url, timeout)


def register() -> None:
    """Registers the backend `commd` and the rendezvous `commd://`, unless that is done already."""
    import torch
    import torch.distributed as distributed

    if not distributed.is_available():
        raise RuntimeError("this torch was built without torch.distributed, so commd cannot be its backend")
    if NAME.upper() not in distributed.Backend._plugins:
        # Parts of torch put their tensors on a device that is not the CPU, if the backend names one.
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        distributed.Backend.register_backend(NAME, create, extended_api=True, devices=devices)
    # torch has no function that tells whether a handler is registered. The module's name is also a function's.
    handlers = importlib.import_module("torch.distributed.rendezvous")
    if NAME not in getattr(handlers, "_rendezvous_handlers", {}):
        handlers.register_rendezvous_handler(NAME, rendezvous)


def autoload() -> None:
    """Registers the backend, and never raises: torch calls it while torch itself is being imported."""
    try:
        register()
    except Exception as error:  # whatever it is, torch must work without commd
        logging.getLogger("commd").debug("the backend commd is not available: %s", error)
