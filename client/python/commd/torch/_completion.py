"""Completes futures of operations.

A thread that waits for an operation itself needs none of this. Only a future needs a thread: C++ code such as DDP's
reducer blocks on it without calling commd, and callbacks may be attached to it.
"""
from __future__ import annotations

import atexit
import queue
import threading
import weakref

# How often a thread that waits asks whether the program ends, and how long the program's end waits for it.
_SLICE_MS = 100
_EXIT_S = 2.0
_all: weakref.WeakSet = weakref.WeakSet()


class Completions:
    """Waits for works in the order in which they were added, and completes their futures, in a thread of its own.

    Callbacks run in that thread. A callback may submit an operation and wait for it: another thread then takes over
    before its work is added.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._leaving = False
        _all.add(self)

    def add(self, work) -> None:
        """Completes this work's future once its operation has ended. Any thread may call it."""
        with self._lock:
            if self._thread is None or self._thread is threading.current_thread():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._works.put(work)

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            work = self._works.get()
            if work is None:
                return
            while not work.complete(_SLICE_MS) and not self._leaving:
                pass
            if self._leaving:
                return
            work.settle()
            del work  # its tensors must not live until the next one comes

    def close(self) -> None:
        """Ends the thread once it has completed what was added before."""
        if self._thread is not None:
            self._works.put(None)

    def leave(self) -> None:
        """Ends the thread before the interpreter ends. Python would end it inside torch's C++ code, which aborts."""
        self._leaving = True
        self.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_EXIT_S)


@atexit.register
def _leave_all() -> None:
    for completions in list(_all):
        completions.leave()
