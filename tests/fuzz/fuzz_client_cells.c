#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/time.h"
#include "proto/types.h"
#include "proto/version.h"
#include "tests/fuzz/client_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * Two clients of a real node are the ranks of a communicator with cells. They write bytes of the input into
 * the cells, and submit operations with any number, also long ones. A third client is correct. What must
 * hold: commd stays within bounds; it answers each operation once; it never loops over numbers that no
 * operation has; the correct client's operation ends well; in the end commd holds nothing.
 */
#define ACTIONS_MAX 100
#define RANKS 2
#define USER 1001
#define SEQS 12 /* usual numbers of operations */
#define MEMORY 1
#define MEMORY_BYTES (1u << 20)
#define SETTLE_NS (100 * TIME_S)
#define SETTLE_READS 64

static struct liars {
    struct fuzz_node node;
    struct fuzz_client clients[RANKS];
    uint32_t handle; /* of the communicator */
    char name[16];
    bool has_memory[RANKS];
} all;

static bool request(uint32_t rank, Commd__Client__Request *body, int fd)
{
    body->id = all.handle % FUZZ_TICKETS;
    return fuzz_client_request(&all.clients[rank], body, fd);
}

/* A new communicator of both. */
static void form(void)
{
    all.handle++;
    (void)snprintf(all.name, sizeof all.name, "liars%u", (unsigned)all.handle);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        Commd__Client__CommInit init = COMMD__CLIENT__COMM_INIT__INIT;
        Commd__Client__Request body = COMMD__CLIENT__REQUEST__INIT;
        init.handle = all.handle;
        init.name = all.name;
        init.size = RANKS;
        init.rank = rank;
        init.device = -1;
        init.op_timeout_ms = 1000;
        init.takes_cells = true;
        body.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
        body.comm_init = &init;
        (void)request(rank, &body, -1);
    }
    fuzz_node_turns(&all.node, 3);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        (void)fuzz_client_read(&all.clients[rank]);
    }
}

static void start_client(uint32_t rank)
{
    fuzz_client_close(&all.clients[rank]);
    all.has_memory[rank] = false;
    fuzz_client_connect(&all.clients[rank], &all.node, USER);
    fuzz_client_hello(&all.clients[rank], false);
}

static void register_memory(uint32_t rank)
{
    Commd__Client__MemRegister memory = COMMD__CLIENT__MEM_REGISTER__INIT;
    Commd__Client__Request body = COMMD__CLIENT__REQUEST__INIT;
    int fd = memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_require(fd >= 0 && ftruncate(fd, MEMORY_BYTES) == 0 && fallocate(fd, 0, 0, MEMORY_BYTES) == 0);
    fuzz_require(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memory.memory = MEMORY;
    memory.size_bytes = MEMORY_BYTES;
    body.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    body.mem_register = &memory;
    all.has_memory[rank] |= request(rank, &body, fd);
    close(fd);
}

/* --- Cells --- */

/* Returns mostly a number that is in use. */
static uint64_t take_seq(struct fuzz_input *input)
{
    uint8_t first = fuzz_u8(input);
    return first < 224 ? first % SEQS : fuzz_number(input);
}

static struct op_terms take_terms(struct fuzz_input *input)
{
    struct op_terms terms = {.kind = OP_KIND_BARRIER, .bucket_ops = 1};
    uint8_t which = fuzz_u8(input);
    if (which >= 128) {
        terms.kind = (enum op_kind)(which % OP_KIND_COUNT);
        terms.dtype = DTYPE_U8;
        terms.count_elements = fuzz_u8(input);
    }
    if (which >= 240) {
        memset(&terms, fuzz_u8(input), sizeof terms / 2);
    }
    return terms;
}

static void scribble(struct cells_shared *cells, uint32_t rank, struct fuzz_input *input)
{
    struct cells_rank *its = &cells->ranks[rank];
    uint64_t number = take_seq(input);
    switch (fuzz_below(input, 6)) {
    case 0:
        atomic_store(fuzz_below(input, 2) != 0 ? &cells->open_from : &cells->opened_from, number);
        return;
    case 1:
        atomic_store(&cells->heads[fuzz_below(input, CELLS_RANKS_MAX)], number);
        return;
    case 2:
        atomic_store(&its->by_commd, number);
        return;
    case 3:
        atomic_store(&its->counts.published, number);
        return;
    case 4:
        atomic_store(&its->headers[fuzz_below(input, CELLS_DEPTH)].seq, number);
        return;
    default:
        its->headers[fuzz_below(input, CELLS_DEPTH)].said.terms = take_terms(input);
        return;
    }
}

static void publish(struct cells_shared *cells, uint32_t rank, struct fuzz_input *input)
{
    uint64_t seq = take_seq(input);
    struct cell_header *header = cells_header(cells, rank, seq);
    header->said.terms = take_terms(input);
    cells_publish(cells, RANKS, rank, seq, true);
}

static void write_cells(uint32_t rank, struct fuzz_input *input)
{
    struct cells_shared *cells = all.clients[rank].cells;
    if (cells == NULL) {
        return;
    }
    if (fuzz_below(input, 2) == 0) {
        publish(cells, rank, input);
    } else {
        scribble(cells, fuzz_below(input, RANKS), input);
    }
}

/* --- Records --- */

/* Makes it an operation of as many bytes as the memory holds, sometimes of more. */
static void make_long(struct submit_record *record, struct fuzz_input *input)
{
    static const uint8_t kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_BROADCAST, OP_KIND_REDUCE,
                                    OP_KIND_ALL_GATHER};
    uint8_t which = fuzz_u8(input);
    bool gathers = kinds[which / 4 % sizeof kinds] == OP_KIND_ALL_GATHER;
    record->terms = (struct op_terms){.kind = kinds[which / 4 % sizeof kinds],
                                      .dtype = DTYPE_U8,
                                      .bucket_ops = 1,
                                      .count_elements = MEMORY_BYTES / (gathers ? RANKS : 1) + which % 4 / 3};
    submit_record_add(record, RECORD_INPUT, MEMORY, 0, 0);
    submit_record_add(record, RECORD_OUTPUT, MEMORY, 0, 0);
}

