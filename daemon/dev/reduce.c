#include "daemon/dev/reduce.h"

#include <assert.h>
#include <string.h>

#include "daemon/dev/copy.h"
#include "daemon/dev/reduce_level.h"

/* One block of wide values: small enough that the accumulator and one converted input stay in a 32 KiB cache.
 */
#define BLOCK_BYTES 8192

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

/* Before main, so that no thread ever sees a half-made choice. */
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

const char *dev_reduce_level_text(void)
{
    return level_now->text;
}

enum status dev_reduce_force_level(const char *text, struct error *error)
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

/* The input's block as wide values: where it lies, if it needs neither conversion nor factor, else in
 * `space`. */
static const void *widen(const struct reduce_kernels *kernels, const void *input, void *space, size_t count,
                         size_t value_bytes, const double *factor)
{
    if (kernels->load == NULL && factor == NULL) {
        return input;
    }
    if (kernels->load != NULL) {
        kernels->load(space, input, count);
    } else {
        memcpy(space, input, count * value_bytes);
    }
    if (factor != NULL) {
        kernels->scale(space, count, *factor);
    }
    return space;
}

/* A line that was read as an input is in the cache: there a plain store is the shorter way. */
static bool output_streams(const struct dev_reduction *reduction, uint32_t output)
{
    for (uint32_t k = 0; reduction->streams && k < reduction->input_count; k++) {
        if (reduction->inputs[k] == reduction->outputs[output]) {
            return false;
        }
    }
    return reduction->streams;
}

static void reduce_block(const struct dev_reduction *reduction, const struct reduce_kernels *kernels,
                         size_t offset_bytes, size_t count, size_t value_bytes)
{
    _Alignas(64) unsigned char accumulator[BLOCK_BYTES];
    _Alignas(64) unsigned char converted[BLOCK_BYTES];
    reduce_pair_function *pair = kernels->pair[reduction->reduce];
    unsigned char *first_output = (unsigned char *)reduction->outputs[0] + offset_bytes;
    size_t block_bytes = count * stored_bytes(reduction->dtype);
    /* Two plain inputs go straight to the output; more would overwrite an input that is still to be read, in
     * place. */
    bool straight = kernels->store == NULL && reduction->divisor <= 1 && reduction->input_count <= 2 &&
                    !output_streams(reduction, 0);
    void *sum = straight ? first_output : accumulator;
    const void *result = NULL;
    for (uint32_t k = 0; k < reduction->input_count; k++) {
        const unsigned char *input = (const unsigned char *)reduction->inputs[k] + offset_bytes;
        const double *factor = reduction->factors != NULL ? &reduction->factors[k] : NULL;
        void *space = k == 0 ? accumulator : converted;
        const void *values = widen(kernels, input, space, count, value_bytes, factor);
        if (k == 0) {
            result = values;
        } else {
            pair(sum, result, values, count);
            result = sum;
        }
    }
    bool logical = reduction->reduce == REDUCE_LAND || reduction->reduce == REDUCE_LOR;
    if (reduction->input_count == 1 && logical) {
        pair(sum, result, result, count); /* 0 or 1, as of more */
        result = sum;
    }
    if (reduction->divisor > 1) {
        if (result != accumulator) {
            memcpy(accumulator, result, count * value_bytes);
            result = accumulator;
        }
        kernels->divide(accumulator, count, reduction->divisor);
    }
    if (kernels->store != NULL) {
        kernels->store(converted, result, count);
        result = converted;
    }
    for (uint32_t k = 0; k < reduction->output_count; k++) {
        unsigned char *output = (unsigned char *)reduction->outputs[k] + offset_bytes;
        if (output_streams(reduction, k)) {
            dev_copy_streaming(output, result, block_bytes);
        } else if (output != result) {
            memmove(output, result, block_bytes);
        }
    }
}

void dev_reduce(const struct dev_reduction *reduction)
{
    const struct reduce_kernels *kernels = &level_now->kernels[reduction->dtype];
    assert(reduction->input_count >= 1 && reduction->output_count >= 1);
    assert(kernels->pair[reduction->reduce] != NULL);
    size_t value_bytes = wide_bytes(reduction->dtype, kernels);
    size_t step = BLOCK_BYTES / value_bytes;
    uint64_t total = reduction->count_elements * values_per_element(reduction->dtype);
    for (uint64_t done = 0; done < total; done += step) {
        size_t count = total - done < step ? (size_t)(total - done) : step;
        reduce_block(reduction, kernels, (size_t)done * stored_bytes(reduction->dtype), count, value_bytes);
    }
    if (reduction->streams) {
        dev_copy_fence();
    }
}

static void reduce_two(enum dtype dtype, enum reduce reduce, const void *left, const void *right,
                       void *target, uint64_t count_elements)
{
    const void *inputs[2] = {left, right};
    struct dev_reduction reduction = {.dtype = dtype,
                                      .reduce = reduce,
                                      .count_elements = count_elements,
                                      .input_count = 2,
                                      .output_count = 1,
                                      .inputs = inputs,
                                      .outputs = &target};
    dev_reduce(&reduction);
}

void dev_reduce_into(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                     uint64_t count_elements)
{
    reduce_two(dtype, reduce, target, source, target, count_elements);
}

void dev_reduce_into_before(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                            uint64_t count_elements)
{
    reduce_two(dtype, reduce, source, target, target, count_elements);
}
