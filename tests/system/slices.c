/*
 * One rank of long collectives of plain memory, which go through cells in slices (proto/cells.h) while the
 * program waits at once. Every element of every output is checked.
 *
 *   slices NAME RANK SIZE HOW [DEVICE]
 *
 * If SLICES_LEND is set in the environment, the inputs are memory of comm_mem_alloc, which ranks lend. It
 * prints the number of checked operations, or prints what is wrong and exits with 1. HOW is one of:
 *
 *   - kinds, once: every kind, with counts around the boundaries or the largest, in place and out of place
 *   - mixed: as kinds, with the buffers of some ranks in memory of comm_mem_alloc
 *   - freed: inputs in memory of comm_mem_alloc that is freed after some operations, again and again
 *   - away: rank 1 submits, and calls the library again only after the other ranks have their results
 *   - slow: rank 1 is late for every operation; a signal comes every millisecond; all ranks fork in between
 *   - bursts: several operations are submitted before the rank waits, on two communicators
 *   - threads: a second thread of the process takes events of another communicator, and waits for its queue
 *   - killed: rank 1 is killed in the middle, and the others get COMM_RANK_LOST
 *   - stopped: rank 1 stops in the middle, and the others get COMM_TIMED_OUT
 *   - aborted: rank 1 aborts in the middle, and all get COMM_ABORTED
 *   - destroyed: rank 1 leaves in the middle, and the others get COMM_RANK_LOST or COMM_ABORTED
 *   - unmapped: rank 1 unmaps its input in the middle, and dies of it; the others get COMM_RANK_LOST
 */
#include <commclient.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POISON 0xA5A5A5A5u
/* As in proto/cells.h. */
#define CELL_BYTES (UINT64_C(32) << 10)        /* longer data go in slices */
#define SLICE_BYTES (UINT64_C(1) << 20)        /* the longest slice, */
#define SLICE_LEAST_BYTES (UINT64_C(64) << 10) /* and the shortest one of an all-reduce, */
#define SLICE_READ_BYTES (UINT64_C(4) << 20)   /* which all ranks together read so much of */
#define PIECE 1024u
#define LONG_SLICES 8u
#define WARM_UPS 3
#define UNMAPS 10
#define FREED 20
#define MIDDLE_NS 40000000
#define AWAY_NS 600000000
#define OP_TIMEOUT_MS 60000
#define STOPPED_TIMEOUT_MS 1500

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, KINDS };
static const char *const kind_names[] = {"all_reduce", "reduce",         "broadcast",
                                         "all_gather", "reduce_scatter", "all_to_all"};

