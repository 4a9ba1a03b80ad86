#include <stdlib.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"

/*
 * Memory for the parts of slices that are in no rank's buffer (pinned if GPUs use it), and for tables that
 * tell where the other parts are. While an operation runs, the memory is charged to the communicator's owner.
 * Then it is kept, in the exec's spare blocks or the GPUs' ones, so that the next operation needs no new
 * pages.
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

static enum status charge(const struct exec_lane *lane, uint64_t bytes, struct error *error)
{
    const struct comm_map *map = lane->comm->map;
    struct error why;
    enum status status = budget_charge(map->account, BUDGET_LANES, bytes, &why);
    return status == STATUS_OK ? status : error_set(error, status, "\"%s\": %s", map->name, why.text);
}

/* The charge for a lane's tables, without the part that the communicator's charge includes. */
static uint64_t tables_charge(uint64_t bytes)
{
    return bytes > EXEC_TABLES_KEPT_BYTES ? bytes - EXEC_TABLES_KEPT_BYTES : 0;
}

enum status lane_table(struct exec_lane *lane, struct exec_vector *vector, uint64_t element_bytes,
                       uint32_t pieces, struct error *error)
{
    struct exec_comm *comm = lane->comm;
    uint64_t bytes = lane->table_bytes;
    if (vector_table_bytes(vector) < VECTOR_TABLE_BYTES(pieces)) {
        bytes += VECTOR_TABLE_BYTES(pieces) - vector_table_bytes(vector);
    }
    uint64_t more = tables_charge(bytes) - tables_charge(lane->table_bytes);
    enum status status = charge(lane, more, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!vector_begin(vector, element_bytes, pieces)) {
        budget_release(comm->map->account, BUDGET_LANES, more);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", comm->map->name);
    }
    lane->table_bytes = bytes;
    return STATUS_OK;
}

static void return_tables(struct exec_lane *lane)
{
    if (lane->table_bytes <= EXEC_TABLES_KEPT_BYTES) {
        return;
    }
    for (uint32_t space = 0; space < 3; space++) {
        vector_free(&lane->vectors[space]);
    }
    vector_free(&lane->lent.from);
    budget_release(lane->comm->map->account, BUDGET_LANES, tables_charge(lane->table_bytes));
    lane->table_bytes = 0;
}

unsigned char *lane_memory(const struct exec_lane *lane)
{
    return lane->staged ? lane_device_memory(lane) : lane->memory;
}

enum status lane_reserve(struct exec_lane *lane, uint64_t wanted_bytes, struct error *error)
{
    struct exec_comm *comm = lane->comm;
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
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", comm->map->name);
    }
    enum status status = charge(lane, size_bytes, error);
    if (status != STATUS_OK) {
        spare_give(comm->exec, memory, size_bytes);
        return status;
    }
    lane->memory = memory;
    lane->memory_bytes = size_bytes;
    return STATUS_OK;
}

static void return_encoded(struct exec_lane *lane)
{
    if (lane->encoded != NULL) {
        budget_release(lane->comm->map->account, BUDGET_LANES, lane->encoded_capacity_bytes);
        free(lane->encoded);
        lane->encoded = NULL;
        lane->encoded_capacity_bytes = 0;
    }
}

enum status lane_reserve_encoded(struct exec_lane *lane, uint64_t bytes, struct error *error)
{
    struct exec_comm *comm = lane->comm;
    if (bytes <= lane->encoded_capacity_bytes) {
        return STATUS_OK;
    }
    return_encoded(lane);
    enum status status = charge(lane, bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    lane->encoded = malloc((size_t)bytes);
    if (lane->encoded == NULL) {
        budget_release(comm->map->account, BUDGET_LANES, bytes);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", comm->map->name);
    }
    lane->encoded_capacity_bytes = bytes;
    return STATUS_OK;
}

void lane_return_memory(struct exec_lane *lane)
{
    if (lane->device != NULL) {
        lane_device_return_memory(lane);
    }
    return_tables(lane);
    return_encoded(lane);
    if (lane->memory != NULL) {
        budget_release(lane->comm->map->account, BUDGET_LANES, lane->memory_bytes);
        spare_give(lane->comm->exec, lane->memory, lane->memory_bytes);
        lane->memory = NULL;
        lane->memory_bytes = 0;
    }
}
