#include "tests/unit/api/api_node.h"

static unsigned char *map_memfd(int fd, size_t size)
{
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    return bytes;
}

static void expect_table_error(struct client *client, uint32_t handle)
{
    Commd__Client__CommTable body = COMMD__CLIENT__COMM_TABLE__INIT;
    body.handle = handle;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_TABLE;
    request.comm_table = &body;
    char text[64];
    snprintf(text, sizeof text, "no formed communicator has handle %u", handle);
    client_expect_error(client, client_send(client, &request, -1), STATUS_NOT_FOUND, text);
}

static void expect_aborted(struct client *client, uint32_t handle, enum status status, const char *text)
{
    Commd__Client__Event *event = client_receive(client);
    assert_non_null(event);
    assert_int_equal(event->body_case, COMMD__CLIENT__EVENT__BODY_ABORTED);
    assert_int_equal(event->aborted->handle, handle);
    assert_int_equal(event->aborted->status, status);
    assert_contains(event->aborted->text, text);
    event_free(event);
}

static void test_memory(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    int fd = client_memfd(8192);
    int unsealed = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int pipes[2];
    assert_int_equal(ftruncate(unsealed, 8192), 0);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    unsigned fds = count_fds();
    client_expect_error(&client, client_send_register(&client, 3, 8192, -1), STATUS_PROTOCOL,
                        "memory 3: no file descriptor came with the request");
    client_expect_error(&client, client_send_register(&client, 3, 8192, unsealed), STATUS_INVALID_ARGUMENT,
                        "not sealed against shrinking");
    client_expect_error(&client, client_send_register(&client, 3, 8192, pipes[0]), STATUS_INVALID_ARGUMENT,
                        "no memfd");
    client_expect_error(&client, client_send_register(&client, 3, 0, fd), STATUS_INVALID_ARGUMENT,
                        "0 bytes; expected 1 to");
    client_expect_error(&client, client_send_register(&client, 3, 8193, fd), STATUS_INVALID_ARGUMENT,
                        "8193 bytes, but the memfd has 8192");
    client_expect_error(&client, client_send_register(&client, 3, UINT64_MAX, fd), STATUS_LIMIT,
                        "18446744073709551615 bytes; expected 1 to");
    client_expect_error(&client, client_send_deregister(&client, 3), STATUS_NOT_FOUND,
                        "memory 3 is not registered");
    assert_int_equal(client_mappings(), 0);
    client_expect_done(&client, client_send_register(&client, 3, 8192, fd));
    client_expect_done(&client, client_send_register(&client, 0, 1, fd)); /* 0 is a number like any other */
    assert_int_equal(node->api->sessions->memory_bytes, 8193);
    client_expect_done(&client, client_send_deregister(&client, 3));
    client_expect_error(&client, client_send_deregister(&client, 3), STATUS_NOT_FOUND,
                        "memory 3 is not registered");
    client_expect_done(&client, client_send_register(&client, 3, 5, fd)); /* a number is free again */
    assert_int_equal(node->api->sessions->memory_bytes, 6);
    assert_int_equal(count_fds(), fds);
    client_free(&client);
    close(fd);
    close(unsealed);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(client_mappings(), 0);
    node_free(node);
}

static void test_memories_max(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    int fd = client_memfd(4096);
    for (uint32_t i = 0; i < API_SESSION_MEMORIES_MAX; i++) {
        client_expect_done(&client, client_send_register(&client, i * 2654435761u, 4096, fd));
    }
    client_expect_error(&client, client_send_register(&client, 1, 4096, fd), STATUS_LIMIT,
                        "a process can register 16384 memories at most");
    client_expect_done(&client, client_send_deregister(&client, 2654435761u));
    client_expect_done(&client, client_send_register(&client, 1, 4096, fd));
    /* Another process has its own. */
    struct client other = client_new(node);
    client_expect_done(&other, client_send_register(&other, 1, 4096, fd));
    unsigned fds = count_fds();
    client_free(&client);
    for (unsigned i = 0; i < 100000 && sessions(node) > 1; i++) { /* commd takes it away in pieces */
        node_turn(node);
    }
    assert_int_equal(sessions(node), 1);
    assert_int_equal(client_mappings(), 1);
    assert_int_equal(count_fds(), fds - 3); /* two ends of a socket, and a pidfd */
    client_free(&other);
    assert_int_equal(client_mappings(), 0);
    close(fd);
    node_free(node);
}