static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;
static uint32_t *input, *output;
static unsigned long checked;
static atomic_bool ends;

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u, operation %lu: %s: %s: %s\n", rank, checked, what, comm_result_text(result),
                comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static void pause_ns(long ns)
{
    struct timespec left = {.tv_nsec = ns};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static uint32_t number_of(uint32_t of_rank, uint64_t index)
{
    return (uint32_t)(index + 1) * 2654435761u ^ (of_rank + 1) * 40503u ^ (uint32_t)checked * 69069u;
}

/* --- One operation --- */

/* count: elements of a block. */
struct job {
    enum kind kind;
    uint64_t count;
    uint32_t root;
    uint32_t *send, *receive;
};

static uint64_t input_elements(const struct job *job)
{
    return job->count * (job->kind == REDUCE_SCATTER || job->kind == ALL_TO_ALL ? size : 1);
}

static bool has_blocks(const struct job *job)
{
    return job->kind == ALL_GATHER || job->kind == ALL_TO_ALL;
}

static uint64_t output_elements(const struct job *job)
{
    return job->count * (has_blocks(job) ? size : 1);
}

static bool has_output(const struct job *job)
{
    return job->kind != REDUCE || job->root == rank;
}

/* Writes what PIECE elements or fewer of one block of the output must be. */
static void expect_piece(const struct job *job, uint32_t block, uint64_t first, uint64_t count,
                         uint32_t *piece)
{
    bool sums = job->kind != BROADCAST && !has_blocks(job);
    uint32_t from = sums ? 0 : job->kind == BROADCAST ? job->root : block;
    first += job->kind == REDUCE_SCATTER || job->kind == ALL_TO_ALL ? rank * job->count : 0;
    memset(piece, 0, count * sizeof *piece);
    for (uint32_t end = sums ? size : from + 1; from < end; from++) {
        for (uint64_t i = 0; i < count; i++) {
            piece[i] += number_of(from, first + i);
        }
    }
}

/* Ends the program if an element of the block is wrong. */
static void check_block(const struct job *job, uint32_t block, const uint32_t *got)
{
    uint32_t piece[PIECE];
    for (uint64_t first = 0; first < job->count; first += PIECE) {
        uint64_t count = job->count - first < PIECE ? job->count - first : PIECE;
        expect_piece(job, block, first, count, piece);
        for (uint64_t i = 0; i < count; i++) {
            if (got[first + i] != piece[i]) {
                fprintf(stderr, "rank %u, operation %lu: %s of %lu: element %lu of block %u is %u, not %u\n",
                        rank, checked, kind_names[job->kind], job->count, first + i, block, got[first + i],
                        piece[i]);
                exit(EXIT_FAILURE);
            }
        }
    }
}

static void prepare(const struct job *job)
{
    uint64_t most = input_elements(job) > output_elements(job) ? input_elements(job) : output_elements(job);
    for (uint64_t i = 0; i < most + 1; i++) {
        input[i] = output[i] = POISON;
    }
    for (uint64_t i = 0; i < input_elements(job); i++) {
        job->send[i] = number_of(rank, i);
    }
}

static comm_result_t submit(comm_t *on, const struct job *job, const comm_call_options_t *options)
{
    switch (job->kind) {
    case ALL_REDUCE:
        return comm_all_reduce(on, job->send, job->receive, job->count, COMM_U32, COMM_SUM, options);
    case REDUCE:
        return comm_reduce(on, job->send, job->receive, job->count, COMM_U32, COMM_SUM, job->root, options);
    case BROADCAST:
        return comm_broadcast(on, job->send, job->count, COMM_U32, job->root, options);
    case ALL_GATHER:
        return comm_all_gather(on, job->send, job->receive, job->count, COMM_U32, options);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(on, job->send, job->receive, job->count, COMM_U32, COMM_SUM, options);
    case ALL_TO_ALL:
        return comm_all_to_all(on, job->send, job->receive, job->count, COMM_U32, options);
    case KINDS:
        break;
    }
    return COMM_INTERNAL;
}

static void check(const struct job *job)
{
    const uint32_t *got = job->kind == BROADCAST ? job->send : job->receive;
    for (uint32_t block = 0; has_output(job) && block < (has_blocks(job) ? size : 1); block++) {
        check_block(job, block, got + block * job->count);
    }
    if (!has_output(job) && job->receive != job->send && job->receive[0] != POISON) {
        fprintf(stderr, "rank %u: the output of a rank that is no root has changed\n", rank);
        exit(EXIT_FAILURE);
    }
    bool keeps = job->kind != BROADCAST && job->send != job->receive && job->send == input;
    for (uint64_t i = 0; keeps && job->receive == output && i < input_elements(job); i += 997) {
        if (input[i] != number_of(rank, i)) {
            fprintf(stderr, "rank %u: the input has changed\n", rank);
            exit(EXIT_FAILURE);
        }
    }
}

/* In place or not, as each kind does it. */
static struct job job_of(enum kind kind, uint64_t count, uint32_t root, bool in_place)
{
    struct job job = {.kind = kind, .count = count, .root = root, .send = input, .receive = output};
    if (!in_place) {
        return job;
    }
    job.receive = kind == REDUCE_SCATTER ? input + rank * count : input;
    job.send = kind == ALL_GATHER ? input + rank * count : input;
    return job;
}

/* Waits at once: by the handle, or for all. */
static void run(const struct job *job, bool by_handle)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = by_handle ? &request : NULL;
    prepare(job);
    expect_ok(submit(comm, job, &options), kind_names[job->kind]);
    expect_ok(by_handle ? comm_wait(&request, NULL) : comm_sync(comm, 0), "waiting");
    check(job);
    checked++;
}

static uint64_t blocks_of(enum kind kind)
{
    return kind == ALL_GATHER || kind == REDUCE_SCATTER || kind == ALL_TO_ALL ? size : 1;
}

