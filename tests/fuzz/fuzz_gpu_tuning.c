#include <stdlib.h>
#include <string.h>

#include "daemon/gpu/tuning_file.h"
#include "tests/fuzz/input.h"

/* The table of what was measured among GPUs, as a file that anybody may have changed. If it can be read, what
 * it says of this machine's GPUs is written again, and read again. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gpu_tuning_machine machine = {.versions = "v",
                                            .gpu_count = 3,
                                            .gpus = {"a", "b", "c"},
                                            .reaches = {{true, true}, {true, true}, {false, false, true}}};
static struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX], again[GPU_TUNING_SETS_MAX];

static void check_set(const struct gpu_tuning_set *set)
{
    double nccl_ns, without_ns;
    fuzz_require(set->gpu_count >= 2 && set->gpu_count <= machine.gpu_count && set->row_count >= 1);
    for (uint32_t i = 0; i < set->row_count; i++) {
        fuzz_require(gpu_tuning_predict(set, set->rows[i].kind, set->rows[i].bytes, &nccl_ns, &without_ns));
        fuzz_require(nccl_ns == (double)set->rows[i].nccl_ns);
        fuzz_require(without_ns == (double)set->rows[i].without_ns);
        (void)gpu_tuning_prefers_nccl(set, set->rows[i].kind, UINT64_MAX, false);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t count, foreign, count_again;
    struct error error;
    char *text = malloc(size + 1); /* of its own, so that the sanitizers see its ends */
    fuzz_require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    if (gpu_tuning_file_parse(text, size, &machine, sets, &count, &foreign, &error) == STATUS_OK) {
        for (uint32_t i = 0; i < count; i++) {
            check_set(&sets[i]);
        }
        char *written = gpu_tuning_file_text(&machine, sets, count);
        fuzz_require(written != NULL);
        fuzz_require(gpu_tuning_file_parse(written, strlen(written), &machine, again, &count_again, &foreign,
                                           &error) == STATUS_OK);
        fuzz_require(count_again == count && foreign == 0);
        free(written);
    }
    free(text);
    return 0;
}
