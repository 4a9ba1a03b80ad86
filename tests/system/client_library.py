"""libcommclient for Python programs of tests. It imports little, because many of these programs run for a moment only."""
import ctypes
import os

BUILD = os.path.abspath(os.environ.get("COMMD_BUILD", "build/release"))


class Library:
    """A thin wrapper of libcommclient, by ctypes. $COMMD_TEST_LIBRARY names another build of it."""

    DTYPES = {"f64": 0, "f32": 1, "i64": 6, "i32": 7, "u8": 13}
    NAMES = ["OK", "IN_PROGRESS", "INVALID_ARGUMENT", "UNSUPPORTED", "MISMATCH", "PERMISSION", "NOT_FOUND", "ALREADY_EXISTS", "LIMIT", "NO_MEMORY",
             "TIMED_OUT", "PROTOCOL", "VERSION", "DAEMON_LOST", "NODE_LOST", "RANK_LOST", "ABORTED", "SHUTTING_DOWN", "CONFIG", "SYSTEM",
             "CERTIFICATE", "UNREACHABLE", "INTERNAL", "DEVICE", "BUSY"]

    class InitOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_uint32), ("op_timeout_ms", ctypes.c_uint32),
                    ("slice_bytes", ctypes.c_uint64), ("algorithms", ctypes.c_char_p), ("minority_continues", ctypes.c_int), ("reserved", ctypes.c_int),
                    ("on_loss", ctypes.c_int)]

    class OpenOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("socket_path", ctypes.c_char_p), ("timeout_ms", ctypes.c_uint32), ("wait_ms", ctypes.c_uint32)]

    class CallOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_uint32), ("factor", ctypes.c_double), ("stream", ctypes.c_void_p),
                    ("request", ctypes.c_void_p), ("persistent", ctypes.c_int), ("compression", ctypes.c_int), ("top_k_permille", ctypes.c_uint32),
                    ("residual", ctypes.c_void_p), ("queue", ctypes.c_void_p), ("cookie", ctypes.c_void_p)]

    class Failure(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("result", ctypes.c_int), ("operation", ctypes.c_char_p), ("seq", ctypes.c_uint64),
                    ("rank_count", ctypes.c_uint32), ("ranks", ctypes.c_uint32 * 64), ("pids", ctypes.c_int32 * 64), ("node", ctypes.c_char * 64),
                    ("text", ctypes.c_char_p)]

    class Received(ctypes.Structure):
        _fields_ = [("source", ctypes.c_uint32), ("count", ctypes.c_size_t)]

    class Completion(ctypes.Structure):
        """comm_completion_t"""


    Completion._fields_ = [("cookie", ctypes.c_void_p), ("result", ctypes.c_int), ("received", Received), ("failure", ctypes.c_void_p)]
    class PoolOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("huge_pages", ctypes.c_int), ("chunk_bytes", ctypes.c_size_t),
                    ("most_bytes", ctypes.c_size_t)]

    def __init__(self):
        self.calls = ctypes.CDLL(os.environ.get("COMMD_TEST_LIBRARY", os.path.join(BUILD, "libcommclient.so")))
        self.calls.comm_last_error.restype = ctypes.c_char_p
        self.calls.comm_node_of.restype = ctypes.c_char_p
        self.calls.comm_node_of.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.calls.comm_mem_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.calls.comm_init.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.calls.comm_all_reduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self.calls.comm_broadcast.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
        for call in (self.calls.comm_send, self.calls.comm_recv):
            call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p]
        self.calls.comm_sync.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.calls.comm_barrier.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        size_t, int_, pointer = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        for name, types in (("comm_pool_create", [pointer] * 3), ("comm_pool_reserve", [pointer, size_t]), ("comm_pool_alloc", [pointer, size_t, pointer]),
                            ("comm_pool_free", [pointer] * 2), ("comm_mem_is_shared", [pointer, pointer, size_t]), ("comm_mem_free", [pointer] * 2),
                            ("comm_mem_register", [pointer, pointer, size_t, int_, ctypes.c_uint64]),
                            ("comm_all_gather", [pointer] * 3 + [size_t, int_, pointer]), ("comm_reduce_scatter", [pointer] * 3 + [size_t, int_, int_, pointer]),
                            ("comm_all_gather_list", [pointer] * 4 + [int_, pointer]), ("comm_reduce_scatter_list", [pointer] * 4 + [int_, int_, pointer]),
                            ("comm_all_to_all_list", [pointer] * 5 + [int_, pointer]),
                            ("comm_gather_list", [pointer, pointer, size_t, pointer, pointer, int_, ctypes.c_uint32, pointer]),
                            ("comm_scatter_list", [pointer] * 4 + [size_t, int_, ctypes.c_uint32, pointer])):
            getattr(self.calls, name).argtypes = types
        self.calls.comm_pool_trim.argtypes = [pointer]
        self.calls.comm_pool_trim.restype = size_t
        self.calls.comm_pool_destroy.argtypes = [pointer]
        self.calls.comm_pool_destroy.restype = None
        self.calls.comm_destroy.argtypes = [ctypes.c_void_p]
        self.calls.comm_client_close.argtypes = [ctypes.c_void_p]
        if hasattr(self.calls, "comm_queue_create"):  # an older library has no queues
            self._declare_queues()

    def _declare_queues(self):
        self.calls.comm_queue_next.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32]
        self.calls.comm_wait_for.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
        self.calls.comm_abort.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        for call in (self.calls.comm_queue_fd, self.calls.comm_queue_wake, self.calls.comm_queue_destroy, self.calls.comm_start,
                     self.calls.comm_request_free):
            call.argtypes = [ctypes.c_void_p]

    def __getattr__(self, name):
        return getattr(self.calls, name)

    def error(self):
        return self.calls.comm_last_error().decode(errors="replace")

    def open(self, path=None):
        client = ctypes.c_void_p()
        options = self.OpenOptions(ctypes.sizeof(self.OpenOptions), path and path.encode(), 0, 0)
        return self.calls.comm_client_open(ctypes.byref(options), ctypes.byref(client)), client

    def pool(self, client, device=-1, huge_pages=0, chunk_bytes=0, most_bytes=0):
        pool = ctypes.c_void_p()
        options = self.PoolOptions(ctypes.sizeof(self.PoolOptions), device, huge_pages, chunk_bytes, most_bytes)
        return self.calls.comm_pool_create(client, ctypes.byref(options), ctypes.byref(pool)), pool

    def init(self, client, name, rank, size, timeout_ms=20000, op_timeout_ms=0, device=-1, on_loss=0):
        comm = ctypes.c_void_p()
        options = self.InitOptions(ctypes.sizeof(self.InitOptions), timeout_ms, op_timeout_ms, 0, None, 0, 0, on_loss)
        result = self.calls.comm_init(client, name.encode(), rank, size, device, ctypes.byref(options), ctypes.byref(comm))
        return result, comm