/* Files without contents cost a client nothing. But they cost commd addresses, which are limited. */
static void test_addresses_max(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20, SHARE = 2, PAGE = 4096 };
    uint64_t all[BUDGET_KINDS];
    struct node *node = node_new();
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        all[kind] = UINT64_C(1) << 40;
    }
    all[BUDGET_ADDRESSES] = BUDGET_MINIMUM_PARTS * PAGE * SHARE + SIZE;
    budget_free(node->api->budget); /* the real budget has more addresses than sanitizers leave */
    must(budget_new(all, &node->api->budget, error));
    struct client client = client_new(node), other = client_new(node);
    int fd = client_memfd(SIZE);
    for (uint32_t i = 0; i < SHARE; i++) {
        client_expect_done(&client, client_send_register(&client, i, SIZE, fd));
    }
    /* Another process of the same user gets no more either. */
    client_expect_error(&client, client_send_register(&client, 99, SIZE, fd), STATUS_LIMIT,
                        "the rest is kept for others");
    client_expect_error(&other, client_send_register(&other, 99, SIZE, fd), STATUS_LIMIT, "commctl users");
    assert_int_equal(client_mappings(), SHARE);
    /* Another user still gets his minimum. */
    struct api_session *session;
    for (session = node->api->sessions; session->hh.next != NULL; session = session->hh.next) {
    }
    api_session_discharge(session);
    session->client.uid++;
    must(api_session_charge(session, error));
    budget_release(session->account, BUDGET_GREETINGS, 1);
    for (uint32_t i = 0; i < SHARE; i++) {
        client_expect_done(&other, client_send_register(&other, i, PAGE, fd));
    }
    client_expect_error(&other, client_send_register(&other, 99, SIZE, fd), STATUS_LIMIT, "of addresses");
    /* What is given back can be used again, and commd goes on meanwhile. */
    client_expect_done(&client, client_send_deregister(&client, 0));
    client_expect_done(&other, client_send_register(&other, 99, SIZE - 2 * PAGE, fd));
    client_free(&client);
    client_free(&other);
    assert_int_equal(client_mappings(), 0);
    client = client_new(node);
    client_expect_done(&client, client_send_register(&client, 1, SIZE, fd));
    client_free(&client);
    close(fd);
    node_free(node);
}

static void test_communicators_refused(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    client_expect_error(&client, client_send_init(&client, 1, "", 0, 1), STATUS_INVALID_ARGUMENT, "");
    client_expect_error(&client, client_send_init(&client, 1, "a b", 0, 1), STATUS_INVALID_ARGUMENT, "");
    client_expect_error(&client, client_send_init(&client, 1, "a\nb", 0, 1), STATUS_INVALID_ARGUMENT, "");
    client_expect_error(&client, client_send_init(&client, 1, "comm", 1, 1), STATUS_INVALID_ARGUMENT, "1");
    client_expect_error(&client, client_send_init(&client, 1, "comm", 0, 0), STATUS_INVALID_ARGUMENT, "0");
    client_expect_error(&client, client_send_init(&client, 1, "comm", 0, COMM_SIZE_MAX + 1),
                        STATUS_INVALID_ARGUMENT, "65537");
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = 1;
    body.name = (char *)"comm";
    body.size = 1;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    static const int32_t devices[] = {0, 7, -2, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        char text[64];
        body.device = devices[i];
        snprintf(text, sizeof text, "GPU %d: this commd has none", devices[i]);
        client_expect_error(&client, client_send(&client, &request, -1), STATUS_UNSUPPORTED, text);
    }
    body.device = -1;
    body.algorithms = (char *)"all_reduce = ring";
    client_expect_error(&client, client_send(&client, &request, -1), STATUS_INVALID_ARGUMENT,
                        "without space");
    client_expect_error(&client, client_send_destroy(&client, 1), STATUS_NOT_FOUND,
                        "no communicator has handle 1");
    expect_table_error(&client, 1);
    client_init(&client, 1, "comm");
    client_expect_error(&client, client_send_init(&client, 1, "other", 0, 1), STATUS_PROTOCOL,
                        "handle 1 is in use");
    struct client other = client_new(node);
    client_send_init(&client, 2, "half", 0, 2);
    client_check(&client);
    client_expect_error(&other, client_send_init(&other, 1, "half", 0, 2), STATUS_ALREADY_EXISTS, "rank 0");
    client_expect_error(&other, client_send_init(&other, 1, "half", 1, 3), STATUS_MISMATCH, "half");
    client_expect_error(&other, client_send_destroy(&other, 1), STATUS_NOT_FOUND,
                        "no communicator has handle 1"); /* handle 1 is the first client's only */
    expect_table_error(&other, 1);
    client_expect_done(&client, client_send_destroy(&client, 1));
    client_init(&other, 1, "comm");
    client_free(&other);
    client_free(&client);
    assert_true(comms_idle(node->comms));
    node_free(node);
}

