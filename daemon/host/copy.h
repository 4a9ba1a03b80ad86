#ifndef DAEMON_HOST_COPY_H
#define DAEMON_HOST_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Copies past the caches: the target is not read first, and no other data leave the caches. This pays if an
 * operation touches more than the last-level cache holds and nobody reads the target soon. Any alignment; no
 * overlap. If the processor has no such stores, this is a plain copy. Call host_copy_fence before you tell
 * another thread that the bytes are there.
 */
void host_copy_streaming(void *target, const void *source, size_t size_bytes);
void host_copy_fence(void);

/*
 * Copies one source to every target, but reads it from memory once. A target that equals the source is left
 * alone; other overlaps are not allowed. Any alignment. streams: copies past the caches, including the fence.
 */
void host_copy_to_all(void *const *targets, uint32_t target_count, const void *source, size_t size_bytes,
                      bool streams);

/* Whether an operation that touches so many bytes should stream: if they exceed the last-level cache, or 32
 * MiB where its size is not known. Thread-safe. */
bool host_copy_streams(uint64_t touched_bytes);

#endif
