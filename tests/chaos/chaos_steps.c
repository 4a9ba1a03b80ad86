/* The operations of chaos_rank. Every element differs by rank, step and index, and every one is checked. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/chaos/chaos_rank.h"

#define GUARD_BYTES 64u
#define GUARD 0xA5u
#define MESSAGES 4u

/* One operation. Rank r's element i is first(r) + i * stride(r), modulo 2^64. */
struct step {
    struct chaos_rank *self;
    uint64_t draw; /* the same on all ranks */
    uint32_t rank;
    uint32_t size;
    uint32_t root;
    size_t count;
    uint64_t *input;
    uint64_t *output;
    const char *name;
};

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t first_of(const struct step *step, uint32_t rank)
{
    return mix(step->draw ^ (rank + 1u));
}

static uint64_t stride_of(const struct step *step, uint32_t rank)
{
    return mix(step->draw ^ (rank + 1u) << 20) | 1u;
}

static void fill(const struct step *step, uint64_t *to, size_t count)
{
    uint64_t value = first_of(step, step->rank), stride = stride_of(step, step->rank);
    for (size_t i = 0; i < count; i++, value += stride) {
        to[i] = value;
    }
}

static void guard(uint64_t *output, size_t count)
{
    memset(output, GUARD, count * sizeof *output + GUARD_BYTES);
}

/* Checks that element i is first + i * stride. */
static void check(const struct step *step, const uint64_t *got, size_t count, uint64_t first, uint64_t stride)
{
    uint64_t value = first;
    for (size_t i = 0; i < count; i++, value += stride) {
        if (got[i] != value && !step->self->wrong) {
            step->self->wrong = true;
            chaos_say(step->self, "WRONG",
                      "step=%" PRIu64 " size=%u text=%s of %zu: element %zu is %" PRIx64 ", not %" PRIx64,
                      step->self->step, step->size, step->name, step->count, i, got[i], value);
        }
    }
    step->self->elements += count;
}

static void check_guard(const struct step *step, const uint64_t *output, size_t count)
{
    const uint8_t *after = (const uint8_t *)(output + count);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (after[i] != GUARD && !step->self->wrong) {
            step->self->wrong = true;
            chaos_say(step->self, "WRONG",
                      "step=%" PRIu64 " size=%u text=%s of %zu: byte %zu after the output changed",
                      step->self->step, step->size, step->name, step->count, i);
        }
    }
}

static comm_result_t finish(struct step *step, comm_result_t submitted)
{
    return submitted == COMM_OK ? comm_sync(step->self->comm, 0) : submitted;
}

static void check_sum(const struct step *step, const uint64_t *got, size_t count, size_t from)
{
    uint64_t first = 0, stride = 0;
    for (uint32_t rank = 0; rank < step->size; rank++) {
        stride += stride_of(step, rank);
        first += first_of(step, rank) + from * stride_of(step, rank);
    }
    check(step, got, count, first, stride);
}

static comm_result_t all_reduce(struct step *step)
{
    bool in_place = step->draw >> 9 & 1;
    uint64_t *from = in_place ? step->output : step->input;
    guard(step->output, step->count);
    fill(step, from, step->count);
    chaos_begin(step->self, step->name);
    comm_result_t result = finish(
        step, comm_all_reduce(step->self->comm, from, step->output, step->count, COMM_U64, COMM_SUM, NULL));
    if (result == COMM_OK) {
        check_sum(step, step->output, step->count, 0);
        check_guard(step, step->output, step->count);
    }
    return result;
}

static comm_result_t reduce_scatter(struct step *step)
{
    size_t block = step->count / step->size;
    guard(step->output, block);
    fill(step, step->input, block * step->size);
    chaos_begin(step->self, step->name);
    comm_result_t result = finish(step, comm_reduce_scatter(step->self->comm, step->input, step->output,
                                                            block, COMM_U64, COMM_SUM, NULL));
    if (result == COMM_OK) {
        check_sum(step, step->output, block, block * step->rank);
        check_guard(step, step->output, block);
    }
    return result;
}

static comm_result_t all_gather(struct step *step)
{
    size_t block = step->count / step->size;
    guard(step->output, block * step->size);
    fill(step, step->input, block);
    chaos_begin(step->self, step->name);
    comm_result_t result =
        finish(step, comm_all_gather(step->self->comm, step->input, step->output, block, COMM_U64, NULL));
    for (uint32_t rank = 0; result == COMM_OK && rank < step->size; rank++) {
        check(step, step->output + rank * block, block, first_of(step, rank), stride_of(step, rank));
    }
    if (result == COMM_OK) {
        check_guard(step, step->output, block * step->size);
    }
    return result;
}

