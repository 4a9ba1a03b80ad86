#include <unistd.h>

#include <commclient.h>

#include "tests/fuzz/hostile_daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CALLS_MAX 60
#define COMMS_MAX 4
#define REQUESTS_MAX 4
#define MEMORIES_MAX 3
#define ELEMENTS 256
#define GUARD 0x5a

/*
 * A program calls the library, while a daemon sends what the input says (hostile_daemon.h). What must hold:
 * every call returns; results have texts; the library writes nothing beyond the buffers; at the end, it
 * holds nothing.
 */
struct program {
    comm_client_t *client;
    comm_t *comms[COMMS_MAX];
    comm_request_t *requests[REQUESTS_MAX];
    void *memories[MEMORIES_MAX];
    /* the first array of each is used, the second is a guard behind it */
    int64_t send[2][ELEMENTS], receive[2][ELEMENTS];
};

static void note(comm_result_t result)
{
    fuzz_require(result >= COMM_OK && result <= COMM_BUSY);
    fuzz_require(result == COMM_OK || result == COMM_IN_PROGRESS || comm_last_error()[0] != '\0');
}

static void make_comm(struct program *program, struct fuzz_input *input, comm_t **comm)
{
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.timeout_ms = 100;
    options.op_timeout_ms = 100;
    if (*comm == NULL) {
        note(comm_init(program->client, "fuzz", fuzz_below(input, 2), 2, COMM_DEVICE_HOST, &options, comm));
    }
}

/* Chooses a buffer: the program's own, or memory of the library. */
static void *buffer(struct program *program, struct fuzz_input *input, int64_t *own)
{
    void *memory = program->memories[fuzz_below(input, MEMORIES_MAX)];
    return memory != NULL && fuzz_below(input, 2) != 0 ? memory : own;
}

static void collective(struct program *program, struct fuzz_input *input, comm_t *comm)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    comm_request_t **request = &program->requests[fuzz_below(input, REQUESTS_MAX)];
    uint8_t what = fuzz_u8(input);
    size_t count = fuzz_u8(input) % (ELEMENTS / 2);
    size_t counts[2] = {count, count / 2}, places[2] = {0, count};
    void *send = buffer(program, input, program->send[0]);
    void *receive = buffer(program, input, program->receive[0]);
    options.timeout_ms = 100;
    options.request = *request == NULL && (what & 64) != 0 ? request : NULL;
    switch (what % 10) {
    case 0:
    case 1:
        note(comm_all_reduce(comm, send, receive, count, COMM_I64, COMM_SUM, &options));
        return;
    case 2:
        note(comm_broadcast(comm, receive, count, COMM_I32, what >> 7, &options));
        return;
    case 3:
        note(comm_all_gather(comm, send, receive, count, COMM_I64, &options));
        return;
    case 4:
        note(comm_all_to_all_v(comm, send, counts, places, receive, counts, places, COMM_I32, &options));
        return;
    case 5:
        note(comm_send(comm, send, count, COMM_I64, what >> 7, 1, &options));
        return;
    case 6:
    case 7:
        note(comm_recv(comm, receive, count, COMM_I64, COMM_ANY_SOURCE, 1, &options));
        return;
    case 8:
        note(comm_reduce_scatter(comm, send, receive, count, COMM_F32, COMM_MAX, &options));
        return;
    default:
        note(comm_barrier(comm, &options));
        return;
    }
}

static void memory(struct program *program, struct fuzz_input *input)
{
    void **slot = &program->memories[fuzz_below(input, MEMORIES_MAX)];
    if (*slot != NULL) {
        if (comm_mem_free(program->client, *slot) == COMM_OK) {
            *slot = NULL;
        }
    } else {
        note(comm_mem_alloc(program->client, ELEMENTS * sizeof(int64_t) * (1 + fuzz_below(input, 64)),
                            COMM_DEVICE_HOST, slot));
        if (*slot != NULL) {
            memset(*slot, 0, ELEMENTS * sizeof(int64_t));
        }
    }
}

