#include "tests/system/graphs_steps.h"

#include <commclient/lists.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t count;
    bool in_place, on_host;
    bool blocks_in, blocks_out; /* the buffer has a block for each rank */
} kinds[STEP_KINDS] = {
    [STEP_ALL_REDUCE] = {.name = "all_reduce", .count = 4097},
    [STEP_ALL_REDUCE_IN_PLACE] = {.name = "all_reduce in place", .count = 1023, .in_place = true},
    [STEP_ALL_REDUCE_FLOAT] = {.name = "all_reduce of f32", .count = 2049},
    [STEP_ALL_REDUCE_HOST] = {.name = "all_reduce on the host", .count = 255, .on_host = true},
    [STEP_REDUCE] = {.name = "reduce", .count = 257},
    [STEP_BROADCAST] = {.name = "broadcast", .count = 1025, .in_place = true},
    [STEP_ALL_GATHER] = {.name = "all_gather", .count = 511, .blocks_out = true},
    [STEP_ALL_GATHER_IN_PLACE] =
        {.name = "all_gather in place", .count = 33, .in_place = true, .blocks_in = true, .blocks_out = true},
    [STEP_ALL_GATHER_V] = {.name = "all_gather_v", .count = 129, .blocks_out = true},
    [STEP_ALL_GATHER_LIST] = {.name = "all_gather_list", .count = 65, .blocks_out = true},
    [STEP_REDUCE_SCATTER] = {.name = "reduce_scatter", .count = 513, .blocks_in = true},
    [STEP_GATHER] = {.name = "gather", .count = 127, .blocks_out = true},
    [STEP_SCATTER] = {.name = "scatter", .count = 63, .blocks_in = true},
    [STEP_ALL_TO_ALL] = {.name = "all_to_all", .count = 255, .blocks_in = true, .blocks_out = true},
    [STEP_ALL_TO_ALL_IN_PLACE] =
        {.name = "all_to_all in place", .count = 31, .in_place = true, .blocks_in = true, .blocks_out = true},
    [STEP_SCAN] = {.name = "scan", .count = 1},
    [STEP_EXCLUSIVE_SCAN] = {.name = "exclusive_scan", .count = 17},
    [STEP_RING] = {.name = "send and recv", .count = 8193},
    [STEP_GROUP] = {.name = "a group", .count = 64},
};

const char *step_name(enum step_kind kind)
{
    return kinds[kind].name;
}

/* --- Data --- */

static uint32_t value(enum step_kind kind, uint32_t of, uint32_t replay, size_t i)
{
    uint64_t mixed = (uint64_t)i * 2654435761u + of * 7919u + replay * 104729u + (uint64_t)kind * 31u;
    if (kind == STEP_ALL_REDUCE_FLOAT) {
        float number = (float)(mixed % 1000003u) / 7.0f;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        return bits;
    }
    return (uint32_t)(mixed ^ mixed >> 15);
}

static uint32_t sum(enum step_kind kind, uint32_t from, uint32_t to, uint32_t replay, size_t i)
{
    uint32_t all = 0;
    for (uint32_t r = from; r < to; r++) {
        all += value(kind, r, replay, i);
    }
    return all;
}

/* What element i of the receive buffer must be on this rank. */
static uint32_t expected(const struct step *step, uint32_t replay, size_t i)
{
    enum step_kind kind = step->kind;
    size_t block = i / step->count, within = i % step->count;
    uint32_t before = step->receive == step->send ? value(kind, rank, replay, i) : STEP_POISON;
    switch (kind) {
    case STEP_ALL_REDUCE:
    case STEP_ALL_REDUCE_IN_PLACE:
    case STEP_ALL_REDUCE_HOST:
    case STEP_GROUP:
        return sum(kind, 0, size, replay, i);
    case STEP_ALL_REDUCE_FLOAT:
        return 0; /* is_right looks at it */
    case STEP_REDUCE:
        return rank == size - 1 ? sum(kind, 0, size, replay, i) : before;
    case STEP_BROADCAST:
        return value(kind, 0, replay, i);
    case STEP_ALL_GATHER:
    case STEP_ALL_GATHER_LIST:
        return value(kind, (uint32_t)block, replay, within);
    case STEP_ALL_GATHER_IN_PLACE:
        return value(kind, (uint32_t)block, replay, i);
    case STEP_ALL_GATHER_V: /* rank 0 sends nothing, the others a whole block */
        return block == 0 ? before : value(kind, (uint32_t)block, replay, within);
    case STEP_REDUCE_SCATTER:
        return sum(kind, 0, size, replay, rank * step->count + i);
    case STEP_GATHER:
        return rank == 0 ? value(kind, (uint32_t)block, replay, within) : before;
    case STEP_SCATTER:
        return value(kind, 0, replay, rank * step->count + i);
    case STEP_ALL_TO_ALL:
    case STEP_ALL_TO_ALL_IN_PLACE:
        return value(kind, (uint32_t)block, replay, rank * step->count + within);
    case STEP_SCAN:
        return sum(kind, 0, rank + 1, replay, i);
    case STEP_EXCLUSIVE_SCAN:
        return rank == 0 ? before : sum(kind, 0, rank, replay, i);
    case STEP_RING:
        return value(kind, (rank + size - 1) % size, replay, i);
    case STEP_KINDS:
        break;
    }
    abort();
}

