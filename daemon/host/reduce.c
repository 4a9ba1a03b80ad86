#include "daemon/host/reduce.h"

#include <assert.h>
#include <string.h>

#include "daemon/host/copy.h"
#include "daemon/host/reduce_level.h"

/* One block of wide values at most: the accumulator and one converted input stay in a 32 KiB cache. */
#define BLOCK_BYTES 8192
/* Results that are written back to the inputs find their lines in the cache, if the blocks of all inputs stay
 * there so long. Buffers begin with a page, so blocks of different buffers compete for the same sets of it.
 */
#define KEPT_BLOCK_BYTES 2048
#define KEPT_BLOCKS_BYTES 4096 /* where the operation is larger than the caches: of all inputs together */
/* Past the caches, memory is the limit. Reads and writes that alternate often keep it busy. A block of
 * several KiB leaves it idle while the processor writes the block. Conversions take longer than that. */
#define STREAMED_BLOCK_BYTES 512
#define STREAMED_CONVERTED_BLOCK_BYTES 2048

struct level {
    const char *text;
    const struct reduce_kernels *kernels;
};

static const struct level level_portable = {"portable", reduce_kernels_portable};
#if defined(__x86_64__)
static const struct level level_avx2 = {"avx2", reduce_kernels_avx2};
static const struct level level_avx512 = {"avx512", reduce_kernels_avx512};
#endif
static const struct level *level_now;

static bool level_is_offered(const struct level *level)
{
#if defined(__x86_64__)
    if (level == &level_avx2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    if (level == &level_avx512) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
#endif
    return level == &level_portable;
}

/* Runs before main, so no thread ever sees an incomplete choice. */
__attribute__((constructor)) static void level_choose(void)
{
    level_now = &level_portable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (level_is_offered(&level_avx512)) {
        level_now = &level_avx512;
    } else if (level_is_offered(&level_avx2)) {
        level_now = &level_avx2;
    }
#endif
}

const char *host_reduce_level_text(void)
{
    return level_now->text;
}

enum status host_reduce_force_level(const char *text, struct error *error)
{
    static const struct level *const levels[] = {
        &level_portable,
#if defined(__x86_64__)
        &level_avx2,
        &level_avx512,
#endif
    };
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(levels[i]->text, text) == 0 && level_is_offered(levels[i])) {
            level_now = levels[i];
            return STATUS_OK;
        }
    }
    return error_set(error, STATUS_UNSUPPORTED, "this processor has no level \"%s\"", text);
}

/* Real numbers in one element, and bytes of one wide value. */
static size_t values_per_element(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128 ? 2 : 1;
}

static size_t stored_bytes(enum dtype dtype)
{
    return dtype_size_bytes(dtype) / values_per_element(dtype);
}

static size_t wide_bytes(enum dtype dtype, const struct reduce_kernels *kernels)
{
    return kernels->load != NULL && dtype != DTYPE_BOOL ? sizeof(float) : stored_bytes(dtype);
}

/* The values that all blocks of a reduction share. */
struct pass {
    const struct host_reduction *reduction;
    const struct reduce_kernels *kernels;
    reduce_pair_function *pair;
    void (*load)(void *wide, const void *stored, size_t count);
    size_t value_bytes;  /* of a wide value */
    size_t stored_bytes; /* of a value in the buffers */
    bool straight;       /* from the inputs to the first output */
    bool plain;          /* values are reduced where they lie: no conversion, no factors */
    bool logical;        /* results are 0 or 1, also with one input */
    bool streams;        /* some output streams; `streamed` says which */
    uint64_t streamed[HOST_REDUCE_BUFFERS_MAX / 64];
    bool lines_agree; /* all outputs start at the same offset in a cache line */
};

static bool output_streams(const struct pass *pass, uint32_t output)
{
    return pass->streams && (pass->streamed[output / 64] >> output % 64 & 1) != 0;
}

/* A line that was read as an input is in the cache, so a plain store is faster there. */
static void pass_find_streamed(struct pass *pass)
{
    const struct host_reduction *reduction = pass->reduction;
    memset(pass->streamed, 0, sizeof pass->streamed);
    pass->lines_agree = ((uintptr_t)reduction->outputs[0] & 63u) % dtype_size_bytes(reduction->dtype) == 0;
    for (uint32_t output = 0; output < reduction->output_count; output++) {
        uint32_t k = 0;
        while (k < reduction->input_count && reduction->inputs[k] != reduction->outputs[output]) {
            k++;
        }
        uintptr_t apart = (uintptr_t)reduction->outputs[output] ^ (uintptr_t)reduction->outputs[0];
        pass->lines_agree = pass->lines_agree && (apart & 63u) == 0;
        if (k == reduction->input_count) {
            pass->streamed[output / 64] |= UINT64_C(1) << output % 64;
            pass->streams = true;
        }
    }
}

