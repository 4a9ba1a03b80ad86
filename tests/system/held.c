/*
 * One rank of two. Rank 0 submits all its collectives, and then a message. Rank 1 waits for that message
 * before it submits any collective. However many and large the collectives are, they must not hold back the
 * message.
 *
 *   held NAME RANK SIZE COUNT BYTES HOW FILE
 *
 * It prints the number of collectives, or prints what is wrong and exits with 1. HOW is one of:
 *
 *   - shared: in memory of comm_mem_alloc
 *   - plain: in memory of malloc
 *   - group: as plain, in a group
 *   - events: with an event record after each collective; a receive is posted before the operation that
 *     releases its send
 *   - away: as plain, but rank 0 does not call the library again until rank 1, at its end, has created FILE
 *   - left: rank 0 leaves while the collectives wait, and rank 1 is told
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MAX_S 100

enum { TAG_GO = 1, TAG_BACK };

struct job {
    comm_client_t *client;
    comm_t *comm;
    uint32_t rank;
    size_t count, bytes;
    const char *how, *file;
    unsigned char *buffers;
    comm_request_t **requests;
};

static bool is_how(const struct job *job, const char *how)
{
    return strcmp(job->how, how) == 0;
}

static void expect_ok(const struct job *job, comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", job->rank, what, comm_result_text(result),
                comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static uint32_t number_of(uint32_t rank, size_t i)
{
    return (uint32_t)(i * 2654435761u) ^ (rank + 1) * 40503u;
}

/* Marks a buffer with its own first and last words. */
static void fill(const struct job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        uint32_t word = number_of(job->rank, i);
        memcpy(job->buffers + i * job->bytes, &word, sizeof word);
        memcpy(job->buffers + (i + 1) * job->bytes - sizeof word, &word, sizeof word);
    }
}

static void check(const struct job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        uint32_t first, last, sum = number_of(0, i) + number_of(1, i);
        memcpy(&first, job->buffers + i * job->bytes, sizeof first);
        memcpy(&last, job->buffers + (i + 1) * job->bytes - sizeof last, sizeof last);
        if (first != sum || last != sum) {
            fprintf(stderr, "rank %u: collective %zu has %u and %u, expected %u\n", job->rank, i, first, last,
                    sum);
            exit(EXIT_FAILURE);
        }
    }
}

/* Every third collective has a handle. */
static void post_collectives(const struct job *job, comm_event_t *event)
{
    bool is_group = is_how(job, "group");
    expect_ok(job, is_group ? comm_group_begin() : COMM_OK, "comm_group_begin");
    for (size_t i = 0; i < job->count; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = i % 3 == 0 ? &job->requests[i] : NULL;
        void *buffer = job->buffers + i * job->bytes;
        expect_ok(job,
                  comm_all_reduce(job->comm, buffer, buffer, job->bytes / sizeof(uint32_t), COMM_U32,
                                  COMM_SUM, &options),
                  "comm_all_reduce");
        if (event != NULL) {
            expect_ok(job, comm_event_record_comm(event, job->comm), "comm_event_record_comm");
        }
    }
    expect_ok(job, is_group ? comm_group_end() : COMM_OK, "comm_group_end");
}

static void finish(const struct job *job)
{
    expect_ok(job, comm_wait_all(job->requests, job->count, NULL), "comm_wait_all");
    expect_ok(job, comm_sync(job->comm, 0), "comm_sync");
    check(job);
}

static void await_file(const struct job *job)
{
    struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; access(job->file, F_OK) != 0; i++) {
        if (i == WAIT_MAX_S * 100) {
            fprintf(stderr, "rank %u: rank 1 has not ended within %d s\n", job->rank, WAIT_MAX_S);
            exit(EXIT_FAILURE);
        }
        nanosleep(&pause, NULL);
    }
}

/* The event waits for the collectives, and the send that the receive needs waits for the event. So the
 * event must not wait for the receive. */
