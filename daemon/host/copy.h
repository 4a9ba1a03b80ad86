#ifndef DAEMON_HOST_COPY_H
#define DAEMON_HOST_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Copies past the caches: what is written is not read first, and pushes nothing out. It pays where an
 * operation touches more than the last-level cache holds, and nobody reads the target soon. Any alignment;
 * no overlap. Where the processor has no such stores, a plain copy. host_copy_fence before another thread is
 * told that the bytes are there.
 */
void host_copy_streaming(void *target, const void *source, size_t size_bytes);
void host_copy_fence(void);

/*
 * One source to every target: it is read from memory once. A target that is the source is left alone; other
 * overlaps are not allowed. Any alignment. streams: past the caches, with the fence.
 */
void host_copy_to_all(void *const *targets, uint32_t target_count, const void *source, size_t size_bytes,
                      bool streams);

/* Whether an operation that touches so many bytes should stream: more than the last-level cache, 32 MiB where
 * that is not known. Thread-safe. */
bool host_copy_streams(uint64_t touched_bytes);

#endif