/* The smallest count of a block that does not fit into a cell. */
static uint64_t least_count(enum kind kind)
{
    bool publishes_blocks = kind == REDUCE_SCATTER || kind == ALL_TO_ALL;
    return CELL_BYTES / sizeof *input / (publishes_blocks ? size : 1) + 1;
}

/* Elements of each block that a slice has. */
static uint64_t slice_count(enum kind kind)
{
    uint64_t bytes = SLICE_BYTES / blocks_of(kind);
    if (kind == ALL_REDUCE) {
        bytes = SLICE_READ_BYTES / ((uint64_t)size * size);
        bytes = bytes < SLICE_LEAST_BYTES ? SLICE_LEAST_BYTES : bytes > SLICE_BYTES ? SLICE_BYTES : bytes;
    }
    return bytes / sizeof *input;
}

/* Several slices; the last one is shorter. */
static uint64_t long_count(enum kind kind)
{
    return LONG_SLICES * slice_count(kind) + 4099;
}

/* Room for the longest operation of each kind, and one element more. */
static size_t buffer_bytes(void)
{
    return (2 * LONG_SLICES + 1) * SLICE_BYTES + (4099 * size + 1) * sizeof *input;
}

static void warm_up(void)
{
    struct job job = job_of(ALL_REDUCE, least_count(ALL_REDUCE), 0, false);
    for (int i = 0; i < WARM_UPS; i++) {
        run(&job, true);
    }
}

/* --- Ways to disturb it --- */

static void run_kinds(bool once)
{
    warm_up();
    for (int i = 0; i < KINDS; i++) {
        enum kind kind = (enum kind)i;
        uint64_t least = least_count(kind), slice = slice_count(kind);
        const uint64_t counts[] = {least - 1, least,         slice - 1, slice,
                                   slice + 1, 2 * slice - 1, 2 * slice, long_count(kind)};
        for (size_t k = once ? sizeof counts / sizeof *counts - 1 : 0; k < sizeof counts / sizeof *counts;
             k++) {
            struct job out = job_of(kind, counts[k], (uint32_t)k % size, false);
            struct job in = job_of(kind, counts[k], (uint32_t)(k + 1) % size, true);
            run(&out, k % 2 == 0);
            run(&in, k % 2 == 1);
        }
    }
}

