#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/reduce.h"
#include "kernels/kernels.h"
#include "tests/cuda_double/launch.h"
#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"
#include "tests/cuda_double/traffic.h"

#define BLOCK_THREADS_MAX 1024u
#define BLOCK_Z_MAX 64u
#define GRID_X_MAX 0x7fffffffu
#define GRID_YZ_MAX 65535u
#define SHARED_BYTES_MAX (48u << 10)

struct module {
    cuda_context context;
    struct function *functions;
};

struct function {
    struct function *next;
    struct module *module;
    cuda_function handle;
    bool copies;
    bool codes, encodes;
    enum compression compression;
    enum dtype dtype;
    enum reduce reduce;
    uint32_t room; /* how many buffers its struct has room for */
};

struct launch_work {
    struct work work;
    bool copies;
    bool codes, encodes;
    enum compression compression;
    enum dtype dtype;
    enum reduce reduce;
    uint32_t room;
    union {
        /* arguments of the small struct are copied into this large one */
        struct kernels_reduce_many reduction;
        struct kernels_copy copy;
        struct kernels_code code;
    } arguments;
};

/* ---- what a kernel does */

cuda_result touch(struct touched *touched, cuda_context context, const void *address, uint64_t bytes,
                  unsigned alignment, bool writes)
{
    size_t at = touched->count;
    traffic_count(context, (uint64_t)(uintptr_t)address, bytes, writes);
    cuda_result result = memory_resolve(context, (uint64_t)(uintptr_t)address, bytes, alignment, TOUCH_KERNEL,
                                        &touched->memory[at], &touched->pins[at]);
    touched->count += result == CUDA_RESULT_OK;
    return result;
}

static void untouch(const struct touched *touched)
{
    for (size_t i = 0; i < touched->count; i++) {
        memory_unpin(&touched->pins[i]);
    }
}

static bool overlap(const unsigned char *a, const unsigned char *b, uint64_t bytes)
{
    return a < b + bytes && b < a + bytes;
}

/* An output may be the same as an input. It may overlap no other buffer. */
static bool outputs_are_sound(const struct touched *touched, uint32_t input_count, uint64_t bytes)
{
    for (size_t out = input_count; out < touched->count; out++) {
        for (size_t other = 0; other < out; other++) {
            const unsigned char *a = touched->memory[out];
            const unsigned char *b = touched->memory[other];
            if (overlap(a, b, bytes) && !(a == b && other < input_count)) {
                return false;
            }
        }
    }
    return true;
}

static unsigned alignment_of(enum dtype dtype)
{
    size_t bytes = dtype_size_bytes(dtype);
    return (unsigned)(dtype == DTYPE_C64 || dtype == DTYPE_C128 ? bytes / 2 : bytes);
}

static cuda_result reduce_run(const struct launch_work *launch, cuda_context context, struct touched *touched)
{
    const struct kernels_reduce_many *arguments = &launch->arguments.reduction;
    uint64_t bytes = arguments->count_elements * dtype_size_bytes(launch->dtype);
    unsigned alignment = alignment_of(launch->dtype);
    cuda_result result = CUDA_RESULT_OK;
    if (arguments->count_elements == 0) {
        return CUDA_RESULT_OK;
    }
    if (arguments->input_count == 0 || arguments->input_count > launch->room ||
        arguments->output_count == 0 || arguments->output_count > launch->room ||
        arguments->count_elements > UINT64_MAX / DTYPE_SIZE_MAX_BYTES) {
        return CUDA_RESULT_LAUNCH_FAILED;
    }
    for (uint32_t i = 0; i < arguments->input_count && result == CUDA_RESULT_OK; i++) {
        result = touch(touched, context, arguments->inputs[i], bytes, alignment, false);
    }
    for (uint32_t i = 0; i < arguments->output_count && result == CUDA_RESULT_OK; i++) {
        result = touch(touched, context, arguments->outputs[i], bytes, alignment, true);
    }
    if (result != CUDA_RESULT_OK || !outputs_are_sound(touched, arguments->input_count, bytes)) {
        return result != CUDA_RESULT_OK ? result : CUDA_RESULT_LAUNCH_FAILED;
    }
    const struct host_reduction reduction = {
        .dtype = launch->dtype,
        .reduce = launch->reduce,
        .count_elements = arguments->count_elements,
        .input_count = arguments->input_count,
        .output_count = arguments->output_count,
        .inputs = (const void *const *)touched->memory,
        .outputs = (void *const *)(touched->memory + arguments->input_count),
        .factors = arguments->has_factors != 0 ? arguments->factors : NULL,
        .divisor = arguments->divisor};
    double_unlock();
    host_reduce(&reduction);
    double_lock();
    return CUDA_RESULT_OK;
}

