#include "daemon/gpu/nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/nccl_library.h"

struct gpu_group {
    struct gpu_devices *gpus;
    const struct nccl_library *nccl;
    uint32_t count;
    uint32_t *list;
    nccl_comm *comms;
};

void gpu_nccl_version(char *text, size_t size)
{
    const struct nccl_library *nccl;
    char why[256];
    int version = 0;
    text[0] = '\0';
    if (nccl_library_load(&nccl, why, sizeof why) && nccl->version(&version) == NCCL_RESULT_OK) {
        (void)snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    }
}

/* --- Types and operators --- */

/* NCCL's type, or -1. *elements: how many of NCCL's elements make one of ours. */
static int type_of(enum dtype dtype, uint64_t *elements)
{
    *elements = 1;
    switch (dtype) {
    case DTYPE_F64:
        return NCCL_TYPE_F64;
    case DTYPE_F32:
        return NCCL_TYPE_F32;
    case DTYPE_F16:
        return NCCL_TYPE_F16;
    case DTYPE_BF16:
        return NCCL_TYPE_BF16;
    case DTYPE_I64:
        return NCCL_TYPE_I64;
    case DTYPE_I32:
        return NCCL_TYPE_I32;
    case DTYPE_I8:
        return NCCL_TYPE_I8;
    case DTYPE_U64:
        return NCCL_TYPE_U64;
    case DTYPE_U32:
        return NCCL_TYPE_U32;
    case DTYPE_U8:
        return NCCL_TYPE_U8;
    case DTYPE_C64: /* the sum of complex numbers is the sum of their parts */
        *elements = 2;
        return NCCL_TYPE_F32;
    case DTYPE_C128:
        *elements = 2;
        return NCCL_TYPE_F64;
    case DTYPE_F8E4M3: /* our sums of these types saturate */
    case DTYPE_F8E5M2:
    case DTYPE_I16:
    case DTYPE_U16:
    case DTYPE_BOOL:
        return -1;
    }
    return -1;
}

static bool is_integer(enum dtype dtype)
{
    return dtype >= DTYPE_I64 && dtype <= DTYPE_U8;
}

static bool is_complex(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128;
}

/* NCCL's operator, or -1. Operators that also divide or multiply are not left to NCCL. */
static int operator_of(enum dtype dtype, enum reduce reduce)
{
    switch (reduce) {
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL_SUM:
        return NCCL_REDUCE_SUM;
    case REDUCE_PROD:
        return is_complex(dtype) ? -1 : NCCL_REDUCE_PROD;
    case REDUCE_MIN: /* for floating point, NCCL does not promise what becomes of NaN */
        return is_integer(dtype) ? NCCL_REDUCE_MIN : -1;
    case REDUCE_MAX:
        return is_integer(dtype) ? NCCL_REDUCE_MAX : -1;
    case REDUCE_BAND:
    case REDUCE_BOR:
    case REDUCE_BXOR:
    case REDUCE_LAND:
    case REDUCE_LOR:
        return -1;
    }
    return -1;
}

void gpu_nccl_absent(char *why, size_t size)
{
    const struct nccl_library *nccl;
    why[0] = '\0';
    (void)nccl_library_load(&nccl, why, size);
}

bool gpu_group_is_there(void)
{
    const struct nccl_library *nccl;
    char why[256];
    return nccl_library_load(&nccl, why, sizeof why);
}

bool gpu_group_reduces(enum dtype dtype, enum reduce reduce)
{
    uint64_t elements;
    return type_of(dtype, &elements) >= 0 && operator_of(dtype, reduce) >= 0;
}

/* --- Creating and freeing groups --- */

static enum status group_status(const struct gpu_group *group, const char *call, nccl_result result,
                                struct error *error)
{
    if (result == NCCL_RESULT_OK || result == NCCL_RESULT_IN_PROGRESS) {
        return STATUS_OK;
    }
    const char *detail = group->nccl->last_error(NULL);
    return error_set(error, STATUS_DEVICE, "NCCL among %u GPUs: %s: %s%s%s", group->count, call,
                     group->nccl->error_text(result), detail != NULL && detail[0] != '\0' ? ": " : "",
                     detail != NULL ? detail : "");
}