/* The input's block as wide values. It is used in place if it needs neither conversion nor factor; otherwise
 * it is written to `space`. */
static const void *widen(const struct pass *pass, uint32_t k, size_t offset_bytes, void *space, size_t count)
{
    const struct host_reduction *reduction = pass->reduction;
    const unsigned char *input = (const unsigned char *)reduction->inputs[k] + offset_bytes;
    if (pass->plain) {
        return input;
    }
    if (pass->load != NULL) {
        pass->load(space, input, count);
    } else {
        memcpy(space, input, count * pass->value_bytes);
    }
    if (reduction->factors != NULL) {
        pass->kernels->scale(space, count, reduction->factors[k]);
    }
    return space;
}

static void write_outputs(const struct pass *pass, size_t offset_bytes, const void *result, size_t bytes)
{
    const struct host_reduction *reduction = pass->reduction;
    for (uint32_t k = 0; k < reduction->output_count; k++) {
        unsigned char *output = (unsigned char *)reduction->outputs[k] + offset_bytes;
        if (output_streams(pass, k)) {
            host_copy_streaming(output, result, bytes);
        } else if (output != result) {
            memmove(output, result, bytes);
        }
    }
}

static void reduce_block(const struct pass *pass, size_t offset_bytes, size_t count)
{
    _Alignas(64) unsigned char accumulator[BLOCK_BYTES];
    _Alignas(64) unsigned char converted[BLOCK_BYTES];
    const struct host_reduction *reduction = pass->reduction;
    void *sum = pass->straight ? (unsigned char *)reduction->outputs[0] + offset_bytes : (void *)accumulator;
    const void *result = widen(pass, 0, offset_bytes, accumulator, count);
    for (uint32_t k = 1; k < reduction->input_count; k++) {
        pass->pair(sum, result, widen(pass, k, offset_bytes, converted, count), count);
        result = sum;
    }
    if (reduction->input_count == 1 && pass->logical) {
        pass->pair(sum, result, result, count);
        result = sum;
    }
    if (reduction->divisor > 1) {
        if (result != accumulator) {
            memcpy(accumulator, result, count * pass->value_bytes);
            result = accumulator;
        }
        pass->kernels->divide(accumulator, count, reduction->divisor);
    }
    if (pass->kernels->store != NULL) {
        pass->kernels->store(converted, result, count);
        result = converted;
    }
    write_outputs(pass, offset_bytes, result, count * pass->stored_bytes);
}

/* Of a reduction in which no output streams. */
static size_t kept_block_bytes(const struct pass *pass)
{
    size_t bytes = KEPT_BLOCK_BYTES;
    if (pass->straight) {
        return BLOCK_BYTES; /* no line of an input is needed again */
    }
    if (!pass->reduction->streams) {
        return bytes;
    }
    while (bytes > STREAMED_BLOCK_BYTES && bytes * pass->reduction->input_count > KEPT_BLOCKS_BYTES) {
        bytes /= 2;
    }
    return bytes;
}

/* Cache lines that two blocks share are not streamed. If the blocks of some output would share lines, blocks
 * are large. */
static size_t block_bytes(const struct pass *pass)
{
    if (!pass->streams) {
        return kept_block_bytes(pass);
    }
    if (!pass->lines_agree) {
        return BLOCK_BYTES;
    }
    return pass->plain ? STREAMED_BLOCK_BYTES : STREAMED_CONVERTED_BLOCK_BYTES;
}

/* The first block is shorter by so many values, so that all others begin with a cache line of the outputs. */
static size_t values_behind_line(const struct pass *pass)
{
    const struct host_reduction *reduction = pass->reduction;
    if (!pass->streams) {
        return 0;
    }
    size_t elements = ((uintptr_t)reduction->outputs[0] & 63u) / dtype_size_bytes(reduction->dtype);
    return elements * values_per_element(reduction->dtype);
}

