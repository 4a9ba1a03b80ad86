#include <string.h>

#include "daemon/api/session.h"

/* commctl algorithms: which engine operations among several GPUs of this node have, and why. */

static const char *engine_text(enum gpu_engine engine)
{
    switch (engine) {
    case GPU_ENGINE_NCCL:
        return "NCCL";
    case GPU_ENGINE_KERNELS:
        return "kernels";
    case GPU_ENGINE_HOST:
    case GPU_ENGINE_COUNT:
        break;
    }
    return "host";
}

struct gpu_list {
    const struct gpu_tuning_set *set; /* what was measured; null: nothing */
    uint32_t *gpus;
    uint32_t count;
};

static void add_row(const struct api *api, const struct gpu_list *list, enum op_kind kind,
                    uint64_t size_bytes, struct api_engines *engines, Commd__Client__AlgorithmsReply *answer)
{
    const char *why;
    double nccl_ns = 0, without_ns = 0;
    if (answer->n_engines == API_ENGINES_MAX) {
        return;
    }
    Commd__Client__EngineInfo *row = &engines->rows[answer->n_engines];
    commd__client__engine_info__init(row);
    enum gpu_engine engine =
        exec_engine(api->exec, list->set, list->gpus, list->count, kind, size_bytes, &why);
    if (list->set != NULL) {
        (void)gpu_tuning_predict(list->set, kind, size_bytes, &nccl_ns, &without_ns);
    }
    row->gpus = list->gpus;
    row->n_gpus = list->count;
    row->kind = (char *)(uintptr_t)op_kind_text(kind);
    row->size_bytes = size_bytes;
    row->engine = (char *)(uintptr_t)engine_text(engine);
    row->reason = (char *)(uintptr_t)why;
    row->nccl_ns = nccl_ns > 0 ? (uint64_t)nccl_ns : 0;
    row->without_ns = without_ns > 0 ? (uint64_t)without_ns : 0;
    engines->pointers[answer->n_engines++] = row;
}

static void add_list(const struct api *api, const Commd__Client__AlgorithmsQuery *request,
                     const struct gpu_list *list, struct api_engines *engines,
                     Commd__Client__AlgorithmsReply *answer)
{
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        const char *text = op_kind_text((enum op_kind)kind);
        bool asked = request->kind[0] == '\0' || strcmp(request->kind, text) == 0;
        if (!asked || kind == OP_KIND_BARRIER || op_kind_is_message((enum op_kind)kind)) {
            continue;
        }
        for (size_t i = 0; i < request->n_size_bytes; i++) {
            add_row(api, list, (enum op_kind)kind, request->size_bytes[i], engines, answer);
        }
    }
}

void api_engines_fill(const struct api *api, const Commd__Client__AlgorithmsQuery *request,
                      struct api_engines *engines, Commd__Client__AlgorithmsReply *answer)
{
    uint32_t gpu_count = gpu_devices_count(api->gpus);
    uint32_t set_count = api->tuning != NULL ? gpu_tuning_count(api->tuning) : 0;
    answer->engines = engines->pointers;
    if (gpu_count < 2 || api->exec == NULL) {
        return;
    }
    for (uint32_t i = 0; i < set_count; i++) {
        const struct gpu_tuning_set *set = gpu_tuning_at(api->tuning, i);
        struct gpu_list list = {
            .set = set, .gpus = (uint32_t *)(uintptr_t)set->gpus, .count = set->gpu_count};
        add_list(api, request, &list, engines, answer);
    }
    if (set_count == 0) {
        struct gpu_list list = {.gpus = engines->gpus, .count = gpu_count};
        for (uint32_t gpu = 0; gpu < gpu_count; gpu++) {
            engines->gpus[gpu] = gpu;
        }
        add_list(api, request, &list, engines, answer);
    }
}