static enum status group_init(struct gpu_group *group, struct error *error)
{
    struct nccl_id id;
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .blocking = 0,
                                 .cga_cluster_size = NCCL_CONFIG_UNDEFINED_INT,
                                 .min_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                 .max_ctas = GPU_GROUP_CTAS_MAX,
                                 .split_share = NCCL_CONFIG_UNDEFINED_INT};
    enum status status = group_status(group, "ncclGetUniqueId", group->nccl->unique_id(&id), error);
    if (status == STATUS_OK) {
        status = group_status(group, "ncclGroupStart", group->nccl->group_start(), error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < group->count && status == STATUS_OK; i++) {
        status = cuda_enter(group->gpus, group->list[i], error);
        if (status == STATUS_OK) {
            status = group_status(
                group, "ncclCommInitRankConfig",
                group->nccl->comm_init(&group->comms[i], (int)group->count, id, (int)i, &config), error);
        }
    }
    nccl_result ended = group->nccl->group_end();
    return status == STATUS_OK ? group_status(group, "ncclGroupEnd", ended, error) : status;
}

enum status gpu_group_new(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                          struct gpu_group **out, struct error *error)
{
    char why[256];
    struct gpu_group *group = calloc(1, sizeof *group);
    uint32_t *copy = calloc(count, sizeof *copy);
    nccl_comm *comms = calloc(count, sizeof(nccl_comm));
    if (group == NULL || copy == NULL || comms == NULL) {
        free(group);
        free(copy);
        free(comms);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a group of GPUs");
    }
    *group = (struct gpu_group){.gpus = gpus, .count = count, .list = copy, .comms = comms};
    for (uint32_t i = 0; i < count; i++) {
        copy[i] = list[i];
    }
    enum status status = STATUS_OK;
    if (!nccl_library_load(&group->nccl, why, sizeof why)) {
        status = error_set(error, STATUS_UNSUPPORTED, "%s", why);
    }
    if (status == STATUS_OK) {
        status = group_init(group, error);
    }
    if (status != STATUS_OK) {
        gpu_group_free(group);
        return status;
    }
    *out = group;
    return STATUS_OK;
}

void gpu_group_free(struct gpu_group *group)
{
    if (group == NULL) {
        return;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (group->comms[i] != NULL && cuda_enter(group->gpus, group->list[i], NULL) == STATUS_OK) {
            (void)group->nccl->comm_abort(group->comms[i]);
        }
    }
    free(group->comms);
    free(group->list);
    free(group);
}

enum gpu_group_state gpu_group_poll(struct gpu_group *group, struct error *error)
{
    enum gpu_group_state state = GPU_GROUP_READY;
    for (uint32_t i = 0; i < group->count; i++) {
        nccl_result result = NCCL_RESULT_OK;
        nccl_result asked = group->nccl->comm_state(group->comms[i], &result);
        result = asked == NCCL_RESULT_OK ? result : asked;
        if (result == NCCL_RESULT_IN_PROGRESS) {
            state = GPU_GROUP_BUSY;
        } else if (group_status(group, "ncclCommGetAsyncError", result, error) != STATUS_OK) {
            return GPU_GROUP_FAILED;
        }
    }
    return state;
}

/* --- Operations --- */

typedef nccl_result group_call(const void *send, void *receive, size_t count, int type, int reduce,
                               nccl_comm comm, cuda_stream stream);

static enum status group_run(struct gpu_group *group, group_call *call, const char *name,
                             struct gpu_queue *const *queues, const void *const *inputs, void *const *outputs,
                             uint64_t count_elements, enum dtype dtype, enum reduce reduce,
                             struct error *error)
{
    uint64_t elements;
    int type = type_of(dtype, &elements);
    int combine = operator_of(dtype, reduce);
    enum status status = group_status(group, "ncclGroupStart", group->nccl->group_start(), error);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < group->count && status == STATUS_OK; i++) {
        status = cuda_enter(group->gpus, group->list[i], error);
        if (status == STATUS_OK) {
            status = group_status(group, name,
                                  call(inputs[i], outputs[i], (size_t)(count_elements * elements), type,
                                       combine, group->comms[i], gpu_queue_stream(queues[i])),
                                  error);
        }
    }
    nccl_result ended = group->nccl->group_end();
    return status == STATUS_OK ? group_status(group, "ncclGroupEnd", ended, error) : status;
}

enum status gpu_group_all_reduce(struct gpu_group *group, struct gpu_queue *const *queues,
                                 const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                 enum dtype dtype, enum reduce reduce, struct error *error)
{
    return group_run(group, group->nccl->all_reduce, "ncclAllReduce", queues, inputs, outputs, count_elements,
                     dtype, reduce, error);
}

enum status gpu_group_reduce_scatter(struct gpu_group *group, struct gpu_queue *const *queues,
                                     const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                     enum dtype dtype, enum reduce reduce, struct error *error)
{
    return group_run(group, group->nccl->reduce_scatter, "ncclReduceScatter", queues, inputs, outputs,
                     count_elements, dtype, reduce, error);
}
