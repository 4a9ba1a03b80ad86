#include <stdint.h>
#include <stdlib.h>

#include "daemon/host/compress.h"
#include "tests/cuda_double/launch.h"

/* The kernels of compressed all-reduces, by the host's codec. */

#define COUNT_MAX (UINT64_C(1) << 32)

/* The bytes of the part that the kernel may access. Encoding top_k leaves room in each block. */
static uint64_t room_of(const struct kernels_code *code, enum compression compression, uint64_t count)
{
    uint64_t bytes = host_compress_max_bytes(compression, code->top_k_permille, count);
    uint64_t blocks = (count + CODEC_TOP_K_BLOCK - 1) / CODEC_TOP_K_BLOCK;
    uint64_t rest = count % CODEC_TOP_K_BLOCK;
    if (compression != COMPRESSION_TOP_K || rest == 0) {
        return bytes;
    }
    return (blocks - 1) * codec_top_k_stride(code->top_k_permille) +
           host_compress_max_bytes(compression, code->top_k_permille, rest);
}

static void encode(const struct kernels_code *code, enum compression compression, float *values,
                   float *residual, uint64_t count, unsigned char *out)
{
    uint64_t step = compression == COMPRESSION_TOP_K ? CODEC_TOP_K_BLOCK : count;
    for (uint64_t done = 0; done < count; done += step) {
        uint64_t some = count - done < step ? count - done : step;
        uint64_t bytes = host_compress(compression, code->top_k_permille, values + done,
                                       residual == NULL ? NULL : residual + done, some, out);
        if (code->replaces != 0 &&
            host_decompress(compression, out, bytes, some, values + done, false, NULL) != STATUS_OK) {
            abort(); /* it does not take what it has made itself */
        }
        out += codec_top_k_stride(code->top_k_permille);
    }
}

/* Returns the end of the payload. In top_k, kernels find the blocks by the offsets. */
static bool payload_bytes(enum compression compression, const unsigned char *in, const uint32_t *offsets,
                          uint64_t count, uint64_t room, uint64_t *out)
{
    *out = host_compress_max_bytes(compression, 0, count);
    if (compression == COMPRESSION_TOP_K) {
        uint32_t last = offsets[(count - 1) / CODEC_TOP_K_BLOCK];
        *out = last + CODEC_TOP_K_COUNT_BYTES + CODEC_TOP_K_ELEMENT_BYTES * (uint64_t)in[last] +
               CODEC_TOP_K_ELEMENT_BYTES * ((uint64_t)in[last + 1] << 8);
    }
    return *out <= room;
}

static cuda_result code_part(const struct kernels_code *code, enum compression compression, bool encodes,
                             const struct kernels_code_part *part, cuda_context context,
                             struct touched *touched)
{
    uint64_t count = part->count_elements;
    uint64_t room = room_of(code, compression, count), bytes;
    unsigned char *const *memory = touched->memory + touched->count;
    bool has_residual = part->residual != NULL, has_offsets = !encodes && compression == COMPRESSION_TOP_K;
    cuda_result result = touch(touched, context, part->values, count * sizeof(float), sizeof(float), true);
    if (result == CUDA_RESULT_OK) {
        result = touch(touched, context, part->encoded, room, KERNELS_CODE_ALIGN_BYTES, encodes);
    }
    if (result == CUDA_RESULT_OK && has_residual) {
        result = touch(touched, context, part->residual, count * sizeof(float), sizeof(float), true);
    }
    if (result == CUDA_RESULT_OK && has_offsets) {
        uint64_t blocks = (count + CODEC_TOP_K_BLOCK - 1) / CODEC_TOP_K_BLOCK;
        result = touch(touched, context, part->offsets, blocks * sizeof(uint32_t), sizeof(uint32_t), false);
    }
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    float *values = (float *)(void *)memory[0];
    if (encodes) {
        encode(code, compression, values, has_residual ? (float *)(void *)memory[2] : NULL, count, memory[1]);
        return CUDA_RESULT_OK;
    }
    const uint32_t *offsets = has_offsets ? (const uint32_t *)(const void *)memory[2] : NULL;
    return payload_bytes(compression, memory[1], offsets, count, room, &bytes) &&
                   host_decompress(compression, memory[1], bytes, count, values, code->adds != 0, NULL) ==
                       STATUS_OK
               ? CUDA_RESULT_OK
               : CUDA_RESULT_LAUNCH_FAILED;
}

cuda_result code_run(const struct kernels_code *code, enum compression compression, bool encodes,
                     cuda_context context, struct touched *touched)
{
    cuda_result result = CUDA_RESULT_OK;
    if (code->part_count > KERNELS_CODE_PARTS_MAX) {
        return CUDA_RESULT_LAUNCH_FAILED;
    }
    for (uint32_t p = 0; p < code->part_count && result == CUDA_RESULT_OK; p++) {
        const struct kernels_code_part *part = &code->parts[p];
        bool wrong = part->count_elements > COUNT_MAX || (!encodes && part->residual != NULL) ||
                     (encodes && part->residual == part->values);
        result = wrong                       ? CUDA_RESULT_LAUNCH_FAILED
                 : part->count_elements == 0 ? CUDA_RESULT_OK
                                             : code_part(code, compression, encodes, part, context, touched);
    }
    return result;
}
