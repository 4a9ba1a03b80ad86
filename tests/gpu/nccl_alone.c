#include "tests/gpu/nccl_alone.h"

#include <stdio.h>
#include <stdlib.h>

static void must(const struct nccl_alone *nccl, const char *function, nccl_result result)
{
    if (result != NCCL_RESULT_OK) {
        fprintf(stderr, "%s: %s\n", function, nccl->library->error_text(result));
        exit(1);
    }
}

bool nccl_alone_open(struct nccl_alone *nccl, char *why, size_t why_size)
{
    struct nccl_id id;
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .blocking = 1,
                                 .cga_cluster_size = NCCL_CONFIG_UNDEFINED_INT,
                                 .min_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                 .max_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                 .split_share = NCCL_CONFIG_UNDEFINED_INT};
    *nccl = (struct nccl_alone){0};
    if (!nccl_library_load(&nccl->library, why, why_size)) {
        return false;
    }
    must(nccl, "ncclGetVersion", nccl->library->version(&nccl->version));
    nccl_result result = nccl->library->unique_id(&id);
    if (result == NCCL_RESULT_OK) {
        result = nccl->library->comm_init(&nccl->comm, 1, id, 0, &config);
    }
    if (result != NCCL_RESULT_OK) {
        (void)snprintf(why, why_size, "NCCL, of one rank: %s", nccl->library->error_text(result));
    }
    return result == NCCL_RESULT_OK;
}

void nccl_alone_close(struct nccl_alone *nccl)
{
    must(nccl, "ncclCommDestroy", nccl->library->comm_destroy(nccl->comm));
}

void nccl_alone_reduce(struct nccl_alone *nccl, const struct gpu *gpu, cuda_pointer input,
                       cuda_pointer output, size_t bytes)
{
    must(nccl, "ncclAllReduce",
         nccl->library->all_reduce((const void *)(uintptr_t)input, (void *)(uintptr_t)output, bytes / 4,
                                   NCCL_TYPE_F32, NCCL_REDUCE_SUM, nccl->comm, gpu->stream));
}
