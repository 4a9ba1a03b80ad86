#include "tests/unit/kernels/host_kernels.h"

#include "kernels/kernels.cu"

namespace
{
struct host_kernel {
    const char *name;
    void (*function)(const void *arguments, kernel_place place);
};

#define ROWS(dtype, operator_name, type, fold, special)                                                      \
    {"commd_reduce_" #dtype "_" #operator_name, commd_reduce_##dtype##_##operator_name},                     \
        {"commd_reduce_" #dtype "_" #operator_name KERNELS_MANY,                                             \
         commd_reduce_##dtype##_##operator_name##_many},
#define CODE_ROWS(compression)                                                                               \
    {"commd_encode_" #compression, commd_encode_##compression},                                              \
        {"commd_decode_" #compression, commd_decode_##compression},
const host_kernel host_kernels[] = {
    REDUCE_KERNELS(ROWS) CODE_KERNELS(CODE_ROWS){KERNELS_COPY, commd_copy}};
} // namespace

bool host_kernel_run(const char *name, const void *arguments, uint32_t blocks, uint32_t threads,
                     bool backwards)
{
    for (const host_kernel &kernel : host_kernels) {
        if (strcmp(kernel.name, name) == 0) {
            for (uint64_t i = 0; i < static_cast<uint64_t>(blocks) * threads; i++) {
                uint64_t at = backwards ? static_cast<uint64_t>(blocks) * threads - 1 - i : i;
                kernel.function(arguments, kernel_place{static_cast<uint32_t>(at / threads), blocks,
                                                        static_cast<uint32_t>(at % threads), threads});
            }
            return true;
        }
    }
    return false;
}