static void submit(uint32_t rank, struct fuzz_input *input)
{
    struct submit_record record;
    uint8_t which = fuzz_u8(input);
    submit_record_begin(&record, RECORD_OPERATION, all.handle - (which >= 250 ? 1 : 0));
    record.ticket = fuzz_u8(input) % FUZZ_TICKETS;
    record.terms = take_terms(input);
    if (which % 4 == 0 && all.has_memory[rank]) {
        make_long(&record, input);
    }
    if (which % 8 < 6) {
        uint64_t number = take_seq(input);
        submit_record_add(&record, RECORD_NUMBER, 0, which < 128 ? 0 : fuzz_number(input), number);
    }
    (void)fuzz_client_send(&all.clients[rank], (const uint8_t *)&record, submit_record_bytes(&record), NULL,
                           0);
}

static void retire(uint32_t rank, struct fuzz_input *input)
{
    Commd__Client__CellsRetire cells = COMMD__CLIENT__CELLS_RETIRE__INIT;
    Commd__Client__Request body = COMMD__CLIENT__REQUEST__INIT;
    cells.handle = all.handle - (fuzz_below(input, 8) == 7 ? 1 : 0);
    body.body_case = COMMD__CLIENT__REQUEST__BODY_CELLS_RETIRE;
    body.cells_retire = &cells;
    (void)request(rank, &body, -1);
}

static void query(uint32_t rank, struct fuzz_input *input)
{
    Commd__Client__StatusQuery status = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__CommsQuery comms = COMMD__CLIENT__COMMS_QUERY__INIT;
    Commd__Client__OpsQuery ops = COMMD__CLIENT__OPS_QUERY__INIT;
    Commd__Client__Request body = COMMD__CLIENT__REQUEST__INIT;
    uint32_t which = fuzz_below(input, 3);
    body.body_case = which == 0   ? COMMD__CLIENT__REQUEST__BODY_STATUS
                     : which == 1 ? COMMD__CLIENT__REQUEST__BODY_COMMS
                                  : COMMD__CLIENT__REQUEST__BODY_OPS;
    if (which == 0) {
        body.status = &status;
    } else if (which == 1) {
        body.comms = &comms;
    } else {
        body.ops = &ops;
    }
    (void)request(rank, &body, -1);
}

/* --- The run --- */

static void act(struct fuzz_input *input)
{
    static const uint64_t spans_ns[] = {TIME_MS, 100 * TIME_MS, TIME_S, 5 * TIME_S};
    uint8_t what = fuzz_u8(input);
    uint32_t rank = what >> 7;
    switch (what & 15) {
    case 0:
        fuzz_node_turns(&all.node, 1 + fuzz_below(input, 4));
        return;
    case 1:
        fuzz_node_advance(&all.node, spans_ns[fuzz_below(input, sizeof spans_ns / sizeof *spans_ns)]);
        return;
    case 2:
        (void)fuzz_client_read(&all.clients[rank]);
        return;
    case 3:
        retire(rank, input);
        return;
    case 4:
        query(rank, input);
        return;
    case 5:
        register_memory(rank);
        return;
    case 7:
        if (fuzz_below(input, 4) == 0) { /* the rank is lost */
            start_client(rank);
        }
        form();
        return;
    case 8:
    case 9:
    case 10:
    case 11:
        write_cells(rank, input);
        return;
    default:
        submit(rank, input);
        return;
    }
}

/* Everything ends, at its deadline at the latest. */
static void settle(void)
{
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned reads = 0; reads < SETTLE_READS; reads++) {
            fuzz_node_turn(&all.node);
            (void)fuzz_client_read(&all.clients[0]);
            (void)fuzz_client_read(&all.clients[1]);
        }
        fuzz_node_advance(&all.node, SETTLE_NS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_victim victim;
    struct fuzz_input input = {.bytes = data, .size = size};
    int lowest = dup(STDERR_FILENO);
    close(lowest);
    memset(&all, 0, sizeof all);
    fuzz_clock_start();
    fuzz_node_start(&all.node);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        all.clients[rank].fd = -1;
        start_client(rank);
    }
    fuzz_victim_start(&victim, &all.node, false);
    form();
    fuzz_require(all.clients[0].cells != NULL && all.clients[1].cells != NULL);
    for (unsigned i = 0; i < ACTIONS_MAX && !fuzz_ended(&input); i++) {
        act(&input);
    }
    fuzz_victim_end(&victim, &all.node);
    settle();
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        fuzz_client_check_answered(&all.clients[rank]);
        fuzz_client_close(&all.clients[rank]);
    }
    fuzz_node_stop(&all.node);
    fuzz_clock_stop();
    int lowest_after = dup(STDERR_FILENO);
    close(lowest_after);
    fuzz_require(lowest == lowest_after); /* holds only if no descriptor was left open */
    return 0;
}
