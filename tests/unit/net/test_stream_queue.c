#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/stream_queue.h"

/* The messages of an outgoing stream: bytes come out in order, and each message ends once, when its last byte
 * was received. */

enum { ENDED_MAX = 8 };

static struct ended {
    unsigned count, wakes;
    uintptr_t contexts[ENDED_MAX];
    enum status results[ENDED_MAX];
} ended;
static struct stream_done done;
static struct stream_queue queue;

static void sent(void *context, enum status result, uint64_t now_ns)
{
    assert_int_equal(now_ns, 9);
    assert_true(ended.count < ENDED_MAX);
    ended.contexts[ended.count] = (uintptr_t)context;
    ended.results[ended.count++] = result;
}

static void woken(void *context)
{
    assert_ptr_equal(context, &done);
    ended.wakes++;
}

static int setup(void **state)
{
    (void)state;
    ended = (struct ended){0};
    done = (struct stream_done){.wake = woken, .context = &done};
    queue = (struct stream_queue){.done = &done};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stream_queue_end(&queue, STATUS_ABORTED);
    stream_done_dispatch(&done, 9);
    assert_null(queue.messages);
    assert_int_equal(queue.message_count, 0);
    assert_int_equal(queue.copied_bytes, 0);
    return 0;
}

static void add(const char *header, const char *payload, uintptr_t context)
{
    assert_int_equal(stream_queue_add(&queue, header, strlen(header), payload, strlen(payload),
                                      context != 0 ? sent : NULL, (void *)context),
                     STATUS_OK);
}

/* Takes pieces of at most that size, until all was sent. Returns the number of bytes. */
static size_t drain(char *out, size_t most)
{
    size_t total = 0;
    while (queue.sent_end < queue.queued_end) {
        size_t size;
        const uint8_t *piece = stream_queue_piece(&queue, &size);
        size = size < most ? size : most;
        memcpy(out + total, piece, size);
        total += size;
        stream_queue_sent(&queue, size, 5);
    }
    out[total] = '\0';
    return total;
}

static void bytes_come_in_order(void **state)
{
    (void)state;
    for (size_t most = 1; most < 8; most++) {
        char out[64];
        add("", "", 1); /* messages without bytes, and without a header or a payload */
        add("head", "payload", 2);
        add("x", "", 0);
        add("", "", 3);
        add("", "yz", 4);
        assert_int_equal(drain(out, most), 14);
        assert_string_equal(out, "headpayloadxyz");
        assert_null(queue.unsent);
        stream_queue_received(&queue, queue.sent_end, 6);
        assert_null(queue.messages);
        stream_done_dispatch(&done, 9);
        assert_int_equal(ended.count, 4);
        ended.count = 0;
    }
}

static void a_message_ends_with_its_last_byte(void **state)
{
    (void)state;
    char out[64];
    add("ab", "cd", 1);
    add("e", "", 2);
    (void)drain(out, 64);
    assert_int_equal(queue.waits_since_ns, 5);
    stream_queue_received(&queue, 3, 7);
    assert_int_equal(queue.waits_since_ns, 7);
    assert_int_equal(ended.wakes, 0);
    stream_queue_received(&queue, 4, 7);
    assert_int_equal(ended.wakes, 1);
    assert_int_equal(ended.count, 0); /* not from within the call */
    stream_done_dispatch(&done, 9);
    assert_int_equal(ended.count, 1);
    assert_int_equal(ended.contexts[0], 1);
    assert_int_equal(ended.results[0], STATUS_OK);
    stream_queue_end(&queue, STATUS_NODE_LOST);
    stream_done_dispatch(&done, 9);
    assert_int_equal(ended.count, 2);
    assert_int_equal(ended.contexts[1], 2);
    assert_int_equal(ended.results[1], STATUS_NODE_LOST);
}

static void it_goes_on_from_any_place(void **state)
{
    (void)state;
    for (uint64_t place = 0; place <= 10; place++) {
        char out[64];
        uint64_t base = queue.queued_end;
        add("abc", "def", 1);
        add("", "ghij", 2);
        (void)drain(out, 64);
        stream_queue_rewind(&queue, base + place, 8);
        assert_int_equal(drain(out, 3), 10 - place);
        assert_string_equal(out, &"abcdefghij"[place]);
        stream_queue_received(&queue, queue.sent_end, 8);
        stream_done_dispatch(&done, 9);
        assert_int_equal(ended.count, 2);
        ended.count = 0;
    }
}

static void payloads_are_copied_if_nobody_waits(void **state)
{
    (void)state;
    char payload[] = "before", out[64];
    assert_int_equal(stream_queue_add(&queue, NULL, 0, payload, 6, NULL, NULL), STATUS_OK);
    assert_int_equal(stream_queue_add(&queue, NULL, 0, payload, 6, sent, NULL), STATUS_OK);
    assert_int_equal(queue.copied_bytes, 6);
    memcpy(payload, "after.", 6);
    (void)drain(out, 64);
    assert_string_equal(out, "beforeafter.");
}

static void the_limits_hold(void **state)
{
    (void)state;
    static uint8_t bytes[NET_STREAM_COPY_MAX_BYTES + 1];
    assert_int_equal(stream_queue_add(&queue, NULL, 0, bytes, sizeof bytes, NULL, NULL), STATUS_LIMIT);
    assert_int_equal(stream_queue_add(&queue, bytes, 1, bytes, SIZE_MAX, sent, NULL), STATUS_LIMIT);
    assert_int_equal(stream_queue_add(&queue, NULL, 0, bytes, sizeof bytes - 1, NULL, NULL), STATUS_OK);
    assert_int_equal(stream_queue_add(&queue, bytes, 1, NULL, 0, sent, NULL), STATUS_LIMIT);
    for (unsigned i = 1; i < NET_STREAM_QUEUE_MAX; i++) {
        assert_int_equal(stream_queue_add(&queue, NULL, 0, bytes, 1, sent, NULL), STATUS_OK);
    }
    assert_int_equal(stream_queue_add(&queue, NULL, 0, bytes, 1, sent, NULL), STATUS_LIMIT);
    assert_int_equal(queue.message_count, NET_STREAM_QUEUE_MAX);
    while (queue.messages != NULL) { /* more than `sent` above takes note of */
        queue.messages->sent = NULL;
        stream_queue_received(&queue, queue.messages->end_offset, 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_come_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_ends_with_its_last_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(it_goes_on_from_any_place, setup, teardown),
        cmocka_unit_test_setup_teardown(payloads_are_copied_if_nobody_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(the_limits_hold, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