static cuda_result copies_run(const struct launch_work *launch, cuda_context context, struct touched *touched)
{
    const struct kernels_copy *arguments = &launch->arguments.copy;
    cuda_result result = CUDA_RESULT_OK;
    if (arguments->count > KERNELS_COPIES_MAX) {
        return CUDA_RESULT_LAUNCH_FAILED;
    }
    for (uint32_t i = 0; i < arguments->count && result == CUDA_RESULT_OK; i++) {
        result = touch(touched, context, arguments->copies[i].source, arguments->copies[i].bytes, 1, false);
        if (result == CUDA_RESULT_OK) {
            result =
                touch(touched, context, arguments->copies[i].target, arguments->copies[i].bytes, 1, true);
        }
        const unsigned char *const *memory = (const unsigned char *const *)touched->memory + 2 * (size_t)i;
        if (result == CUDA_RESULT_OK && memory[0] != memory[1] &&
            overlap(memory[0], memory[1], arguments->copies[i].bytes)) {
            result = CUDA_RESULT_LAUNCH_FAILED;
        }
    }
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_unlock();
    for (uint32_t i = 0; i < arguments->count; i++) {
        if (arguments->copies[i].bytes > 0) {
            memmove(touched->memory[2 * i + 1], touched->memory[2 * i], arguments->copies[i].bytes);
        }
    }
    double_lock();
    return CUDA_RESULT_OK;
}

/* Of a reduction, or of a copy's first piece. */
static uint64_t output_bytes(const struct launch_work *launch)
{
    if (launch->copies) {
        return launch->arguments.copy.count > 0 ? launch->arguments.copy.copies[0].bytes : 0;
    }
    return launch->codes ? 0 : launch->arguments.reduction.count_elements * dtype_size_bytes(launch->dtype);
}

static cuda_result launch_run(struct work *work, struct stream *stream)
{
    const struct launch_work *launch = (const struct launch_work *)work;
    struct touched *touched = malloc(sizeof *touched);
    if (touched == NULL) {
        return CUDA_RESULT_LAUNCH_FAILED;
    }
    touched->count = 0;
    settings_delay_kernel(output_bytes(launch));
    double_lock();
    cuda_result result = launch->copies  ? copies_run(launch, stream->context, touched)
                         : launch->codes ? code_run(&launch->arguments.code, launch->compression,
                                                    launch->encodes, stream->context, touched)
                                         : reduce_run(launch, stream->context, touched);
    untouch(touched);
    double_unlock();
    free(touched);
    return result;
}

static void launch_destroy(struct work *work)
{
    free(work);
}

/* ---- modules and functions */

cuda_result cuModuleLoadData(cuda_module *module, const void *image)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct module *made = image != NULL ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        return image == NULL ? CUDA_RESULT_INVALID_VALUE : CUDA_RESULT_OUT_OF_MEMORY;
    }
    made->context = context_now();
    double_lock();
    if (settings()->blocking_allocation) {
        (void)context_await(context_now());
    }
    *module = (cuda_module)object_add(OBJECT_MODULE, made);
    double_unlock();
    return CUDA_RESULT_OK;
}

cuda_result cuModuleUnload(cuda_module handle)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    struct module *module = object_remove(OBJECT_MODULE, (uintptr_t)handle);
    while (module != NULL && module->functions != NULL) {
        struct function *function = module->functions;
        module->functions = function->next;
        (void)object_remove(OBJECT_FUNCTION, (uintptr_t)function->handle);
        free(function);
    }
    free(module);
    double_unlock();
    return module != NULL ? CUDA_RESULT_OK : CUDA_RESULT_INVALID_HANDLE;
}

static bool is_reduction(const char *name, enum dtype dtype, enum reduce reduce, struct function *out)
{
    char text[128];
    for (int many = 0; many < 2; many++) {
        (void)snprintf(text, sizeof text, KERNELS_REDUCE_FORMAT, dtype_text(dtype), reduce_text(reduce),
                       many ? KERNELS_MANY : "");
        if (strcmp(name, text) == 0) {
            *out = (struct function){
                .dtype = dtype, .reduce = reduce, .room = many ? KERNELS_MANY_MAX : KERNELS_FEW};
            return true;
        }
    }
    return false;
}

static bool is_coding(const char *name, struct function *out)
{
    for (unsigned c = COMPRESSION_BF16; c < COMPRESSION_COUNT; c++) {
        for (int encodes = 0; encodes < 2; encodes++) {
            char text[64];
            (void)snprintf(text, sizeof text, encodes ? KERNELS_ENCODE_FORMAT : KERNELS_DECODE_FORMAT,
                           compression_text((enum compression)c));
            if (strcmp(name, text) == 0) {
                *out = (struct function){
                    .codes = true, .encodes = encodes != 0, .compression = (enum compression)c};
                return true;
            }
        }
    }
    return false;
}