static bool is_right(const struct step *step, uint32_t replay, size_t i)
{
    if (step->kind != STEP_ALL_REDUCE_FLOAT) {
        return step->host_out[i] == expected(step, replay, i);
    }
    double exact = 0, magnitude = 0;
    float found;
    for (uint32_t r = 0; r < size; r++) {
        uint32_t bits = value(step->kind, r, replay, i);
        float number;
        memcpy(&number, &bits, sizeof number);
        exact += number;
        magnitude += fabs((double)number);
    }
    memcpy(&found, &step->host_out[i], sizeof found);
    return fabs(found - exact) <= magnitude * size * 0x1p-24;
}

void step_check(const struct step *step, uint32_t replay)
{
    for (size_t i = 0; i < step->receives; i++) {
        if (!is_right(step, replay, i)) {
            fprintf(stderr, "rank %u, replay %u: %s: element %zu of %zu is %#x, not %#x\n", rank, replay,
                    step_name(step->kind), i, step->receives, step->host_out[i], expected(step, replay, i));
            exit(EXIT_FAILURE);
        }
    }
}

uint64_t step_digest(const struct step *step, uint64_t digest)
{
    bool same = step->kind == STEP_ALL_REDUCE_FLOAT || step->kind == STEP_ALL_REDUCE ||
                step->kind == STEP_BROADCAST || step->kind == STEP_ALL_GATHER;
    for (size_t i = 0; same && i < step->receives; i++) {
        digest = (digest ^ step->host_out[i]) * 0x100000001b3u;
    }
    return digest;
}

/* --- Buffers --- */

void steps_begin(uint32_t own_rank, uint32_t ranks, int device)
{
    rank = own_rank;
    size = ranks;
    (void)open_gpu(device);
}

static void *memory_of(comm_client_t *client, size_t elements, int device)
{
    void *memory;
    expect_ok(comm_mem_alloc(client, elements * sizeof(uint32_t), device, &memory), "comm_mem_alloc");
    return memory;
}

static uint32_t *pinned(size_t elements)
{
    void *memory;
    check(driver->host_alloc(&memory, elements * sizeof(uint32_t), 0), "host_alloc");
    return memory;
}

void step_make(struct step *step, enum step_kind kind, comm_client_t *client, int device)
{
    int where = kinds[kind].on_host ? COMM_DEVICE_HOST : device;
    *step = (struct step){.kind = kind, .count = kinds[kind].count};
    step->sends = step->count * (kinds[kind].blocks_in ? size : 1);
    step->receives = step->count * (kinds[kind].blocks_out ? size : 1);
    step->receive = memory_of(client, step->receives, where);
    step->send = kinds[kind].in_place ? step->receive : memory_of(client, step->sends, where);
    step->host_in = pinned(step->sends);
    step->host_out = pinned(step->receives);
}

static void put(uint32_t *to, const uint32_t *from, size_t elements, cuda_stream stream)
{
    check(driver->copy((cuda_pointer)(uintptr_t)to, (cuda_pointer)(uintptr_t)from,
                       elements * sizeof(uint32_t), stream),
          "copy");
}

void step_fill(const struct step *step, uint32_t replay, cuda_stream stream)
{
    for (size_t i = 0; i < step->sends; i++) {
        step->host_in[i] = value(step->kind, rank, replay, i);
    }
    for (size_t i = 0; i < step->receives; i++) {
        step->host_out[i] = STEP_POISON;
    }
    if (kinds[step->kind].on_host) { /* the stream is idle */
        memcpy(step->receive, step->host_out, step->receives * sizeof(uint32_t));
        memcpy(step->send, step->host_in, step->sends * sizeof(uint32_t));
        return;
    }
    put(step->receive, step->host_out, step->receives, stream);
    put(step->send, step->host_in, step->sends, stream);
}

