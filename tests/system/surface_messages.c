#include "tests/system/surface.h"

/* Messages between ranks. */

static comm_request_t *post(bool sends, int64_t *buffer, size_t count, uint32_t peer, uint32_t tag)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.stream = device != COMM_DEVICE_HOST && turn % 2 == 0 ? COMM_STREAM_NONE : NULL;
    expect_ok(sends ? comm_send(comm, at(buffer), count, COMM_I64, peer, tag, &options)
                    : comm_recv(comm, at(buffer), count, COMM_I64, peer, tag, &options),
              sends ? "comm_send" : "comm_recv");
    return request;
}

/* Both ranks send before they receive. A send of at most 16 KiB ends before the receive is posted, wherever
 * the receiver is. */
static void send_then_receive(size_t count)
{
    uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    count = count < 2048 ? count : 2048;
    poison(count);
    expect_ok(comm_send(comm, at(input), count, COMM_I64, right, 10, NULL), "comm_send");
    expect_ok(comm_sync(comm, 0), "comm_sync after comm_send");
    expect_ok(comm_recv(comm, at(output), count, COMM_I64, left, 10, NULL), "comm_recv");
    expect_ok(comm_sync(comm, 0), "comm_sync after comm_recv");
    get_output();
    for (size_t i = 0; i < count; i++) {
        check_at("a message that was sent before", i, value(left, i));
    }
    checked++;
}

/* Sums before and after a message run as one also on the ranks that neither send nor receive it. */
static void sums_around_a_message(size_t count)
{
    comm_request_t *requests[2] = {NULL};
    fill(count);
    poison(3 * count);
    expect_ok(comm_group_begin(), "comm_group_begin");
    for (unsigned i = 0; i < 2; i++) {
        expect_ok(comm_all_reduce(comm, at(input), at(output + i * count), count, COMM_I64, COMM_SUM, NULL),
                  "comm_all_reduce");
        if (rank == 0 && i == 0) {
            requests[0] = post(true, input, count, 0, 11);
            requests[1] = post(false, output + 2 * count, count, 0, 11);
        }
    }
    expect_ok(comm_group_end(), "comm_group_end of sums around a message");
    expect_ok(comm_wait_all(requests, 2, NULL), "comm_wait_all of a message between sums");
    expect_ok(comm_sync(comm, 0), "comm_sync of sums around a message");
    get_output();
    for (size_t i = 0; i < 2 * count; i++) {
        check_at("sums around a message", i, sum_of(0, size, i % count));
    }
    for (size_t i = 2 * count; i < 3 * count && rank == 0; i++) {
        check_at("a message between sums", i, value(0, i % count));
    }
    checked++;
}

/* If no message comes for a receive, the receive ends at its deadline, and nothing else ends with it. */
static void receive_in_vain(void)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.stream = device != COMM_DEVICE_HOST ? COMM_STREAM_NONE : NULL;
    options.timeout_ms = 20;
    expect_ok(comm_recv(comm, at(output), 1, COMM_I64, COMM_ANY_SOURCE, 77, &options), "comm_recv");
    expect(comm_wait(&request, NULL), COMM_TIMED_OUT, "comm_wait of a receive in vain");
    expect_ok(comm_barrier(comm, NULL), "comm_barrier after it");
    checked++;
}

/* Each rank sends two messages of each tag to every rank, itself included. Ranks receive the second tag
 * first; the messages of one tag come in order. Then they receive from any source. Every second time this is
 * in a group, so that no stream comes between the messages. */
void messages(size_t count)
{
    comm_request_t *requests[SIZE_MAX_RANKS * 6];
    comm_received_t received;
    size_t posted = 0;
    fill(count * 3);
    poison(count * size * 3);
    if (turn % 2 == 1) {
        expect_ok(comm_group_begin(), "comm_group_begin");
    }
    for (uint32_t peer = 0; peer < size; peer++) {
        requests[posted++] = post(true, input, count, peer, 1);
        requests[posted++] = post(true, input + count, count, peer, 1);
        requests[posted++] = post(true, input + 2 * count, count, peer, 2);
    }
    for (uint32_t peer = 0; peer < size; peer++) {
        requests[posted++] = post(false, output + (peer * 3 + 2) * count, count, peer, 2);
        requests[posted++] = post(false, output + peer * 3 * count, count, peer, 1);
        requests[posted++] = post(false, output + (peer * 3 + 1) * count, count, peer, 1);
    }
    if (turn % 2 == 1) {
        expect_ok(comm_group_end(), "comm_group_end of messages");
    }
    expect_ok(comm_wait_all(requests, posted, NULL), "comm_wait_all of messages");
    get_output();
    checked += posted;
    for (size_t i = 0; i < count * size * 3; i++) {
        check_at("messages", i, value((uint32_t)(i / count / 3), i % (3 * count)));
    }
    check_poison("messages", count * size * 3, count * size * 3 + 1);
    uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    poison(count);
    expect_ok(comm_group_begin(), "comm_group_begin");
    requests[0] = post(false, output, count + 5, COMM_ANY_SOURCE, 9);
    expect_ok(comm_send(comm, at(input), count, COMM_I64, right, 9, NULL), "comm_send");
    expect_ok(comm_group_end(), "comm_group_end of a message");
    expect_ok(comm_wait(&requests[0], &received), "comm_wait of any source");
    expect_ok(received.source == left && received.count == count ? COMM_OK : COMM_INTERNAL, "comm_received");
    get_output();
    for (size_t i = 0; i < count; i++) {
        check_at("a shorter message", i, value(left, i));
    }
    check_poison("a shorter message", count, count + 1);
    expect_ok(comm_sync(comm, 0), "comm_sync");
    poison(count);
    expect_ok(comm_send_recv(comm, at(input), count, right, at(output), count, left, COMM_I64, 3, NULL),
              "comm_send_recv");
    get_output();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_send_recv", i, value(left, i));
    }
    checked += 2;
    send_then_receive(count);
    sums_around_a_message(count);
    if (turn % 4 == 1) {
        receive_in_vain();
    }
}