static void first_with_events(const struct job *job)
{
    comm_event_t *event;
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    uint32_t go = 1, back = 0;
    expect_ok(job, comm_event_create(job->client, &event), "comm_event_create");
    post_collectives(job, event);
    options.request = &request;
    expect_ok(job, comm_recv(job->comm, &back, 1, COMM_U32, 1, TAG_BACK, &options), "comm_recv");
    expect_ok(job, comm_send(job->comm, &go, 1, COMM_U32, 1, TAG_GO, NULL), "comm_send");
    expect_ok(job, comm_event_wait(event, NULL), "comm_event_wait");
    expect_ok(job, comm_send(job->comm, &go, 1, COMM_U32, 1, TAG_GO, NULL), "comm_send");
    expect_ok(job, comm_wait(&request, NULL), "comm_wait of the receive");
    comm_event_destroy(event);
    finish(job);
}

static void first(const struct job *job)
{
    uint32_t go = 1;
    if (is_how(job, "events")) {
        first_with_events(job);
        return;
    }
    post_collectives(job, NULL);
    if (is_how(job, "left")) {
        comm_destroy(job->comm);
        return;
    }
    expect_ok(job, comm_send(job->comm, &go, 1, COMM_U32, 1, TAG_GO, NULL), "comm_send");
    if (is_how(job, "away")) {
        await_file(job);
    }
    finish(job);
}

static void second(const struct job *job)
{
    uint32_t go;
    comm_result_t result = comm_recv(job->comm, &go, 1, COMM_U32, 0, TAG_GO, NULL);
    expect_ok(job, result, "comm_recv");
    result = comm_sync(job->comm, 0);
    if (is_how(job, "left")) {
        if (result != COMM_ABORTED || strstr(comm_last_error(), "left before") == NULL) {
            fprintf(stderr, "rank 1: comm_sync: %s: %s\n", comm_result_text(result), comm_last_error());
            exit(EXIT_FAILURE);
        }
        return;
    }
    expect_ok(job, result, "comm_sync");
    post_collectives(job, NULL);
    finish(job);
    if (is_how(job, "away")) {
        FILE *file = fopen(job->file, "we");
        if (file != NULL) {
            fclose(file);
        }
    }
    if (is_how(job, "events")) {
        expect_ok(job, comm_recv(job->comm, &go, 1, COMM_U32, 0, TAG_GO, NULL), "comm_recv");
        expect_ok(job, comm_sync(job->comm, 0), "comm_sync");
        expect_ok(job, comm_send(job->comm, &go, 1, COMM_U32, 0, TAG_BACK, NULL), "comm_send");
        expect_ok(job, comm_sync(job->comm, 0), "comm_sync");
    }
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: held NAME RANK SIZE COUNT BYTES HOW FILE\n");
        return 2;
    }
    struct job job = {.rank = (uint32_t)strtoul(argv[2], NULL, 10),
                      .count = strtoul(argv[4], NULL, 10),
                      .bytes = strtoul(argv[5], NULL, 10),
                      .how = argv[6],
                      .file = argv[7]};
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = WAIT_MAX_S * 1000;
    expect_ok(&job, comm_client_open(NULL, &job.client), "comm_client_open");
    expect_ok(&job, comm_init(job.client, argv[1], job.rank, 2, COMM_DEVICE_HOST, &options, &job.comm),
              "comm_init");
    void *memory = NULL;
    if (is_how(&job, "shared")) {
        expect_ok(&job, comm_mem_alloc(job.client, job.count * job.bytes, COMM_DEVICE_HOST, &memory),
                  "comm_mem_alloc");
    } else {
        memory = calloc(job.count, job.bytes);
    }
    job.buffers = memory;
    job.requests = calloc(job.count, sizeof(comm_request_t *));
    if (job.buffers == NULL || job.requests == NULL) {
        fprintf(stderr, "no memory\n");
        return EXIT_FAILURE;
    }
    fill(&job);
    if (job.rank == 0) {
        first(&job);
    } else {
        second(&job);
    }
    if (!is_how(&job, "left")) {
        expect_ok(&job, comm_barrier(job.comm, NULL), "comm_barrier");
        comm_destroy(job.comm);
    } else if (job.rank == 1) {
        comm_destroy(job.comm);
    }
    comm_client_close(job.client);
    printf("%zu operations checked\n", job.count);
    return EXIT_SUCCESS;
}