void step_fetch(const struct step *step, cuda_stream stream)
{
    if (!kinds[step->kind].on_host) {
        put(step->host_out, step->receive, step->receives, stream);
        return;
    }
    check(driver->stream_synchronize(stream), "stream_synchronize");
    memcpy(step->host_out, step->receive, step->receives * sizeof(uint32_t));
}

/* --- Operations --- */

static comm_result_t run_gather_v(const struct step *step, comm_t *comm, const comm_call_options_t *options)
{
    size_t counts[64], displacements[64];
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = r == 0 ? 0 : step->count;
        displacements[r] = r * step->count;
    }
    return comm_all_gather_v(comm, step->send, step->receive, counts, displacements, COMM_U32, options);
}

static comm_result_t run_gather_list(const struct step *step, comm_t *comm,
                                     const comm_call_options_t *options)
{
    size_t counts[64];
    void *list[64];
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = step->count;
        list[r] = step->receive + r * step->count;
    }
    return comm_all_gather_list(comm, step->send, list, counts, COMM_U32, options);
}

static comm_result_t run_group(const struct step *step, comm_t *comm, const comm_call_options_t *options)
{
    size_t half = step->count / 2;
    bool ring = step->kind == STEP_RING;
    comm_result_t result = comm_group_begin();
    if (result == COMM_OK) {
        result =
            ring ? comm_recv(comm, step->receive, step->count, COMM_U32, (rank + size - 1) % size, 3, options)
                 : comm_all_reduce(comm, step->send, step->receive, half, COMM_U32, COMM_SUM, options);
    }
    if (result == COMM_OK) {
        result = ring ? comm_send(comm, step->send, step->count, COMM_U32, (rank + 1) % size, 3, options)
                      : comm_all_reduce(comm, step->send + half, step->receive + half, step->count - half,
                                        COMM_U32, COMM_SUM, options);
    }
    comm_result_t ended = comm_group_end();
    return result != COMM_OK ? result : ended;
}

comm_result_t step_run(const struct step *step, comm_t *comm, cuda_stream stream)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    size_t count = step->count;
    options.stream = stream;
    switch (step->kind) {
    case STEP_ALL_REDUCE:
    case STEP_ALL_REDUCE_IN_PLACE:
    case STEP_ALL_REDUCE_HOST:
        return comm_all_reduce(comm, step->send, step->receive, count, COMM_U32, COMM_SUM, &options);
    case STEP_ALL_REDUCE_FLOAT:
        return comm_all_reduce(comm, step->send, step->receive, count, COMM_F32, COMM_SUM, &options);
    case STEP_REDUCE:
        return comm_reduce(comm, step->send, step->receive, count, COMM_U32, COMM_SUM, size - 1, &options);
    case STEP_BROADCAST:
        return comm_broadcast(comm, step->receive, count, COMM_U32, 0, &options);
    case STEP_ALL_GATHER:
        return comm_all_gather(comm, step->send, step->receive, count, COMM_U32, &options);
    case STEP_ALL_GATHER_IN_PLACE:
        return comm_all_gather(comm, step->send + rank * count, step->receive, count, COMM_U32, &options);
    case STEP_ALL_GATHER_V:
        return run_gather_v(step, comm, &options);
    case STEP_ALL_GATHER_LIST:
        return run_gather_list(step, comm, &options);
    case STEP_REDUCE_SCATTER:
        return comm_reduce_scatter(comm, step->send, step->receive, count, COMM_U32, COMM_SUM, &options);
    case STEP_GATHER:
        return comm_gather(comm, step->send, step->receive, count, COMM_U32, 0, &options);
    case STEP_SCATTER:
        return comm_scatter(comm, step->send, step->receive, count, COMM_U32, 0, &options);
    case STEP_ALL_TO_ALL:
    case STEP_ALL_TO_ALL_IN_PLACE:
        return comm_all_to_all(comm, step->send, step->receive, count, COMM_U32, &options);
    case STEP_SCAN:
        return comm_scan(comm, step->send, step->receive, count, COMM_U32, COMM_SUM, &options);
    case STEP_EXCLUSIVE_SCAN:
        return comm_exclusive_scan(comm, step->send, step->receive, count, COMM_U32, COMM_SUM, &options);
    case STEP_RING:
    case STEP_GROUP:
        return run_group(step, comm, &options);
    case STEP_KINDS:
        break;
    }
    abort();
}