static bool function_named(const char *name, struct function *out)
{
    if (is_coding(name, out)) {
        return true;
    }
    if (strcmp(name, KERNELS_COPY) == 0) {
        *out = (struct function){.copies = true};
        return true;
    }
    for (unsigned type = 0; type < DTYPE_COUNT; type++) {
        for (unsigned operator= 0; operator<REDUCE_COUNT; operator++) {
            enum dtype dtype = (enum dtype)type;
            enum reduce reduce = (enum reduce) operator;
            bool exists =
                reduce != REDUCE_AVG && reduce != REDUCE_PREMUL_SUM && reduce_is_defined(dtype, reduce);
            if (exists && is_reduction(name, dtype, reduce, out)) {
                return true;
            }
        }
    }
    return false;
}

cuda_result cuModuleGetFunction(cuda_function *function, cuda_module handle, const char *name)
{
    struct function found;
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (!function_named(name, &found)) {
        return CUDA_RESULT_NOT_FOUND;
    }
    double_lock();
    struct module *module = object_get(OBJECT_MODULE, (uintptr_t)handle);
    struct function *made = module != NULL ? malloc(sizeof *made) : NULL;
    if (made == NULL) {
        result = module == NULL ? CUDA_RESULT_INVALID_HANDLE : CUDA_RESULT_OUT_OF_MEMORY;
    } else {
        *made = found;
        made->module = module;
        made->next = module->functions;
        made->handle = (cuda_function)object_add(OBJECT_FUNCTION, made);
        module->functions = made;
        *function = made->handle;
    }
    double_unlock();
    return result;
}

/* ---- launches */

/* The arrays of the small struct are shorter, so its members lie closer together. Each array goes to its
 * place in the large struct. */
static void take_arguments(struct launch_work *launch, const void *given)
{
    struct kernels_reduce_few few;
    struct kernels_reduce_many *many = &launch->arguments.reduction;
    if (launch->copies) {
        memcpy(&launch->arguments.copy, given, sizeof launch->arguments.copy);
        return;
    }
    if (launch->codes) {
        memcpy(&launch->arguments.code, given, sizeof launch->arguments.code);
        return;
    }
    if (launch->room == KERNELS_MANY_MAX) {
        memcpy(many, given, sizeof *many);
        return;
    }
    memcpy(&few, given, sizeof few);
    many->count_elements = few.count_elements;
    many->divisor = few.divisor;
    many->input_count = few.input_count;
    many->output_count = few.output_count;
    many->has_factors = few.has_factors;
    memcpy(many->inputs, few.inputs, sizeof few.inputs);
    memcpy(many->outputs, few.outputs, sizeof few.outputs);
    memcpy(many->factors, few.factors, sizeof few.factors);
}

static cuda_result launch(cuda_function handle, cuda_stream stream_handle, const void *arguments)
{
    struct stream *stream;
    const struct function *function = object_get(OBJECT_FUNCTION, (uintptr_t)handle);
    if (function == NULL) {
        return CUDA_RESULT_INVALID_HANDLE;
    }
    cuda_result result = stream_find_here(stream_handle, &stream);
    if (result == CUDA_RESULT_OK && function->module->context != context_now()) {
        result = CUDA_RESULT_INVALID_HANDLE;
    }
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct launch_work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    work->work = (struct work){.references = 1, .run = launch_run, .destroy = launch_destroy};
    work->copies = function->copies;
    work->codes = function->codes;
    work->encodes = function->encodes;
    work->compression = function->compression;
    work->dtype = function->dtype;
    work->reduce = function->reduce;
    work->room = function->room;
    take_arguments(work, arguments);
    return stream_submit(stream, &work->work, NULL);
}

static bool within(unsigned value, unsigned most)
{
    return value > 0 && value <= most;
}

cuda_result cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           cuda_stream stream, void **parameters, void **extra)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (!within(grid_x, GRID_X_MAX) || !within(grid_y, GRID_YZ_MAX) || !within(grid_z, GRID_YZ_MAX) ||
        !within(block_x, BLOCK_THREADS_MAX) || !within(block_y, BLOCK_THREADS_MAX) ||
        !within(block_z, BLOCK_Z_MAX) || (uint64_t)block_x * block_y * block_z > BLOCK_THREADS_MAX ||
        shared_bytes > SHARED_BYTES_MAX || parameters == NULL || parameters[0] == NULL || extra != NULL) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = launch(function, stream, parameters[0]);
    double_unlock();
    return result;
}
