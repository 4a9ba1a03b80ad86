#ifndef KERNELS_PLATFORM_CUH
#define KERNELS_PLATFORM_CUH

#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

/*
 * The same source is compiled as GPU kernels and, for tests, as host functions that are called once for each
 * thread of a grid. This file holds the differences.
 */

/* The position of a thread in its grid. */
struct kernel_place {
    uint32_t block;
    uint32_t blocks;
    uint32_t thread; /* of its block */
    uint32_t threads;
};

#if defined(__CUDACC__)
#define KERNEL_FUNCTION static __device__ __forceinline__
#define KERNEL_MEMBER static __device__ __forceinline__
/* Two blocks for each multiprocessor: 64 registers a thread, and 1024 threads with loads in flight. */
#define KERNEL_ENTRY(name, struct_name)                                                                      \
    extern "C" __global__ void __launch_bounds__(KERNELS_BLOCK_THREADS, 2)                                   \
        name(const __grid_constant__ struct struct_name arguments)
#define KERNEL_ARGUMENTS(struct_name) arguments
#define KERNEL_PLACE (kernel_place{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x})
#define UNROLL_ALL _Pragma("unroll")
#define UNROLL_NOT _Pragma("unroll 1")
#else
#define KERNEL_FUNCTION static inline
#define KERNEL_MEMBER static inline
#define KERNEL_ENTRY(name, struct_name) static void name(const void *bytes, kernel_place place)
#define KERNEL_ARGUMENTS(struct_name) (*static_cast<const struct struct_name *>(bytes))
#define KERNEL_PLACE place
#define UNROLL_ALL
#define UNROLL_NOT
#endif

#define BITS_FUNCTION KERNEL_FUNCTION
#include "kernels/codec_bits.h"
#include "kernels/convert_bits.h"

/*
 * Threads of a block that work together: each takes every count-th item, from its own number on. All of them
 * call team_sync between steps that use each other's results in shared memory. On the host, the threads of a
 * grid run one after the other, so the first thread of each block is its whole team.
 */
struct kernel_team {
    uint32_t thread;
    uint32_t threads;
};

#if defined(__CUDACC__)
#define TEAM_SHARED __shared__
#define TEAM_OF(place) (kernel_team{(place).thread, (place).threads})
#define TEAM_IS_HERE(place) true
KERNEL_FUNCTION void team_sync()
{
    __syncthreads();
}
KERNEL_FUNCTION void team_max(uint32_t *word, uint32_t value)
{
    atomicMax(word, value);
}
KERNEL_FUNCTION void team_or(uint32_t *word, uint32_t value)
{
    atomicOr(word, value);
}
KERNEL_FUNCTION void team_add(uint32_t *word, uint32_t value)
{
    atomicAdd(word, value);
}
KERNEL_FUNCTION uint32_t bit_count(uint32_t word)
{
    return static_cast<uint32_t>(__popc(word));
}
#else
#define TEAM_SHARED static
#define TEAM_OF(place) (kernel_team{0, 1})
#define TEAM_IS_HERE(place) ((place).thread == 0)
KERNEL_FUNCTION void team_sync()
{
}
KERNEL_FUNCTION void team_max(uint32_t *word, uint32_t value)
{
    *word = value > *word ? value : *word;
}
KERNEL_FUNCTION void team_or(uint32_t *word, uint32_t value)
{
    *word |= value;
}
KERNEL_FUNCTION void team_add(uint32_t *word, uint32_t value)
{
    *word += value;
}
KERNEL_FUNCTION uint32_t bit_count(uint32_t word)
{
    return static_cast<uint32_t>(__builtin_popcount(word));
}
#endif

struct alignas(16) pack {
    uint32_t words[4];
};

/*
 * Every byte is read once and written once: both are marked to leave the caches first. The read-only path is
 * not used, because in place the same kernel writes what it reads.
 */
#if defined(__CUDACC__)
KERNEL_FUNCTION pack load_streaming(const pack *from)
{
    uint4 raw = __ldcs(reinterpret_cast<const uint4 *>(from));
    return pack{{raw.x, raw.y, raw.z, raw.w}};
}
KERNEL_FUNCTION void store_streaming(pack *to, pack value)
{
    __stcs(reinterpret_cast<uint4 *>(to),
           make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]));
}
#define STREAMING(type, cuda_type)                                                                           \
    KERNEL_FUNCTION type load_streaming(const type *from)                                                    \
    {                                                                                                        \
        return static_cast<type>(__ldcs(reinterpret_cast<const cuda_type *>(from)));                         \
    }                                                                                                        \
    KERNEL_FUNCTION void store_streaming(type *to, type value)                                               \
    {                                                                                                        \
        __stcs(reinterpret_cast<cuda_type *>(to), static_cast<cuda_type>(value));                            \
    }
#else
KERNEL_FUNCTION pack load_streaming(const pack *from)
{
    return *from;
}
KERNEL_FUNCTION void store_streaming(pack *to, pack value)
{
    *to = value;
}
#define STREAMING(type, cuda_type)                                                                           \
    KERNEL_FUNCTION type load_streaming(const type *from)                                                    \
    {                                                                                                        \
        type value;                                                                                          \
        memcpy(&value, from, sizeof value);                                                                  \
        return value;                                                                                        \
    }                                                                                                        \
    KERNEL_FUNCTION void store_streaming(type *to, type value)                                               \
    {                                                                                                        \
        memcpy(to, &value, sizeof value);                                                                    \
    }
#endif
STREAMING(uint8_t, unsigned char)
STREAMING(uint16_t, unsigned short)
STREAMING(uint32_t, unsigned)
STREAMING(uint64_t, unsigned long long)
STREAMING(float, float)
STREAMING(double, double)

/* Copies the bits of one type into another of the same size. */
template <typename Target, typename Source> KERNEL_FUNCTION Target bits_as(const Source &source)
{
    static_assert(sizeof(Target) == sizeof(Source), "the bits of one value");
    Target target;
    memcpy(&target, &source, sizeof target);
    return target;
}

#endif
