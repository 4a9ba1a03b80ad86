#include "client/lib/internal.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * The library's part of cells, and of slices in them. Other ranks write bytes of the input anywhere into the
 * segment. What must hold: whatever the library decides, it reads and writes only within the segment and the
 * buffers of its call. The sanitizers detect other accesses.
 */
#define STEPS_MAX 64
#define RANKS_MAX 4u
#define SLICES_MAX 4u

struct world {
    struct cells_shared *shared;
    uint32_t ranks, rank; /* rank: the library's */
    uint64_t seq;
    uint32_t place; /* where the next slice goes */
};

static struct client_call take_call(const struct world *world, struct fuzz_input *input, bool *is_long)
{
    static const uint64_t counts[] = {0, 1, 8, 9, 18, 72, 73, 100, 1000, 4096, 8192, 32768};
    struct client_call call = {.name = "fuzz"};
    uint8_t which = fuzz_u8(input);
    *is_long = which >= 128;
    call.terms.kind = (enum op_kind)(which % OP_KIND_COUNT);
    call.terms.dtype = (enum dtype)fuzz_below(input, DTYPE_COUNT);
    call.terms.reduce = (enum reduce)fuzz_below(input, REDUCE_COUNT);
    call.terms.count_elements = counts[fuzz_below(input, sizeof counts / sizeof *counts)];
    call.terms.root_rank = fuzz_below(input, world->ranks);
    call.terms.bucket_ops = 1;
    call.options.factor = 1.5;
    return call;
}

static bool can_be_published(const struct world *world, const struct client_call *call)
{
    return cells_take(&call->terms, world->ranks) && reduce_is_defined(call->terms.dtype, call->terms.reduce);
}

/* Writes into any rank's part, also the library's own. */
static void scribble(struct world *world, struct fuzz_input *input)
{
    uint32_t rank = fuzz_below(input, world->ranks);
    struct cells_rank *its = &world->shared->ranks[rank];
    struct cell_header *header = &its->headers[fuzz_below(input, CELLS_DEPTH)];
    uint64_t number = fuzz_below(input, 4) != 0 ? world->seq : fuzz_number(input);
    switch (fuzz_below(input, 6)) {
    case 0:
        atomic_store(&its->by_commd, number);
        return;
    case 1:
        atomic_store(fuzz_below(input, 2) != 0 ? &world->shared->open_from : &world->shared->opened_from,
                     number);
        return;
    case 2:
        atomic_store(&world->shared->heads[rank], number);
        return;
    case 3:
        atomic_store(&header->seq, number);
        return;
    case 4:
        header->said = cells_header(world->shared, world->rank, world->seq)->said;
        atomic_store(&header->seq, number);
        return;
    default:
        memset(&header->said, fuzz_u8(input), sizeof header->said);
        atomic_store(&its->counts.published, number);
        return;
    }
}

/* Another rank publishes the same operation. */
static void join(struct world *world, uint32_t rank, struct fuzz_input *input)
{
    const struct cell_header *own = cells_header(world->shared, world->rank, world->seq);
    struct cell_header *header = cells_header(world->shared, rank, world->seq);
    memset(header->data, fuzz_u8(input), sizeof header->data);
    header->said = own->said;
    cells_publish(world->shared, world->ranks, rank, world->seq, true);
}

static size_t bytes_of(const struct client_call *call, size_t blocks)
{
    return blocks * (size_t)call->terms.count_elements * dtype_size_bytes(call->terms.dtype);
}

static void make_buffers(const struct world *world, struct client_call *call, struct fuzz_input *input)
{
    size_t in_bytes = cells_published_bytes(&call->terms, world->ranks, world->rank);
    bool gathers = call->terms.kind == OP_KIND_ALL_GATHER || call->terms.kind == OP_KIND_GATHER ||
                   call->terms.kind == OP_KIND_ALL_TO_ALL;
    size_t out_bytes = bytes_of(call, gathers ? world->ranks : 1);
    call->input.at = malloc(in_bytes);
    call->output.at = malloc(out_bytes);
    fuzz_require((call->input.at != NULL || in_bytes == 0) && (call->output.at != NULL || out_bytes == 0));
    memset(call->input.at, fuzz_u8(input), in_bytes);
    memset(call->output.at, 0, out_bytes);
}