/* More memories than a rank may offer at a time. */
static void run_freed(void)
{
    uint32_t *kept = input;
    for (int i = 0; i < FREED; i++) {
        void *memory;
        expect_ok(comm_mem_alloc(client, buffer_bytes(), COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
        input = memory;
        for (int k = 0; k < 2 * KINDS; k++) {
            enum kind kind = (enum kind)(k % KINDS);
            struct job job = job_of(kind, (uint64_t)(k / KINDS + 1) * slice_count(kind), 0, false);
            run(&job, true);
        }
        expect_ok(comm_mem_free(client, memory), "comm_mem_free");
        input = kept;
    }
}

static void be_away(void)
{
    for (int i = 0; i < 6; i++) {
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        struct job job = job_of((enum kind)(i % KINDS), long_count((enum kind)(i % KINDS)), 0, i % 2 == 0);
        options.request = &request;
        for (int k = 0; k < 3; k++) {
            warm_up(); /* the library forgives */
        }
        prepare(&job);
        expect_ok(comm_barrier(comm, NULL), "comm_barrier");
        expect_ok(submit(comm, &job, &options), kind_names[job.kind]);
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        if (rank == 1) {
            pause_ns(AWAY_NS);
        }
        expect_ok(comm_wait(&request, NULL), "comm_wait");
        clock_gettime(CLOCK_MONOTONIC, &after);
        long waited_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
        if (rank != 1 && waited_ms > AWAY_NS / 4 * 3 / 1000000) {
            fprintf(stderr, "rank %u waited %ld ms for a rank that computes\n", rank, waited_ms);
            exit(EXIT_FAILURE);
        }
        check(&job);
        checked++;
    }
}

static void on_alarm(int number)
{
    (void)number;
}

static void be_slow(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval every = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    warm_up();
    for (int i = 0; i < 4 * KINDS; i++) {
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        struct job job = job_of((enum kind)(i % KINDS), long_count((enum kind)(i % KINDS)), 1, i % 4 < 2);
        options.request = &request;
        prepare(&job);
        pause_ns(rank == 1 ? 5000000 : 0);
        expect_ok(submit(comm, &job, &options), kind_names[job.kind]);
        pid_t child = i % 3 == 0 ? fork() : -1;
        if (child == 0 && getenv("SLICES_LEND") != NULL) { /* the child has the same memory */
            _exit(0);
        }
        if (child == 0) {
            memset(job.receive, 0, output_elements(&job) * sizeof *job.receive);
            _exit(0);
        }
        expect_ok(comm_wait(&request, NULL), "comm_wait");
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
        check(&job);
        checked++;
    }
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void send_bursts(comm_t *other)
{
    warm_up();
    for (int round = 0; round < 4; round++) {
        struct job large = job_of(ALL_REDUCE, long_count(ALL_REDUCE), 0, false);
        uint32_t small = rank + 1, total = size * (size + 1) / 2;
        prepare(&large);
        expect_ok(submit(comm, &large, NULL), "large");
        expect_ok(comm_all_reduce(comm, &small, &small, 1, COMM_U32, COMM_SUM, NULL), "small");
        expect_ok(comm_barrier(other, NULL), "barrier of the other");
        expect_ok(comm_sync(comm, 0), "comm_sync");
        check(&large);
        if (small != total) {
            fprintf(stderr, "rank %u: the small one gave %u\n", rank, small);
            exit(EXIT_FAILURE);
        }
        checked++;
        expect_ok(comm_group_begin(), "comm_group_begin");
        prepare(&large);
        expect_ok(submit(comm, &large, NULL), "in a group");
        expect_ok(comm_group_end(), "comm_group_end");
        expect_ok(comm_barrier(comm, NULL), "comm_barrier");
        check(&large);
        checked++;
        warm_up();
    }
}

/* Waits for completions of small operations. So it often takes the events of the large ones. */
static void *take_events(void *argument)
{
    comm_t *other = argument;
    comm_queue_t *queue;
    uint32_t value = 1;
    expect_ok(comm_queue_create(client, &queue), "comm_queue_create");
    for (int i = 0; i < 2000; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        comm_completion_t completion;
        size_t count = 0;
        options.queue = queue;
        value = 1;
        expect_ok(comm_all_reduce(other, &value, &value, 1, COMM_U32, COMM_SUM, &options), "small");
        expect_ok(comm_queue_next(queue, &completion, 1, &count, OP_TIMEOUT_MS), "comm_queue_next");
        if (count != 1 || value != size) {
            fprintf(stderr, "rank %u: a small one gave %u\n", rank, value);
            exit(EXIT_FAILURE);
        }
    }
    comm_queue_destroy(queue);
    return NULL;
}

static void run_threads(comm_t *other)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, take_events, other) != 0) {
        exit(EXIT_FAILURE);
    }
    run_kinds(false);
    pthread_join(thread, NULL);
}

/* --- The end in the middle --- */

static void *end_it(void *argument)
{
    const char *how = argument;
    pause_ns(MIDDLE_NS);
    if (strcmp(how, "killed") == 0) {
        raise(SIGKILL);
    } else if (strcmp(how, "stopped") == 0) {
        raise(SIGSTOP);
    } else if (strcmp(how, "aborted") == 0) {
        expect_ok(comm_abort(comm, "enough"), "comm_abort");
    } else {
        atomic_store(&ends, true);
    }
    return NULL;
}

static bool is_expected(const char *how, comm_result_t result)
{
    return how[0] == 'k' || how[0] == 'u' ? result == COMM_RANK_LOST
           : strcmp(how, "stopped") == 0  ? result == COMM_TIMED_OUT
           : strcmp(how, "aborted") == 0  ? result == COMM_ABORTED
                                          : result == COMM_RANK_LOST || result == COMM_ABORTED;
}

static void on_fault(int signal_number)
{
    (void)signal_number;
    _exit(EXIT_SUCCESS);
}

/* No thread of the program waits for the operation, so a thread of the library copies. If the machine was so
 * busy that the operation went to commd, which has its own copy, it is tried again. */