static void test_communicators_max(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    char name[32];
    for (uint32_t i = 0; i < API_SESSION_COMMS_MAX; i++) {
        snprintf(name, sizeof name, "comm-%u", i);
        client_init(&client, i, name);
    }
    client_expect_error(&client, client_send_init(&client, 5000, "beyond", 0, 1), STATUS_LIMIT,
                        "a process can hold 1024 ranks at most");
    client_expect_done(&client, client_send_destroy(&client, 17));
    client_init(&client, 5000, "beyond");
    /* All communicators of a process end with it. */
    client_free(&client);
    assert_int_equal(sessions(node), 0);
    node_turns(node, 5);
    client = client_new(node);
    client_init(&client, 1, "comm-3");
    client_free(&client);
    node_free(node);
}

static void test_left_before_formed(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    uint64_t init_id = client_send_init(&client, 4, "comm", 0, 2);
    expect_table_error(&client, 4);
    struct submit_record submit = submit_of(4, 31, OP_KIND_BARRIER);
    client_submit(&client, &submit);
    client_expect_complete(&client, 4, 31, STATUS_IN_PROGRESS, "");
    uint64_t id = client_send_destroy(&client, 4);
    client_expect_error(&client, init_id, STATUS_ABORTED, "left the communicator before it had formed");
    client_expect_done(&client, id);
    client_init(&client, 4, "comm"); /* handle and name are free */
    client_free(&client);
    node_free(node);
}

/* Two ranks of two processes, each with memory of its own. */
struct pair {
    struct node *node;
    struct client clients[2];
    int fds[2];
    unsigned char *bytes[2];
};

#define PAIR_BYTES 65536u
#define PAIR_MEMORY 7u /* of the first client; the second client's is the next number */
#define PAIR_HANDLE 3u

static struct pair pair_new(void)
{
    struct pair pair = {.node = node_new()};
    uint64_t ids[2];
    for (uint32_t i = 0; i < 2; i++) {
        pair.clients[i] = client_new(pair.node);
        pair.fds[i] = client_memfd(PAIR_BYTES);
        pair.bytes[i] = map_memfd(pair.fds[i], PAIR_BYTES);
        client_expect_done(&pair.clients[i],
                           client_send_register(&pair.clients[i], PAIR_MEMORY + i, PAIR_BYTES, pair.fds[i]));
        ids[i] = client_send_init(&pair.clients[i], PAIR_HANDLE, "pair", i, 2);
    }
    for (uint32_t i = 0; i < 2; i++) {
        Commd__Client__Event *event =
            client_expect_reply(&pair.clients[i], ids[i], COMMD__CLIENT__REPLY__BODY_COMM_INIT);
        assert_int_equal(event->reply->comm_init->local_rank, i);
        assert_int_equal(event->reply->comm_init->local_size, 2);
        assert_int_equal(event->reply->comm_init->node_count, 1);
        event_free(event);
    }
    return pair;
}

static void pair_free(struct pair *pair)
{
    for (uint32_t i = 0; i < 2; i++) {
        munmap(pair->bytes[i], PAIR_BYTES);
        close(pair->fds[i]);
        if (pair->clients[i].fd >= 0) {
            client_free(&pair->clients[i]);
        }
    }
    node_turns(pair->node, 3);
    assert_int_equal(client_mappings(), 0);
    node_free(pair->node);
}

/* An all-reduce in place, or from the first range to the second. */
static struct submit_record reduce_of(uint64_t ticket, enum dtype dtype, uint64_t count, uint32_t memory,
                                      uint64_t input, uint64_t output)
{
    struct submit_record submit = submit_of(PAIR_HANDLE, ticket, OP_KIND_ALL_REDUCE);
    submit.terms.dtype = dtype;
    submit.terms.reduce = REDUCE_SUM;
    submit.terms.count_elements = count;
    submit_record_add(&submit, RECORD_INPUT, memory, input, 0);
    submit_record_add(&submit, RECORD_OUTPUT, memory, output, 0);
    return submit;
}

