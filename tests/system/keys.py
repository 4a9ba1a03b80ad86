"""The library's stores of keys and values, by ctypes."""
import ctypes

from client_library import Library


class Failed(Exception):
    """A call of the library failed. code: the result's name. text: the library's long message."""

    def __init__(self, code, text):
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Client:
    """A connection to the commd of $COMMD_SOCKET, or of a given socket."""

    def __init__(self, socket=None):
        self.calls = Library()
        for name in ("open", "close", "set", "get", "free", "add", "compare_set", "wait", "check", "delete", "count"):
            getattr(self.calls, f"comm_store_{name}").restype = ctypes.c_int
        self.calls.comm_store_close.restype = None
        self.calls.comm_store_free.restype = None
        self.calls.comm_store_free.argtypes = [ctypes.c_void_p]
        self.handle = ctypes.c_void_p()
        options = OpenOptions(ctypes.sizeof(OpenOptions), socket.encode() if socket else None, 0, 0)
        self.check(self.calls.comm_client_open(ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, result):
        if result != 0:
            raise Failed(self.calls.NAMES[result], self.calls.error())

    def store(self, name, timeout_s=20):
        return Store(self, name, timeout_s)

    def close(self):
        self.calls.comm_client_close(self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("socket_path", ctypes.c_char_p), ("timeout_ms", ctypes.c_uint32), ("wait_ms", ctypes.c_uint32)]


def ms(seconds):
    return ctypes.c_uint32(int(seconds * 1000))


def list_of(keys):
    return (ctypes.c_char_p * len(keys))(*[key.encode() for key in keys])


class Store:
    """Values are bytes; keys are text. Each failed call raises Failed."""

    def __init__(self, client, name, timeout_s):
        self.client = client
        self.calls = client.calls
        self.handle = ctypes.c_void_p()
        client.check(self.calls.comm_store_open(client.handle, name.encode(), ms(timeout_s), ctypes.byref(self.handle)))

    def close(self):
        self.calls.comm_store_close(self.handle)

    def set(self, key, value):
        self.client.check(self.calls.comm_store_set(self.handle, key.encode(), value, ctypes.c_size_t(len(value))))

    def _take(self, value, size):
        taken = ctypes.string_at(value, size.value)
        self.calls.comm_store_free(value)
        return taken

    def get(self, key, timeout_s=20):
        value, size = ctypes.c_void_p(1), ctypes.c_size_t(77)
        self.client.check(self.calls.comm_store_get(self.handle, key.encode(), ms(timeout_s), ctypes.byref(value), ctypes.byref(size)))
        return self._take(value, size)

    def add(self, key, delta):
        total = ctypes.c_int64(-77)
        self.client.check(self.calls.comm_store_add(self.handle, key.encode(), ctypes.c_int64(delta), ctypes.byref(total)))
        return total.value

    def compare_set(self, key, expected, desired):
        value, size = ctypes.c_void_p(1), ctypes.c_size_t(77)
        self.client.check(self.calls.comm_store_compare_set(self.handle, key.encode(), expected, ctypes.c_size_t(len(expected)), desired,
                                                            ctypes.c_size_t(len(desired)), ctypes.byref(value), ctypes.byref(size)))
        return self._take(value, size)

    def wait(self, keys, timeout_s=20):
        self.client.check(self.calls.comm_store_wait(self.handle, list_of(keys), ctypes.c_size_t(len(keys)), ms(timeout_s)))

    def check(self, keys):
        every = ctypes.c_int(-77)
        self.client.check(self.calls.comm_store_check(self.handle, list_of(keys), ctypes.c_size_t(len(keys)), ctypes.byref(every)))
        return {0: False, 1: True}[every.value]

    def delete(self, key):
        existed = ctypes.c_int(-77)
        self.client.check(self.calls.comm_store_delete(self.handle, key.encode(), ctypes.byref(existed)))
        return {0: False, 1: True}[existed.value]

    def count(self):
        keys = ctypes.c_size_t(77)
        self.client.check(self.calls.comm_store_count(self.handle, ctypes.byref(keys)))
        return keys.value