static void unmap_in_the_middle(const struct job *job)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t middle = (uintptr_t)(job->send + job->count / 2) / page * page;
    (void)signal(SIGSEGV, on_fault);
    for (int i = 0; i < UNMAPS; i++) {
        expect_ok(submit(comm, job, NULL), "submit");
        if (munmap((void *)middle, page) != 0) {
            exit(EXIT_FAILURE);
        }
        pause_ns(MIDDLE_NS * 10);
        if (mmap((void *)middle, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == MAP_FAILED) {
            exit(EXIT_FAILURE);
        }
        expect_ok(comm_sync(comm, 0), "comm_sync");
        for (int k = 0; k < WARM_UPS; k++) {
            expect_ok(submit(comm, job, NULL), "submit");
            expect_ok(comm_sync(comm, 0), "comm_sync");
        }
    }
    exit(EXIT_FAILURE);
}

static void run_until_the_end(const char *how)
{
    pthread_t thread;
    comm_result_t result = COMM_OK;
    struct job job = job_of(ALL_REDUCE, 2 * long_count(ALL_REDUCE), 0, false);
    bool ends_it = rank == 1;
    warm_up();
    if (ends_it && how[0] == 'u') {
        prepare(&job);
        unmap_in_the_middle(&job);
    }
    if (ends_it && pthread_create(&thread, NULL, end_it, (void *)(uintptr_t)how) != 0) {
        exit(EXIT_FAILURE);
    }
    prepare(&job);
    while (result == COMM_OK && !(ends_it && atomic_load(&ends))) {
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &request;
        result = submit(comm, &job, &options);
        if (ends_it && atomic_load(&ends)) {
            comm_request_free(request);
            break;
        }
        result = result == COMM_OK ? comm_wait(&request, NULL) : result;
        checked++;
    }
    if (ends_it) {
        pthread_join(thread, NULL);
    }
    if (result != COMM_OK ? !is_expected(how, result) : !ends_it) {
        fprintf(stderr, "rank %u: %s: %s\n", rank, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
    printf("%s\n", comm_last_error());
    memset(input, 0, input_elements(&job) * sizeof *input); /* the buffers are the program's again */
}

/* --- */

static void make_buffers(bool shared)
{
    size_t bytes = buffer_bytes();
    void *made[2] = {NULL, NULL};
    bool lends = getenv("SLICES_LEND") != NULL;
    for (int i = 0; i < 2; i++) {
        if (lends ? i == 0 : shared && (int)(rank % 3) != i) {
            expect_ok(comm_mem_alloc(client, bytes, COMM_DEVICE_HOST, &made[i]), "comm_mem_alloc");
        } else {
            made[i] = malloc(bytes);
        }
        if (made[i] == NULL) {
            fprintf(stderr, "no memory\n");
            exit(EXIT_FAILURE);
        }
    }
    input = made[0];
    output = made[1];
}

static void run_how(const char *how, comm_t *other)
{
    if (strcmp(how, "kinds") == 0 || strcmp(how, "mixed") == 0 || strcmp(how, "once") == 0) {
        run_kinds(how[0] == 'o');
    } else if (strcmp(how, "freed") == 0) {
        run_freed();
    } else if (strcmp(how, "away") == 0) {
        be_away();
    } else if (strcmp(how, "slow") == 0) {
        be_slow();
    } else if (strcmp(how, "bursts") == 0) {
        send_bursts(other);
    } else if (strcmp(how, "threads") == 0) {
        run_threads(other);
    } else {
        run_until_the_end(how);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: slices NAME RANK SIZE HOW [DEVICE]\n");
        return 2;
    }
    const char *how = argv[4];
    int device = argc == 6 ? (int)strtol(argv[5], NULL, 10) : COMM_DEVICE_HOST;
    char name[200];
    comm_t *other;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = strcmp(how, "stopped") == 0 ? STOPPED_TIMEOUT_MS : OP_TIMEOUT_MS;
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, &options, &comm), "comm_init");
    (void)snprintf(name, sizeof name, "%s-other", argv[1]);
    expect_ok(comm_init(client, name, rank, size, COMM_DEVICE_HOST, &options, &other), "comm_init");
    make_buffers(strcmp(how, "mixed") == 0);
    run_how(how, other);
    comm_destroy(other);
    comm_destroy(comm);
    comm_client_close(client);
    printf("%lu operations checked\n", checked);
    return EXIT_SUCCESS;
}