static void pass_begin(struct pass *pass, const struct host_reduction *reduction)
{
    const struct reduce_kernels *kernels = &level_now->kernels[reduction->dtype];
    assert(reduction->input_count >= 1 && reduction->output_count >= 1);
    assert(kernels->pair[reduction->reduce] != NULL);
    pass->reduction = reduction;
    pass->kernels = kernels;
    pass->pair = kernels->pair[reduction->reduce];
    pass->load = kernels->load;
    pass->value_bytes = wide_bytes(reduction->dtype, kernels);
    pass->stored_bytes = stored_bytes(reduction->dtype);
    pass->plain = kernels->load == NULL && reduction->factors == NULL;
    pass->logical = reduction->reduce == REDUCE_LAND || reduction->reduce == REDUCE_LOR;
    pass->streams = false;
    if (reduction->streams) {
        pass_find_streamed(pass);
    }
    /* Two plain inputs go straight to the output. With more inputs, the output could overwrite an input that
     * is read later (in place). */
    pass->straight = kernels->store == NULL && reduction->divisor <= 1 && reduction->input_count <= 2 &&
                     !output_streams(pass, 0);
}

void host_reduce(const struct host_reduction *reduction)
{
    struct pass pass;
    pass_begin(&pass, reduction);
    size_t step = block_bytes(&pass) / pass.value_bytes;
    uint64_t total = reduction->count_elements * values_per_element(reduction->dtype);
    size_t count = step - values_behind_line(&pass);
    for (uint64_t done = 0; done < total; done += count, count = step) {
        count = total - done < count ? (size_t)(total - done) : count;
        reduce_block(&pass, (size_t)done * pass.stored_bytes, count);
    }
    if (pass.streams) {
        host_copy_fence();
    }
}

static void reduce_two(enum dtype dtype, enum reduce reduce, const void *left, const void *right,
                       void *target, uint64_t count_elements)
{
    const void *inputs[2] = {left, right};
    struct host_reduction reduction = {.dtype = dtype,
                                       .reduce = reduce,
                                       .count_elements = count_elements,
                                       .input_count = 2,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &target};
    host_reduce(&reduction);
}

void host_reduce_into(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                      uint64_t count_elements)
{
    reduce_two(dtype, reduce, target, source, target, count_elements);
}

void host_reduce_into_before(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                             uint64_t count_elements)
{
    reduce_two(dtype, reduce, source, target, target, count_elements);
}

#define SETTLE_NAN(name, type)                                                                               \
    static void name(void *values, uint64_t count, type infinity, type nan)                                  \
    {                                                                                                        \
        typedef type any __attribute__((aligned(1), may_alias));                                             \
        any *bits = values;                                                                                  \
        const type magnitude = (type)((type) ~(type)0 >> 1);                                                 \
        for (uint64_t i = 0; i < count; i++) {                                                               \
            bits[i] = (bits[i] & magnitude) > infinity ? nan : bits[i];                                      \
        }                                                                                                    \
    }

SETTLE_NAN(settle_nan_8, uint8_t)
SETTLE_NAN(settle_nan_16, uint16_t)
SETTLE_NAN(settle_nan_32, uint32_t)
SETTLE_NAN(settle_nan_64, uint64_t)

void host_settle_nan(enum dtype dtype, void *values, uint64_t count_elements)
{
    uint64_t count = count_elements * values_per_element(dtype);
    switch (dtype) {
    case DTYPE_F64:
    case DTYPE_C128:
        settle_nan_64(values, count, UINT64_C(0x7ff) << 52, UINT64_C(0xfff) << 51);
        return;
    case DTYPE_F32:
    case DTYPE_C64:
        settle_nan_32(values, count, 0x7f800000u, 0x7fc00000u);
        return;
    case DTYPE_F16:
        settle_nan_16(values, count, 0x7c00, 0x7e00);
        return;
    case DTYPE_BF16:
        settle_nan_16(values, count, 0x7f80, 0x7fc0);
        return;
    case DTYPE_F8E4M3: /* no infinity: the largest number is 0x7e */
        settle_nan_8(values, count, 0x7e, 0x7f);
        return;
    case DTYPE_F8E5M2:
        settle_nan_8(values, count, 0x7c, 0x7e);
        return;
    case DTYPE_I64:
    case DTYPE_I32:
    case DTYPE_I16:
    case DTYPE_I8:
    case DTYPE_U64:
    case DTYPE_U32:
    case DTYPE_U16:
    case DTYPE_U8:
    case DTYPE_BOOL:
        return;
    }
}
