"""A thin wrapper of the CUDA driver, by ctypes: one GPU of the process, whose primary context is current in this thread."""
import ctypes
import os

UNIT = 2 << 20  # the size of each allocation of virtual memory is a multiple of this
LEGACY_STREAM = None
HANDLE_BYTES = 64
POSIX_FD = 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("max_bytes", ctypes.c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]


def u64(value=0):
    return ctypes.c_uint64(value)


class Gpu:
    def __init__(self, ordinal=0):
        self.driver = ctypes.CDLL(os.environ.get("COMMD_CUDA_LIBRARY", "libcuda.so.1"))
        self.device = ctypes.c_int()
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.make_current()
        on_device = Location(1, self.device.value)
        self.properties = Properties(1, POSIX_FD, on_device)
        self.access = Access(on_device, 3)

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def make_current(self):
        self.call("cuCtxSetCurrent", self.context)

    def uuid(self):
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", uuid, self.device)
        return bytes(uuid)

    # --- Memory ---

    def alloc(self, size):
        pointer = u64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer):
        self.call("cuMemFree_v2", u64(pointer))

    def put(self, pointer, data):
        data = bytes(data)
        self.call("cuMemcpyHtoD_v2", u64(pointer), data, ctypes.c_size_t(len(data)))

    def get(self, pointer, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, u64(pointer), ctypes.c_size_t(size))
        return data.raw

    def put_from(self, pointer, address, size):
        """The same from memory of the host, without a copy on the way."""
        self.call("cuMemcpyHtoD_v2", u64(pointer), ctypes.c_void_p(address), ctypes.c_size_t(size))

    def get_to(self, address, pointer, size):
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(address), u64(pointer), ctypes.c_size_t(size))

    def ipc_handle(self, pointer):
        handle = (ctypes.c_ubyte * HANDLE_BYTES)()
        self.call("cuIpcGetMemHandle", handle, u64(pointer))
        return bytes(handle)

    # --- Virtual memory ---

    def reserve(self, size):
        pointer = u64()
        self.call("cuMemAddressReserve", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_size_t(0), u64(0), u64(0))
        return pointer.value

    def create(self, size):
        allocation = u64()
        self.call("cuMemCreate", ctypes.byref(allocation), ctypes.c_size_t(size), ctypes.byref(self.properties), u64(0))
        return allocation.value

    def release(self, allocation):
        self.call("cuMemRelease", u64(allocation))

    def export(self, allocation):
        fd = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(fd), u64(allocation), POSIX_FD, u64(0))
        return fd.value

    def map(self, pointer, size):
        """Maps a chunk that is an allocation of its own, as allocators do whose segments grow."""
        allocation = self.create(size)
        self.call("cuMemMap", u64(pointer), ctypes.c_size_t(size), ctypes.c_size_t(0), u64(allocation), u64(0))
        self.call("cuMemSetAccess", u64(pointer), ctypes.c_size_t(size), ctypes.byref(self.access), ctypes.c_size_t(1))
        self.release(allocation)

    def unmap(self, pointer, size):
        self.call("cuMemUnmap", u64(pointer), ctypes.c_size_t(size))

    # --- Memory pools ---

    def new_pool(self, handle_types=POSIX_FD):
        pool = ctypes.c_void_p()
        properties = PoolProperties(1, handle_types, self.access.location)
        self.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        return pool.value

    def destroy_pool(self, pool):
        self.call("cuMemPoolDestroy", ctypes.c_void_p(pool))

    def alloc_from(self, pool, size, stream=LEGACY_STREAM):
        """Without a pool: from the default pool."""
        pointer = u64()
        if pool is None:
            self.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_void_p(stream))
        else:
            self.call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_void_p(pool), ctypes.c_void_p(stream))
        return pointer.value

    def free_async(self, pointer, stream=LEGACY_STREAM):
        self.call("cuMemFreeAsync", u64(pointer), ctypes.c_void_p(stream))

    def export_pool(self, pool):
        fd = ctypes.c_int(-1)
        self.call("cuMemPoolExportToShareableHandle", ctypes.byref(fd), ctypes.c_void_p(pool), POSIX_FD, u64(0))
        return fd.value

    def export_pointer(self, pointer):
        data = (ctypes.c_ubyte * HANDLE_BYTES)()
        self.call("cuMemPoolExportPointer", data, u64(pointer))
        return bytes(data)

    # --- Streams ---

    def synchronize(self, stream=LEGACY_STREAM):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream.value
