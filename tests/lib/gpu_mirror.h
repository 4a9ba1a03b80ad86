#ifndef TESTS_LIB_GPU_MIRROR_H
#define TESTS_LIB_GPU_MIRROR_H

#include <stddef.h>

#include <commclient.h>

/*
 * Buffers of a test program, which operations use on a GPU. Each has memory on the GPU and a copy on the
 * host. The program fills and reads the copy. Without a GPU (device COMM_DEVICE_HOST) there is only the copy.
 * Any failure ends the program. For one thread only.
 */

/* Loads the driver and opens the GPU with that ordinal. COMM_DEVICE_HOST: opens none. */
void gpu_mirror_open(int device);

/* Returns the copy on the host. client null: memory that the library does not know (cuMemAlloc, malloc);
 * else memory of comm_mem_alloc. */
void *gpu_mirror_alloc(comm_client_t *client, size_t size_bytes);

/* Copies the bytes at `host` to the GPU, if the program uses one. Returns where operations find them.
 * `host` lies within one of the copies, or is null. */
void *gpu_mirror_put(const void *host, size_t size_bytes);

/* Returns the same place, but copies nothing. */
void *gpu_mirror_at(const void *host);

/* Copies the bytes back to the host. */
void gpu_mirror_get(void *host, size_t size_bytes);

#endif