/* Two operations: a correct sum of one f32, and another one that the test makes wrong. */
struct refusal {
    struct pair pair;
    struct submit_record good, bad;
    uint64_t refused;
};

static void refusal_start(struct refusal *refusal)
{
    *refusal = (struct refusal){.pair = pair_new(), .good = reduce_of(0, DTYPE_F32, 1, PAIR_MEMORY, 0, 0)};
    refusal->bad = refusal->good;
}

/* commd refuses the bad one. Then it is made a good one again. */
static void expect_refused(struct refusal *refusal, enum status status, const char *text)
{
    struct client *client = &refusal->pair.clients[0];
    refusal->bad.ticket = 900 + refusal->refused++;
    client_submit(client, &refusal->bad);
    client_expect_complete(client, refusal->bad.handle, refusal->bad.ticket, status, text);
    refusal->bad = refusal->good;
}

/* None of the refused operations took part: the first operation of both clients is the same one. */
static void refusal_end(struct refusal *refusal)
{
    struct pair *pair = &refusal->pair;
    refusal->good.ticket = 1;
    memcpy(pair->bytes[0], &(float){1.5f}, 4);
    memcpy(pair->bytes[1], &(float){2.25f}, 4);
    client_submit(&pair->clients[0], &refusal->good);
    refusal->good.entries[0].memory = refusal->good.entries[1].memory = PAIR_MEMORY + 1;
    client_submit(&pair->clients[1], &refusal->good);
    for (unsigned i = 0; i < 2; i++) {
        float sum;
        client_expect_complete(&pair->clients[i], PAIR_HANDLE, 1, STATUS_OK, NULL);
        memcpy(&sum, pair->bytes[i], 4);
        assert_true(sum == 3.75f);
    }
    pair_free(pair);
}

static void test_submits_refused(void **state)
{
    (void)state;
    struct refusal refusal;
    struct submit_record *bad = &refusal.bad;
    struct op_terms *terms = &bad->terms;
    refusal_start(&refusal);
    bad->handle = PAIR_HANDLE + 1;
    expect_refused(&refusal, STATUS_NOT_FOUND, "no communicator has handle 4");
    for (unsigned number = OP_KIND_COUNT; number <= UINT8_MAX; number += UINT8_MAX - OP_KIND_COUNT) {
        terms->kind = (enum op_kind)number;
        expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose kind is not valid");
    }
    for (unsigned number = DTYPE_COUNT; number <= UINT8_MAX; number += UINT8_MAX - DTYPE_COUNT) {
        terms->dtype = (enum dtype)number;
        expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose dtype is not valid");
    }
    terms->reduce = (enum reduce)REDUCE_COUNT;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose reduce is not valid");
    terms->compression = (enum compression)COMPRESSION_COUNT;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose compression is not valid");
    terms->top_k_permille = OP_TOP_K_MAX_PERMILLE + 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose top_k_permille is not valid");
    terms->bucket_ops = OP_BUCKET_OPS_MAX + 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose bucket_ops is not valid");
    terms->bucket_ops = 0;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "an operation whose bucket_index is not valid");
    terms->kind = OP_KIND_BROADCAST;
    terms->root_rank = 2;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "2");
    terms->reduce = REDUCE_BAND;
    expect_refused(&refusal, STATUS_UNSUPPORTED, "band");
    refusal_end(&refusal);
}

