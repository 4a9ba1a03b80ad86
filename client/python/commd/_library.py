"""Finds and loads libcommclient, and declares its functions.

The library is looked for in this order: the file that COMMD_LIBRARY names, the package's own folder (where a wheel
has it), and the system's libraries. It is loaded at the first use, so that importing the package costs little.

ctypes releases the interpreter's lock during each call.
"""
from __future__ import annotations

import ctypes
import os
import threading

from .errors import LibraryMissing, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SONAME = "libcommclient.so.0"
DEVICE_HOST = -1
DEVICE_LOCAL_RANK = -2
COLOR_NONE = -1
ANY_SOURCE = 0xFFFFFFFF
NO_TIMEOUT = 0xFFFFFFFF

F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, C64, C128 = range(17)
# By dtype: the names that numpy and torch use, and the size of an element in bytes.
DTYPE_NAMES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
               "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128")
DTYPE_SIZES = (8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16)

OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4, "premul_sum": 5, "band": 6, "bor": 7, "bxor": 8, "land": 9,
       "lor": 10}
COMPRESSIONS = {None: 0, "none": 0, "bf16": 1, "f8": 2, "top_k": 3}

_pointer = ctypes.c_void_p
_size = ctypes.c_size_t
_u32 = ctypes.c_uint32
_int = ctypes.c_int
_text = ctypes.c_char_p


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("socket_path", _text), ("timeout_ms", _u32), ("wait_ms", _u32)]


class InitOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("timeout_ms", _u32), ("op_timeout_ms", _u32), ("slice_bytes", ctypes.c_uint64),
                ("algorithms", _text), ("minority_continues", _int), ("reserved", _int), ("on_loss", _int)]


class EnvOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("device", _int), ("name", _text), ("init", _pointer)]


class CallOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("timeout_ms", _u32), ("factor", ctypes.c_double), ("stream", _pointer),
                ("request", _pointer), ("persistent", _int), ("compression", _int), ("top_k_permille", _u32),
                ("residual", _pointer), ("queue", _pointer), ("cookie", _pointer)]


class Received(ctypes.Structure):
    _fields_ = [("source", _u32), ("count", _size)]


class Failure(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("result", _int), ("operation", _text), ("seq", ctypes.c_uint64),
                ("rank_count", _u32), ("ranks", _u32 * 64), ("pids", ctypes.c_int32 * 64), ("node", ctypes.c_char * 64),
                ("text", _text)]


class Completion(ctypes.Structure):
    _fields_ = [("cookie", _pointer), ("result", _int), ("received", Received), ("failure", ctypes.POINTER(Failure))]


class PoolOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("device", _int), ("huge_pages", _int), ("chunk_bytes", _size),
                ("most_bytes", _size)]


class ShrinkOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("timeout_ms", _u32)]


class JoinOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("device", _int), ("timeout_ms", _u32), ("last_call_ms", _u32), ("init", _pointer)]


class GrowOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("most", _u32), ("timeout_ms", _u32)]


class Draining(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("draining", _int), ("left_ms", _u32), ("reason", ctypes.c_char * 256)]


class Lost(ctypes.Structure):
    _fields_ = [("count", _u32), ("may_shrink", _int), ("last_seq", ctypes.c_uint64)]


# Each function: what it returns, and its arguments. "r" is a comm_result_t.
_TYPES = {"p": _pointer, "z": _size, "u": _u32, "i": _int, "s": _text, "r": _int, "v": None, "U": ctypes.c_uint64,
          "j": ctypes.c_int32}