static comm_result_t all_to_all(struct step *step)
{
    size_t block = step->count / step->size;
    guard(step->output, block * step->size);
    fill(step, step->input, block * step->size);
    chaos_begin(step->self, step->name);
    comm_result_t result =
        finish(step, comm_all_to_all(step->self->comm, step->input, step->output, block, COMM_U64, NULL));
    for (uint32_t rank = 0; result == COMM_OK && rank < step->size; rank++) {
        uint64_t stride = stride_of(step, rank);
        check(step, step->output + rank * block, block, first_of(step, rank) + block * step->rank * stride,
              stride);
    }
    if (result == COMM_OK) {
        check_guard(step, step->output, block * step->size);
    }
    return result;
}

static comm_result_t broadcast(struct step *step)
{
    guard(step->output, step->count);
    if (step->rank == step->root) {
        fill(step, step->output, step->count);
    }
    chaos_begin(step->self, step->name);
    comm_result_t result =
        finish(step, comm_broadcast(step->self->comm, step->output, step->count, COMM_U64, step->root, NULL));
    if (result == COMM_OK) {
        check(step, step->output, step->count, first_of(step, step->root), stride_of(step, step->root));
        check_guard(step, step->output, step->count);
    }
    return result;
}

/* Messages to the next rank and from the one before, all at once, each with a tag of its own. */
static comm_result_t messages(struct step *step)
{
    uint32_t next = (step->rank + 1) % step->size, before = (step->rank + step->size - 1) % step->size;
    size_t part = step->count / MESSAGES;
    comm_request_t *requests[2 * MESSAGES] = {NULL};
    guard(step->output, part * MESSAGES);
    fill(step, step->input, part * MESSAGES);
    chaos_begin(step->self, step->name);
    comm_result_t result = COMM_OK;
    for (uint32_t tag = 0; tag < 2 * MESSAGES && result == COMM_OK; tag++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &requests[tag];
        uint32_t message = tag % MESSAGES;
        result = tag < MESSAGES ? comm_send(step->self->comm, step->input + message * part, part, COMM_U64,
                                            next, message, &options)
                                : comm_recv(step->self->comm, step->output + message * part, part, COMM_U64,
                                            before, message, &options);
    }
    comm_result_t waited = comm_wait_all(requests, 2 * MESSAGES, NULL);
    result = result == COMM_OK ? waited : result;
    if (result == COMM_OK) {
        check(step, step->output, part * MESSAGES, first_of(step, before), stride_of(step, before));
        check_guard(step, step->output, part * MESSAGES);
    }
    return result;
}

/* Several all-reduces at once, of parts of the buffers. */
static comm_result_t several(struct step *step)
{
    size_t part = step->count / MESSAGES;
    guard(step->output, part * MESSAGES);
    fill(step, step->input, part * MESSAGES);
    chaos_begin(step->self, step->name);
    comm_result_t result = COMM_OK;
    for (uint32_t i = 0; i < MESSAGES && result == COMM_OK; i++) {
        result = comm_all_reduce(step->self->comm, step->input + i * part, step->output + i * part, part,
                                 COMM_U64, COMM_SUM, NULL);
    }
    result = finish(step, result);
    if (result == COMM_OK) {
        check_sum(step, step->output, part * MESSAGES, 0);
        check_guard(step, step->output, part * MESSAGES);
    }
    return result;
}

/*
 * Forms another communicator of the same ranks, or two by comm_split, reduces on it and leaves it. Whether
 * that fails is not the result of the step: the communicator of the job says at the next call how it is.
 */
