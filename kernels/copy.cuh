#ifndef KERNELS_COPY_CUH
#define KERNELS_COPY_CUH

#include "kernels/platform.cuh"

/*
 * Many copies in one launch. Each copy is cut into chunks of COPY_CHUNK_BYTES, counted from the 16-byte
 * boundary at or before its target. The blocks take turns at the chunks of all copies. So the work spreads by
 * bytes, and only the first and the last chunk of a copy are irregular.
 */
#define COPY_CHUNK_BYTES 32768u

/* Copies words of one size in order, a few in flight. */
template <typename Word>
KERNEL_FUNCTION void copy_words(unsigned char *target, const unsigned char *source, uint32_t bytes,
                                const kernel_place &place)
{
    constexpr uint32_t UNROLL = 4;
    const uint32_t words = bytes / static_cast<uint32_t>(sizeof(Word));
    UNROLL_NOT
    for (uint32_t first = place.thread; first < words; first += place.threads * UNROLL) {
        Word values[UNROLL];
        UNROLL_ALL
        for (uint32_t u = 0; u < UNROLL; u++) {
            if (first + u * place.threads < words) {
                values[u] =
                    load_streaming(reinterpret_cast<const Word *>(source) + first + u * place.threads);
            }
        }
        UNROLL_ALL
        for (uint32_t u = 0; u < UNROLL; u++) {
            if (first + u * place.threads < words) {
                store_streaming(reinterpret_cast<Word *>(target) + first + u * place.threads, values[u]);
            }
        }
    }
}

/* Copies with the widest word for which source and target are aligned alike, and single bytes before and
 * after. */
template <typename Word>
KERNEL_FUNCTION void copy_aligned(unsigned char *target, const unsigned char *source, uint32_t bytes,
                                  const kernel_place &place)
{
    uint32_t before = static_cast<uint32_t>(-reinterpret_cast<uint64_t>(target) & (sizeof(Word) - 1));
    before = before < bytes ? before : bytes;
    const uint32_t middle = (bytes - before) & ~static_cast<uint32_t>(sizeof(Word) - 1);
    const uint32_t odd = bytes - middle;
    for (uint32_t i = place.thread; i < odd; i += place.threads) {
        const uint32_t at = i < before ? i : i + middle;
        store_streaming(target + at, load_streaming(source + at));
    }
    copy_words<Word>(target + before, source + before, middle, place);
}

KERNEL_FUNCTION void copy_chunk(unsigned char *target, const unsigned char *source, uint32_t bytes,
                                const kernel_place &place)
{
    const uint64_t differences = reinterpret_cast<uint64_t>(target) ^ reinterpret_cast<uint64_t>(source);
    if ((differences & 15) == 0) {
        copy_aligned<pack>(target, source, bytes, place);
    } else if ((differences & 7) == 0) {
        copy_aligned<uint64_t>(target, source, bytes, place);
    } else if ((differences & 3) == 0) {
        copy_aligned<uint32_t>(target, source, bytes, place);
    } else if ((differences & 1) == 0) {
        copy_aligned<uint16_t>(target, source, bytes, place);
    } else {
        copy_words<uint8_t>(target, source, bytes, place);
    }
}

KERNEL_FUNCTION void copy_all(const kernels_copy &arguments, const kernel_place &place)
{
    uint64_t chunk = place.block; /* index, counted from the first chunk of the current copy */
    UNROLL_NOT
    for (uint32_t i = 0; i < arguments.count; i++) {
        unsigned char *target = static_cast<unsigned char *>(arguments.copies[i].target);
        const unsigned char *source = static_cast<const unsigned char *>(arguments.copies[i].source);
        const uint64_t bytes = arguments.copies[i].bytes;
        const uint64_t before = reinterpret_cast<uint64_t>(target) & 15; /* of the boundary to the target */
        const uint64_t chunks = bytes == 0 ? 0 : (bytes + before - 1) / COPY_CHUNK_BYTES + 1;
        UNROLL_NOT
        for (; chunk < chunks; chunk += place.blocks) {
            const uint64_t begin = chunk == 0 ? 0 : chunk * COPY_CHUNK_BYTES - before;
            const uint64_t next = (chunk + 1) * COPY_CHUNK_BYTES - before;
            const uint64_t end = next < bytes ? next : bytes;
            copy_chunk(target + begin, source + begin, static_cast<uint32_t>(end - begin), place);
        }
        chunk -= chunks;
    }
}

#endif
