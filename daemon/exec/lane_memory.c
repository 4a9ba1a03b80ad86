#include <stdlib.h>

#include "daemon/exec/exec_internal.h"

/*
 * Memory for the parts of slices that lie in no rank's buffer, pinned where GPUs are at it. While an
 * operation runs it is charged to the communicator's owner; then it goes to the exec's spare blocks, or to
 * the GPUs' kept ones, so that the next operation need not have new pages made.
 */

static unsigned char *spare_take(struct exec *exec, size_t wanted_bytes, size_t *size_bytes)
{
    for (uint32_t i = 0; i < exec->spare_count; i++) {
        struct exec_spare spare = exec->spares[i];
        if (spare.size_bytes >= wanted_bytes && spare.size_bytes / 2 <= wanted_bytes) {
            exec->spares[i] = exec->spares[--exec->spare_count];
            exec->spare_bytes -= spare.size_bytes;
            *size_bytes = spare.size_bytes;
            return spare.memory;
        }
    }
    *size_bytes = wanted_bytes;
    return malloc(wanted_bytes);
}

static void spare_give(struct exec *exec, unsigned char *memory, size_t size_bytes)
{
    if (exec->spare_count == EXEC_SPARES_MAX || size_bytes > EXEC_SPARES_MAX_BYTES - exec->spare_bytes) {
        free(memory);
        return;
    }
    exec->spares[exec->spare_count++] = (struct exec_spare){.memory = memory, .size_bytes = size_bytes};
    exec->spare_bytes += size_bytes;
}

void exec_free_spares(struct exec *exec)
{
    for (uint32_t i = 0; i < exec->spare_count; i++) {
        free(exec->spares[i].memory);
    }
    exec->spare_count = 0;
    exec->spare_bytes = 0;
}

unsigned char *lane_memory(const struct exec_lane *lane)
{
    return lane->staged ? lane_device_memory(lane) : lane->memory;
}

enum status lane_reserve(struct exec_lane *lane, uint64_t wanted_bytes, struct error *error)
{
    struct exec_comm *comm = lane->comm;
    struct error why;
    if (lane->staged) {
        return lane_device_reserve(lane, wanted_bytes, error);
    }
    if (wanted_bytes <= lane->memory_bytes) {
        return STATUS_OK;
    }
    lane_return_memory(lane);
    size_t size_bytes;
    unsigned char *memory = spare_take(comm->exec, (size_t)wanted_bytes, &size_bytes);
    if (memory == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", comm->options.name);
    }
    if (budget_charge(comm->options.account, BUDGET_LANES, size_bytes, &why) != STATUS_OK) {
        spare_give(comm->exec, memory, size_bytes);
        return error_set(error, why.status, "\"%s\": %s", comm->options.name, why.text);
    }
    lane->memory = memory;
    lane->memory_bytes = size_bytes;
    return STATUS_OK;
}

void lane_return_memory(struct exec_lane *lane)
{
    lane_device_return_memory(lane);
    if (lane->memory != NULL) {
        budget_release(lane->comm->options.account, BUDGET_LANES, lane->memory_bytes);
        spare_give(lane->comm->exec, lane->memory, lane->memory_bytes);
        lane->memory = NULL;
        lane->memory_bytes = 0;
    }
}