/* The library publishes what it has written, and other ranks do what the input says. Returns whether the
 * library finds a result. */
static bool let_others(struct world *world, struct fuzz_input *input)
{
    const struct op_terms own = cells_header(world->shared, world->rank, world->seq)->said.terms;
    cells_publish(world->shared, world->ranks, world->rank, world->seq, true);
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        if (rank != world->rank && fuzz_below(input, 4) != 0) {
            join(world, rank, input);
        }
    }
    for (unsigned i = fuzz_below(input, 4); i > 0; i--) {
        scribble(world, input);
    }
    (void)cells_have_news(world->shared, world->ranks, world->rank, world->seq);
    return cells_look(world->shared, world->ranks, world->rank, world->seq, &own) == CELLS_DIRECT;
}

static void publish_whole(struct world *world, struct client_call *call, struct fuzz_input *input)
{
    if (!can_be_published(world, call)) {
        return;
    }
    world->seq++;
    make_buffers(world, call, input);
    cells_write(world->shared, world->ranks, world->rank, world->seq, call);
    if (let_others(world, input)) {
        cells_read(world->shared, world->ranks, world->rank, world->seq, call, NULL);
    }
    free(call->input.at);
    free(call->output.at);
}

/* Makes it an operation that does not fit into a cell: of some slices, and some elements more. */
static void make_long(const struct world *world, struct client_call *call, struct fuzz_input *input)
{
    struct op_terms *terms = &call->terms;
    terms->count_elements = 1;
    uint64_t least = CELLS_DATA_MAX_BYTES / cells_most_published_bytes(terms, world->ranks) + 1;
    uint64_t whole = cells_cut(terms, world->ranks).slice_elements;
    uint64_t count = fuzz_below(input, SLICES_MAX) * whole + fuzz_below(input, 3);
    terms->count_elements = count < least ? least : count;
}

/* The library publishes one slice after the other, until one has no result. */
static void publish_slices(struct world *world, struct client_call *call, struct fuzz_input *input)
{
    make_long(world, call, input);
    if (!cells_take_slices(&call->terms, world->ranks) ||
        !reduce_is_defined(call->terms.dtype, call->terms.reduce)) {
        return;
    }
    make_buffers(world, call, input);
    struct cells_cut cut = cells_cut(&call->terms, world->ranks);
    bool goes_on = true;
    for (uint64_t i = 0; i < cut.slice_count * cut.steps && goes_on; i++) {
        uint64_t begin = i / cut.steps * cut.slice_elements, left = call->terms.count_elements - begin;
        struct cells_slice slice = {.begin = begin,
                                    .elements = left < cut.slice_elements ? left : cut.slice_elements,
                                    .step = (uint32_t)(i % cut.steps),
                                    .steps = cut.steps};
        world->seq++;
        cells_write_slice(world->shared, world->ranks, world->rank, world->seq, world->place, call, &slice);
        cells_write_header(world->shared, world->rank, world->seq, world->place, call);
        world->place = (world->place + 1) % CELLS_PLACES;
        goes_on = let_others(world, input);
        if (goes_on) {
            cells_read(world->shared, world->ranks, world->rank, world->seq, call, &slice);
        }
    }
    free(call->input.at);
    free(call->output.at);
}

/* What the rank sends to each, and gets from each. For a kind without blocks on one side, only the first of
 * them counts. */