static void wait_for(struct program *program, struct fuzz_input *input)
{
    comm_request_t **request = &program->requests[fuzz_below(input, REQUESTS_MAX)];
    comm_received_t received;
    size_t index;
    int done;
    switch (fuzz_below(input, 5)) {
    case 0:
        if (*request != NULL) {
            note(comm_test(request, &done, &received));
        }
        return;
    case 1:
        note(comm_wait_all(program->requests, REQUESTS_MAX, NULL));
        return;
    case 2:
        note(comm_wait_any(program->requests, REQUESTS_MAX, &index, &received));
        return;
    case 3:
        comm_request_free(*request);
        *request = NULL;
        return;
    default:
        if (*request != NULL) {
            note(comm_wait(request, &received));
        }
        return;
    }
}

/* Frees the handles before their communicator, as commclient.h requires. */
static void destroy_comm(struct program *program, comm_t **comm)
{
    for (int i = 0; i < REQUESTS_MAX; i++) {
        comm_request_free(program->requests[i]);
        program->requests[i] = NULL;
    }
    comm_destroy(*comm);
    *comm = NULL;
}

static void call(struct program *program, struct fuzz_input *input)
{
    uint8_t what = fuzz_u8(input);
    comm_t **comm = &program->comms[(what >> 4) % COMMS_MAX];
    switch (what % 16) {
    case 0:
        make_comm(program, input, comm);
        return;
    case 1:
        memory(program, input);
        return;
    case 2:
        wait_for(program, input);
        return;
    case 3:
        destroy_comm(program, comm);
        return;
    case 4:
        if (*comm != NULL && program->comms[COMMS_MAX - 1] == NULL) {
            note(comm_split(*comm, (int32_t)fuzz_below(input, 2), 0, &program->comms[COMMS_MAX - 1]));
        }
        return;
    case 5:
        if (*comm != NULL) {
            note(comm_sync(*comm, 100));
            (void)comm_node_of(*comm, fuzz_u8(input));
        }
        return;
    case 6:
        note(comm_group_begin());
        for (unsigned i = 0; *comm != NULL && i < 3; i++) {
            collective(program, input, *comm);
        }
        note(comm_group_end());
        return;
    default:
        if (*comm == NULL) {
            make_comm(program, input, comm);
        } else {
            collective(program, input, *comm);
        }
        return;
    }
}

static void end(struct program *program)
{
    for (int i = COMMS_MAX - 1; i >= 0; i--) {
        destroy_comm(program, &program->comms[i]);
    }
    for (int i = 0; i < MEMORIES_MAX; i++) {
        if (program->memories[i] != NULL) {
            (void)comm_mem_free(program->client, program->memories[i]);
        }
    }
    if (program->client != NULL) {
        comm_client_close(program->client);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct program program;
    struct fuzz_input input = {.bytes = data, .size = size};
    comm_open_options_t options = COMM_OPEN_OPTIONS_INIT;
    int lowest = dup(STDERR_FILENO);
    close(lowest);
    memset(&program, 0, sizeof program);
    memset(program.send[1], GUARD, sizeof program.send[1]);
    memset(program.receive[1], GUARD, sizeof program.receive[1]);
    hostile_daemon_start(&input);
    options.socket_path = hostile_path();
    options.timeout_ms = 1000;
    note(comm_client_open(&options, &program.client));
    for (unsigned i = 0; program.client != NULL && i < CALLS_MAX && !fuzz_ended(&input); i++) {
        call(&program, &input);
    }
    end(&program);
    hostile_daemon_stop();
    for (size_t i = 0; i < sizeof program.send[1]; i++) {
        fuzz_require(((const uint8_t *)program.send[1])[i] == GUARD);
        fuzz_require(((const uint8_t *)program.receive[1])[i] == GUARD);
    }
    int lowest_after = dup(STDERR_FILENO);
    close(lowest_after);
    fuzz_require(lowest == lowest_after);
    return 0;
}