static void test_ranges_refused(void **state)
{
    (void)state;
    struct refusal refusal;
    struct submit_record *bad = &refusal.bad;
    struct record_entry *input = &bad->entries[0], *output = &bad->entries[1];
    refusal_start(&refusal);
    bad->terms.count_elements = UINT64_MAX;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT,
                   "input: 18446744073709551615 elements of 4 bytes are too many");
    bad->terms.count_elements = 1ull << 62; /* times 4 is 0 modulo 2^64 */
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT,
                   "input: 4611686018427387904 elements of 4 bytes are too many");
    bad->terms.dtype = DTYPE_U8;
    bad->terms.count_elements = (1ull << 62) - 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT,
                   "input: 4611686018427387903 elements of 1 bytes are too many");
    input->memory = PAIR_MEMORY + 1;
    expect_refused(&refusal, STATUS_NOT_FOUND, "input: memory 8 is not registered");
    output->memory = PAIR_MEMORY + 1;
    expect_refused(&refusal, STATUS_NOT_FOUND, "output: memory 8 is not registered");
    input->offset_bytes = PAIR_BYTES - 3;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT,
                   "input: 4 bytes at offset 65533 lie beyond the memory of 65536 bytes");
    output->offset_bytes = UINT64_MAX - 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT,
                   "output: 4 bytes at offset 18446744073709551614 lie beyond the memory");
    bad->entries[0] = bad->entries[1];
    bad->entry_count = 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "input");
    bad->entry_count = 1;
    expect_refused(&refusal, STATUS_INVALID_ARGUMENT, "output");
    refusal_end(&refusal);
}

/* Ranges need not be aligned: clients may have elements at any address. */
static void test_unaligned(void **state)
{
    (void)state;
    enum { COUNT = 1001 };
    struct pair pair = pair_new();
    for (unsigned shift = 0; shift < 4; shift++) {
        for (unsigned i = 0; i < 2; i++) {
            struct submit_record submit =
                reduce_of(shift, DTYPE_I32, COUNT, PAIR_MEMORY + i, shift + i, 16384 + shift + 2 * i);
            memset(pair.bytes[i], 0xee, PAIR_BYTES);
            for (uint32_t k = 0; k < COUNT; k++) {
                int32_t value = (int32_t)(k * 7 + i * 1000003);
                memcpy(pair.bytes[i] + shift + i + 4 * k, &value, 4);
            }
            client_submit(&pair.clients[i], &submit);
        }
        for (unsigned i = 0; i < 2; i++) {
            client_expect_complete(&pair.clients[i], PAIR_HANDLE, shift, STATUS_OK, NULL);
            const unsigned char *output = pair.bytes[i] + 16384 + shift + 2 * i;
            for (uint32_t k = 0; k < COUNT; k++) {
                int32_t value;
                memcpy(&value, output + 4 * k, 4);
                assert_int_equal(value, k * 14 + 1000003);
            }
            assert_int_equal(output[-1], 0xee);
            assert_int_equal(output[4 * COUNT], 0xee);
        }
    }
    pair_free(&pair);
}

/* Memory that a client gives back while an operation uses it stays until the operation ends. */
static void test_deregistered_under_way(void **state)
{
    (void)state;
    struct pair pair = pair_new();
    struct submit_record submit = reduce_of(5, DTYPE_U8, PAIR_BYTES, PAIR_MEMORY, 0, 0);
    memset(pair.bytes[0], 3, PAIR_BYTES);
    memset(pair.bytes[1], 4, PAIR_BYTES);
    client_submit(&pair.clients[0], &submit);
    client_expect_done(&pair.clients[0], client_send_deregister(&pair.clients[0], PAIR_MEMORY));
    submit.ticket = 6;
    client_submit(&pair.clients[0], &submit); /* the number has no memory any more */
    client_expect_complete(&pair.clients[0], PAIR_HANDLE, 6, STATUS_NOT_FOUND, "memory 7 is not registered");
    assert_int_equal(client_mappings(), 4);
    submit = reduce_of(5, DTYPE_U8, PAIR_BYTES, PAIR_MEMORY + 1, 0, 0);
    client_submit(&pair.clients[1], &submit);
    for (unsigned i = 0; i < 2; i++) {
        client_expect_complete(&pair.clients[i], PAIR_HANDLE, 5, STATUS_OK, NULL);
        assert_int_equal(pair.bytes[i][0], 7);
        assert_int_equal(pair.bytes[i][PAIR_BYTES - 1], 7);
    }
    assert_int_equal(client_mappings(), 3);
    pair_free(&pair);
}

static void test_pending_ops_max(void **state)
{
    (void)state;
    struct pair pair = pair_new();
    struct submit_record submit = submit_of(PAIR_HANDLE, 0, OP_KIND_BARRIER);
    for (submit.ticket = 1; submit.ticket <= COMMS_PENDING_OPS_MAX; submit.ticket++) {
        client_submit(&pair.clients[0], &submit);
    }
    client_submit(&pair.clients[0], &submit);
    client_expect_complete(&pair.clients[0], PAIR_HANDLE, submit.ticket, STATUS_LIMIT, "1024");
    for (submit.ticket = 1; submit.ticket <= COMMS_PENDING_OPS_MAX; submit.ticket++) {
        client_submit(&pair.clients[1], &submit);
        client_expect_complete(&pair.clients[1], PAIR_HANDLE, submit.ticket, STATUS_OK, NULL);
        client_expect_complete(&pair.clients[0], PAIR_HANDLE, submit.ticket, STATUS_OK, NULL);
    }
    pair_free(&pair);
}