static comm_result_t another(struct step *step)
{
    struct chaos_rank *self = step->self;
    comm_t *comm = NULL;
    comm_result_t result;
    chaos_begin(self, "comm_init");
    if (step->draw >> 10 & 1) {
        result = comm_split(self->comm, (int)(step->rank % 2), (int)step->rank, &comm);
    } else {
        char name[96];
        comm_init_options_t init = COMM_INIT_OPTIONS_INIT;
        init.timeout_ms = CHAOS_FORM_AGAIN_TIMEOUT_MS;
        init.op_timeout_ms = CHAOS_OP_TIMEOUT_MS;
        snprintf(name, sizeof name, "%s/%u/%" PRIu64, self->job, self->generation, self->step);
        result = comm_init(self->client, name, step->rank, step->size, COMM_DEVICE_HOST, &init, &comm);
    }
    uint64_t word = 1;
    if (result == COMM_OK) {
        chaos_begin(self, step->name);
        result = comm_all_reduce(comm, &word, &word, 1, COMM_U64, COMM_SUM, NULL);
        result = result == COMM_OK ? comm_sync(comm, 0) : result;
        if (result == COMM_OK && word != comm_size(comm)) {
            self->wrong = true;
            chaos_say(self, "WRONG", "step=%" PRIu64 " size=%u text=%s: the sum is %" PRIu64 ", not %u",
                      self->step, step->size, step->name, word, comm_size(comm));
        }
    }
    if (result != COMM_OK) {
        chaos_say(self, "ANOTHER", "result=%d at=%" PRIu64 " split=%d text=%s", (int)result, chaos_now_ns(),
                  (int)(step->draw >> 10 & 1), comm_last_error());
    }
    chaos_begin(self, "comm_destroy");
    comm_destroy(comm);
    return COMM_OK;
}

static comm_result_t barrier(struct step *step)
{
    chaos_begin(step->self, step->name);
    return comm_barrier(step->self->comm, NULL);
}

static const struct {
    const char *name;
    comm_result_t (*run)(struct step *step);
} kinds[] = {
    {"all_reduce", all_reduce}, {"all_gather", all_gather}, {"reduce_scatter", reduce_scatter},
    {"all_to_all", all_to_all}, {"broadcast", broadcast},   {"messages", messages},
    {"several", several},       {"barrier", barrier},       {"another", another},
};

/* Sizes around the limits of cells, eager messages and slices. One of 16 is as large as the buffers. */
static size_t draw_count(const struct chaos_rank *self, uint64_t draw)
{
    static const size_t counts[] = {1, 7, 64, 255, 1000, 2047, 4097, 10000, 32768, 60001};
    size_t most = self->most_bytes / sizeof(uint64_t);
    size_t count = counts[draw % (sizeof counts / sizeof counts[0])];
    count = draw >> 16 & 15 ? count : most - (draw >> 32) % 1000;
    return count < most ? count : most;
}

comm_result_t chaos_step(struct chaos_rank *self, bool wants_end, bool *over)
{
    uint64_t draw = mix(mix(self->seed) ^ mix(self->generation) ^ self->step);
    size_t memory = draw >> 8 & 1 ? 2 : 0;
    struct step step = {.self = self,
                        .draw = draw,
                        .rank = comm_rank(self->comm),
                        .size = comm_size(self->comm),
                        .root = (uint32_t)(draw >> 40) % comm_size(self->comm),
                        .count = draw_count(self, mix(draw)),
                        .input = (uint64_t *)(void *)self->buffers[memory],
                        .output = (uint64_t *)(void *)self->buffers[memory + 1],
                        .name = kinds[draw % (sizeof kinds / sizeof kinds[0])].name};
    comm_result_t result = kinds[draw % (sizeof kinds / sizeof kinds[0])].run(&step);
    if (result != COMM_OK || self->wrong) {
        return result;
    }
    uint64_t word = wants_end ? 1 : 0;
    chaos_begin(self, "word");
    result = finish(&step, comm_all_reduce(self->comm, &word, &word, 1, COMM_U64, COMM_SUM, NULL));
    *over = word > 0;
    self->operations += 2;
    return result;
}

bool chaos_status_open(struct chaos_rank *self, const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    void *at = mmap(NULL, sizeof *self->status, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    self->status = at;
    return at != MAP_FAILED;
}

bool chaos_buffers_new(struct chaos_rank *self)
{
    for (size_t i = 0; i < 4; i++) {
        void *at = NULL;
        size_t bytes = self->most_bytes + GUARD_BYTES;
        if (i < 2) {
            at = malloc(bytes);
        } else if (comm_mem_alloc(self->client, bytes, COMM_DEVICE_HOST, &at) != COMM_OK) {
            return false;
        }
        self->buffers[i] = at;
        if (at == NULL) {
            return false;
        }
    }
    return true;
}

void chaos_buffers_free(struct chaos_rank *self)
{
    for (size_t i = 0; i < 4; i++) {
        if (i < 2) {
            free(self->buffers[i]);
        } else if (self->buffers[i] != NULL) {
            (void)comm_mem_free(self->client, self->buffers[i]);
        }
    }
}