_FUNCTIONS = {
    "comm_result_text": "s:i", "comm_last_error": "s:", "comm_version": "s:",
    "comm_client_open": "r:pp", "comm_client_close": "v:p", "comm_client_reopen": "r:pp",
    "comm_init": "r:psuuipp", "comm_init_env": "r:ppp", "comm_destroy": "v:p", "comm_split": "r:pjjp",
    "comm_rank": "u:p", "comm_size": "u:p", "comm_local_rank": "u:p", "comm_local_size": "u:p", "comm_node_of": "s:pu",
    "comm_mem_alloc": "r:pzip", "comm_mem_free": "r:pp", "comm_mem_register": "r:ppziU", "comm_mem_deregister": "r:pp",
    "comm_all_reduce": "r:pppziip", "comm_reduce": "r:pppziiup", "comm_broadcast": "r:ppziup",
    "comm_all_gather": "r:pppzip", "comm_all_gather_v": "r:pppppip", "comm_reduce_scatter": "r:pppziip",
    "comm_reduce_scatter_v": "r:ppppiip", "comm_gather": "r:pppziup", "comm_gather_v": "r:ppzpppiup",
    "comm_scatter": "r:pppziup", "comm_scatter_v": "r:pppppziup", "comm_all_to_all": "r:pppzip",
    "comm_all_to_all_v": "r:pppppppip", "comm_scan": "r:pppziip", "comm_exclusive_scan": "r:pppziip",
    "comm_send": "r:ppziuup", "comm_recv": "r:ppziuup", "comm_barrier": "r:pp", "comm_group_begin": "r:",
    "comm_group_end": "r:", "comm_wait": "r:pp", "comm_test": "r:ppp", "comm_request_free": "v:p", "comm_sync": "r:pu",
    "comm_queue_create": "r:pp", "comm_queue_fd": "i:p", "comm_queue_next": "r:ppzpu", "comm_queue_wake": "v:p",
    "comm_queue_destroy": "v:p", "comm_wait_for": "r:pup", "comm_abort": "r:ps",
    "comm_last_failure": "i:p", "comm_shrink": "r:ppp", "comm_lost": "r:ppup",
    "comm_agree": "r:ppu", "comm_join": "r:psuupp", "comm_waiting": "r:pp", "comm_grow": "r:ppp", "comm_cancel": "r:ps", "comm_draining": "r:pp",
    "comm_all_gather_list": "r:ppppip", "comm_reduce_scatter_list": "r:ppppiip", "comm_all_to_all_list": "r:pppppip",
    "comm_gather_list": "r:ppzppiup", "comm_scatter_list": "r:ppppziup",
    "comm_pool_create": "r:ppp", "comm_pool_destroy": "v:p", "comm_pool_reserve": "r:pz", "comm_pool_alloc": "r:pzp",
    "comm_pool_free": "r:pp", "comm_pool_trim": "z:p", "comm_mem_is_shared": "i:ppz",
}


class OfProcess:
    """An object that stands for one of the library, which it frees. A copy would free it a second time."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} of commd belongs to its process: it can neither be copied nor pickled")


class Library:
    """libcommclient: its functions under their own names."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._handle = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryMissing(f"libcommclient cannot be loaded: {error}. Install commd's library, or name its file "
                                 f"in COMMD_LIBRARY.", Result.NOT_FOUND) from None
        for name, text in _FUNCTIONS.items():
            try:
                function = getattr(self._handle, name)
            except AttributeError:
                raise LibraryMissing(f"{self.path} has no {name}: it is not a libcommclient that fits this package.",
                                     Result.VERSION) from None
            function.restype = _TYPES[text[0]]
            function.argtypes = [_TYPES[letter] for letter in text[2:]]
            setattr(self, name, function)

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any: ...

    def new_failure(self) -> Failure:
        """Returns an empty comm_failure_t."""
        return Failure(struct_size=ctypes.sizeof(Failure))


_lock = threading.Lock()
_loaded: Library | None = None


def candidates() -> list[str]:
    """Returns the files and names that load() tries, in this order."""
    named = os.environ.get("COMMD_LIBRARY")
    if named:
        return [os.path.join(named, "libcommclient.so") if os.path.isdir(named) else named]
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    return [own] if os.path.exists(own) else [SONAME]


def load() -> Library:
    """Returns the library. It is loaded once in a process."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Library(candidates()[0])
    return _loaded