static void test_disconnect(void **state)
{
    (void)state;
    struct pair pair = pair_new();
    struct submit_record submit = reduce_of(0, DTYPE_U8, 100, PAIR_MEMORY + 1, 0, 0);
    for (submit.ticket = 40; submit.ticket < 43; submit.ticket++) {
        client_submit(&pair.clients[1], &submit);
    }
    client_check(&pair.clients[1]);
    assert_int_equal(client_mappings(), 4); /* the clients' and the daemon's */
    unsigned fds = count_fds();
    client_free(&pair.clients[0]);
    pair.clients[0].fd = -1;
    assert_int_equal(sessions(pair.node), 1);
    assert_int_equal(client_mappings(), 3);
    assert_int_equal(count_fds(), fds - 3); /* two ends of a socket, and a pidfd */
    char text[64];
    snprintf(text, sizeof text, "rank 0");
    for (uint64_t ticket = 40; ticket < 43; ticket++) {
        client_expect_complete(&pair.clients[1], PAIR_HANDLE, ticket, STATUS_RANK_LOST, text);
    }
    expect_aborted(&pair.clients[1], PAIR_HANDLE, STATUS_RANK_LOST, text);
    /* A communicator that failed refuses operations and says why. A client can still leave it. */
    client_submit(&pair.clients[1], &submit);
    client_expect_complete(&pair.clients[1], PAIR_HANDLE, submit.ticket, STATUS_RANK_LOST, text);
    client_expect_done(&pair.clients[1], client_send_destroy(&pair.clients[1], PAIR_HANDLE));
    client_expect_done(&pair.clients[1], client_send_deregister(&pair.clients[1], PAIR_MEMORY + 1));
    assert_int_equal(client_mappings(), 2);
    client_check(&pair.clients[1]);
    pair_free(&pair);
}

/* Both clients disconnect at once, in the middle of operations: there is nobody left to be told. */
static void test_all_disconnect(void **state)
{
    (void)state;
    unsigned fds = count_fds();
    for (unsigned round = 0; round < 20; round++) {
        struct pair pair = pair_new();
        for (unsigned i = 0; i < 2; i++) {
            struct submit_record submit = reduce_of(0, DTYPE_U8, PAIR_BYTES, PAIR_MEMORY + i, 0, 0);
            client_submit(&pair.clients[i], &submit);
        }
        node_turns(pair.node, round / 2);
        close(pair.clients[round % 2].fd);
        close(pair.clients[1 - round % 2].fd);
        pair.clients[0].fd = pair.clients[1].fd = -1;
        node_turns(pair.node, 20);
        assert_int_equal(sessions(pair.node), 0);
        assert_true(comms_idle(pair.node->comms));
        pair_free(&pair);
        assert_int_equal(count_fds(), fds);
    }
}

/* commd trusts no reason: another program than commctl may ask. */
static void test_a_reason_with_control_characters(void **state)
{
    (void)state;
    struct pair pair = pair_new();
    Commd__Client__CommAbort body = COMMD__CLIENT__COMM_ABORT__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    body.name = (char[]){"pair"};
    body.reason = (char[]){"wrong\x1b[2J\ndata"};
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_ABORT;
    request.comm_abort = &body;
    (void)client_send(&pair.clients[0], &request, -1);
    expect_aborted(&pair.clients[1], PAIR_HANDLE, STATUS_ABORTED, ": wrong?[2J?data");
    pair_free(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memories_max),
        cmocka_unit_test(test_addresses_max),
        cmocka_unit_test(test_communicators_refused),
        cmocka_unit_test(test_communicators_max),
        cmocka_unit_test(test_left_before_formed),
        cmocka_unit_test(test_submits_refused),
        cmocka_unit_test(test_ranges_refused),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_deregistered_under_way),
        cmocka_unit_test(test_pending_ops_max),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_a_reason_with_control_characters),
        cmocka_unit_test(test_all_disconnect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