static void lay_out(const struct world *world, struct client_call *call, struct fuzz_input *input,
                    size_t (*counts)[RANKS_MAX])
{
    static const size_t choices[] = {0, 1, 3, 700, 9000, 40000};
    struct call_buffer *buffers[] = {&call->input, &call->output};
    bool has_blocks[] = {op_kind_has_input_blocks(call->terms.kind),
                         op_kind_has_output_blocks(call->terms.kind)};
    for (size_t side = 0; side < 2; side++) {
        for (uint32_t rank = 0; rank < world->ranks; rank++) {
            counts[side][rank] = choices[fuzz_below(input, sizeof choices / sizeof *choices)];
            buffers[side]->elements += rank == 0 || has_blocks[side] ? counts[side][rank] : 0;
        }
        buffers[side]->counts = has_blocks[side] ? counts[side] : NULL;
        size_t size_bytes = buffers[side]->elements * dtype_size_bytes(call->terms.dtype);
        buffers[side]->at = size_bytes > 0 ? malloc(size_bytes) : NULL;
        fuzz_require(buffers[side]->at != NULL || size_bytes == 0);
        if (size_bytes > 0) {
            memset(buffers[side]->at, side == 0 ? fuzz_u8(input) : 0, size_bytes);
        }
    }
}

/* Other ranks may have written any tables, and places, also this rank's. */
static void scribble_places(struct world *world, struct fuzz_input *input)
{
    uint64_t *table = cells_table(world->shared, world->ranks, fuzz_below(input, world->ranks), world->seq);
    table[fuzz_below(input, 2 * world->ranks)] = fuzz_number(input);
    uint32_t *offsets = (uint32_t *)(void *)cells_place(
        world->shared, world->ranks, fuzz_below(input, world->ranks), fuzz_below(input, CELLS_PLACES));
    offsets[fuzz_below(input, world->ranks)] = (uint32_t)fuzz_number(input);
}

/* Publishes an operation with a count for each rank, and its slices, until one has no result. */
static void publish_blocks(struct world *world, struct client_call *call, struct fuzz_input *input)
{
    size_t counts[2][RANKS_MAX];
    call->terms.count_elements = 0;
    if (!op_kind_has_blocks(call->terms.kind) ||
        (op_kind_reduces(call->terms.kind) && !reduce_is_defined(call->terms.dtype, call->terms.reduce))) {
        return;
    }
    call->terms.has_layouts = 1;
    lay_out(world, call, input, counts);
    world->seq++;
    cells_blocks_write(world->shared, world->ranks, world->rank, world->seq, call);
    (void)let_others(world, input);
    scribble_places(world, input);
    uint64_t slices =
        cells_slices_of_blocks(world->shared, world->ranks, world->seq, &call->terms, CELLS_SLICE_MAX_BYTES);
    cells_blocks_read(world->shared, world->ranks, world->rank, world->seq, call);
    for (uint64_t i = 0; i < slices && i < SLICES_MAX; i++) {
        struct cells_blocks_slice slice = {.index = fuzz_below(input, 2) ? i : slices - 1 - i,
                                           .count = slices};
        world->seq++;
        cells_blocks_write_slice(world->shared, world->ranks, world->rank, world->place, call, &slice);
        cells_write_header(world->shared, world->rank, world->seq, world->place, call);
        world->place = (world->place + 1) % CELLS_PLACES;
        (void)let_others(world, input);
        scribble_places(world, input);
        cells_blocks_read_slice(world->shared, world->ranks, world->rank, world->seq, call, &slice);
    }
    free(call->input.at);
    free(call->output.at);
}

static void step(struct world *world, struct fuzz_input *input)
{
    bool is_long;
    struct client_call call = take_call(world, input, &is_long);
    if (is_long && fuzz_below(input, 2) == 0) {
        publish_blocks(world, &call, input);
    } else if (is_long) {
        publish_slices(world, &call, input);
    } else {
        publish_whole(world, &call, input);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.bytes = data, .size = size};
    struct world world = {.ranks = 2 + fuzz_below(&input, RANKS_MAX - 1)};
    world.rank = fuzz_below(&input, world.ranks);
    size_t segment_bytes = cells_bytes(world.ranks);
    world.shared = aligned_alloc(CELLS_PAGE_BYTES, segment_bytes);
    fuzz_require(world.shared != NULL);
    memset(world.shared, 0, segment_bytes);
    for (unsigned i = 0; i < STEPS_MAX && !fuzz_ended(&input); i++) {
        step(&world, &input);
        for (uint32_t rank = 0; rank < world.ranks; rank++) {
            (void)cells_head(world.shared, rank);
        }
    }
    cells_retire(world.shared, world.ranks);
    free(world.shared);
    return 0;
}
