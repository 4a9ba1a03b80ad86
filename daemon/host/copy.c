#include "daemon/host/copy.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/*
 * Data that are copied to several places stay in the second-level cache meanwhile. Also, one copy of a MiB is
 * slower than copies of its blocks. Past the caches, reads and writes that alternate often keep memory busy.
 */
#define BLOCK_BYTES ((size_t)64 << 10)
#define STREAMED_BLOCK_BYTES ((size_t)512)

#define DEFAULT_CACHE_BYTES (UINT64_C(32) << 20)

#if defined(__x86_64__)
#include <immintrin.h>

void host_copy_streaming(void *target, const void *source, size_t size_bytes)
{
    unsigned char *to = target;
    const unsigned char *from = source;
    size_t head = (size_t)(-(uintptr_t)to & 63u);
    head = head < size_bytes ? head : size_bytes;
    if (head > 0) {
        memcpy(to, from, head);
        to += head;
        from += head;
        size_bytes -= head;
    }
    /* A whole line at a time: the write-combining buffer must be full before the processor needs it again. */
    for (; size_bytes >= 64; size_bytes -= 64, to += 64, from += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
    if (size_bytes > 0) {
        memcpy(to, from, size_bytes);
    }
}

void host_copy_fence(void)
{
    _mm_sfence();
}
#else
void host_copy_streaming(void *target, const void *source, size_t size_bytes)
{
    memcpy(target, source, size_bytes);
}

void host_copy_fence(void)
{
}
#endif

/* Cache lines that two blocks share are not streamed. If all targets start at the same offset in a line, the
 * first block takes the bytes before the next line. Otherwise blocks are large. */
static size_t streamed_block_bytes(void *const *targets, uint32_t target_count, size_t *first_bytes)
{
    size_t behind = (uintptr_t)targets[0] & 63u;
    for (uint32_t k = 1; k < target_count; k++) {
        if (((uintptr_t)targets[k] & 63u) != behind) {
            *first_bytes = BLOCK_BYTES;
            return BLOCK_BYTES;
        }
    }
    *first_bytes = STREAMED_BLOCK_BYTES - behind;
    return STREAMED_BLOCK_BYTES;
}

void host_copy_to_all(void *const *targets, uint32_t target_count, const void *source, size_t size_bytes,
                      bool streams)
{
    size_t block_bytes = BLOCK_BYTES;
    size_t count = BLOCK_BYTES;
    if (streams && target_count > 0) {
        block_bytes = streamed_block_bytes(targets, target_count, &count);
    }
    for (size_t done = 0; done < size_bytes; done += count, count = block_bytes) {
        count = size_bytes - done < count ? size_bytes - done : count;
        const unsigned char *from = (const unsigned char *)source + done;
        for (uint32_t k = 0; k < target_count; k++) {
            unsigned char *to = (unsigned char *)targets[k] + done;
            if (to == from) {
                continue;
            }
            if (streams) {
                host_copy_streaming(to, from, count);
            } else {
                memmove(to, from, count);
            }
        }
    }
    if (streams) {
        host_copy_fence();
    }
}

/* The size of the last-level cache as the kernel reports it. In a virtual machine, sysconf would report the
 * host's. */
static uint64_t last_level_cache_bytes(void)
{
    char unit = '\0';
    unsigned long long size = 0;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (file == NULL) {
        return DEFAULT_CACHE_BYTES;
    }
    int fields = fscanf(file, "%llu%c", &size, &unit);
    (void)fclose(file);
    return fields == 2 && unit == 'K' && size > 0 && size < 1u << 30 ? size << 10 : DEFAULT_CACHE_BYTES;
}

bool host_copy_streams(uint64_t touched_bytes)
{
    static _Atomic uint64_t known_bytes;
    uint64_t cache_bytes = atomic_load_explicit(&known_bytes, memory_order_relaxed);
    if (cache_bytes == 0) {
        cache_bytes = last_level_cache_bytes();
        atomic_store_explicit(&known_bytes, cache_bytes, memory_order_relaxed);
    }
    return touched_bytes > cache_bytes;
}
