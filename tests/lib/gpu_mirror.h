#ifndef TESTS_LIB_GPU_MIRROR_H
#define TESTS_LIB_GPU_MIRROR_H

#include <stddef.h>

#include <commclient.h>

/*
 * Buffers of a test program that operations use on a GPU: each has its memory there and a copy on the host,
 * which the program fills and looks at. Without a GPU (device COMM_DEVICE_HOST) the copy is all there is.
 * Whatever fails ends the program. One thread.
 */

/* Loads the driver and takes the GPU with that ordinal; COMM_DEVICE_HOST: none. */
void gpu_mirror_open(int device);

/* The host's copy. client null: memory that the library does not know (cuMemAlloc, malloc); else
 * comm_mem_alloc's. */
void *gpu_mirror_alloc(comm_client_t *client, size_t size_bytes);

/* Where operations find what is at `host`, within one of the copies, or null: on the GPU, when the program
 * has one. The bytes that are there now are copied first. */
void *gpu_mirror_put(const void *host, size_t size_bytes);

/* The same place; nothing is copied. */
void *gpu_mirror_at(const void *host);

/* Copies bytes back. */
void gpu_mirror_get(void *host, size_t size_bytes);

#endif
