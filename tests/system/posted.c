/*
 * One rank of two. Each rank first posts all its receives, and then all its sends to the other. However many
 * and large the messages are, none may wait for another.
 *
 *   posted NAME RANK SIZE COUNT BYTES HOW
 *
 * It prints the number of messages, or prints what is wrong and exits with 1. HOW is one of:
 *
 *   - shared: in memory of comm_mem_alloc
 *   - plain: in memory of malloc
 *   - group: as plain, in a group
 *   - both: by comm_send_recv
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t rank;

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

/* Marks a message with its own first and last bytes. */
static void mark(unsigned char *message, size_t bytes, uint32_t of, size_t number)
{
    uint32_t word = (uint32_t)(number * 2654435761u) ^ of;
    memcpy(message, &word, sizeof word);
    memcpy(message + bytes - sizeof word, &word, sizeof word);
}

static void check(const unsigned char *message, size_t bytes, size_t number)
{
    unsigned char expected[8];
    mark(expected, 8, 1 - rank, number);
    if (memcmp(message, expected, 4) != 0 || memcmp(message + bytes - 4, expected + 4, 4) != 0) {
        fprintf(stderr, "rank %u: message %zu is not what was sent\n", rank, number);
        exit(EXIT_FAILURE);
    }
}

static unsigned char *make(comm_client_t *client, size_t bytes, bool is_shared)
{
    void *memory = NULL;
    if (is_shared) {
        expect_ok(comm_mem_alloc(client, bytes, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    } else if ((memory = calloc(1, bytes)) == NULL) {
        fprintf(stderr, "no memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static void post_all(comm_t *comm, unsigned char *out, unsigned char *in, size_t count, size_t bytes,
                     comm_request_t **requests)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    for (size_t i = 0; i < count; i++) {
        options.request = &requests[i];
        expect_ok(comm_recv(comm, in + i * bytes, bytes, COMM_U8, 1 - rank, 5, &options), "comm_recv");
    }
    for (size_t i = 0; i < count; i++) {
        options.request = &requests[count + i];
        expect_ok(comm_send(comm, out + i * bytes, bytes, COMM_U8, 1 - rank, 5, &options), "comm_send");
    }
}

int main(int argc, char **argv)
{
    comm_client_t *client;
    comm_t *comm;
    if (argc != 7) {
        fprintf(stderr, "usage: posted NAME RANK SIZE COUNT BYTES HOW\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size_t count = strtoul(argv[4], NULL, 10), bytes = strtoul(argv[5], NULL, 10);
    const char *how = argv[6];
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, 2, COMM_DEVICE_HOST, NULL, &comm), "comm_init");
    bool is_shared = strcmp(how, "shared") == 0;
    unsigned char *out = make(client, count * bytes, is_shared), *in = make(client, count * bytes, is_shared);
    comm_request_t **requests = calloc(2 * count, sizeof(comm_request_t *));
    for (size_t i = 0; i < count; i++) {
        mark(out + i * bytes, bytes, rank, i);
    }
    if (strcmp(how, "both") == 0) {
        expect_ok(
            comm_send_recv(comm, out, count * bytes, 1 - rank, in, count * bytes, 1 - rank, COMM_U8, 1, NULL),
            "comm_send_recv");
    } else {
        bool is_group = strcmp(how, "group") == 0;
        expect_ok(is_group ? comm_group_begin() : COMM_OK, "comm_group_begin");
        post_all(comm, out, in, count, bytes, requests);
        expect_ok(is_group ? comm_group_end() : COMM_OK, "comm_group_end");
        expect_ok(comm_wait_all(requests, 2 * count, NULL), "comm_wait_all");
    }
    for (size_t i = 0; i < count; i++) {
        check(in + i * bytes, bytes, i);
    }
    expect_ok(comm_barrier(comm, NULL), "comm_barrier");
    comm_destroy(comm);
    comm_client_close(client);
    free(requests);
    printf("%zu operations checked\n", 2 * count);
    return EXIT_SUCCESS;
}
