#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/srv.h"

/* SRV answers, good and hostile. */

enum { HEADER_BYTES = 12, TYPE_SRV = 33, TYPE_A = 1 };

struct message {
    uint8_t bytes[4096];
    size_t size;
};

static void put(struct message *message, const void *bytes, size_t size)
{
    assert_true(message->size + size <= sizeof message->bytes);
    memcpy(message->bytes + message->size, bytes, size);
    message->size += size;
}

static void put16(struct message *message, unsigned value)
{
    put(message, (uint8_t[]){(uint8_t)(value >> 8), (uint8_t)value}, 2);
}

/* The labels without the root. */
static void put_labels(struct message *message, const char *name)
{
    while (*name != '\0') {
        size_t size = strcspn(name, ".");
        put(message, (uint8_t[]){(uint8_t)size}, 1);
        put(message, name, size);
        name += size + (name[size] == '.');
    }
}

static void put_name(struct message *message, const char *name)
{
    put_labels(message, name);
    put(message, "", 1);
}

/* An answer to a question for s.test, at offset 12, that announces `records` of them. */
static void begin(struct message *message, unsigned flags, unsigned records)
{
    message->size = 0;
    put16(message, 7);
    put16(message, flags);
    put16(message, 1);
    put16(message, records);
    put16(message, 0);
    put16(message, 0);
    put_name(message, "s.test");
    put16(message, TYPE_SRV);
    put16(message, 1);
}

static void put_record(struct message *message, unsigned type, unsigned ttl_s, const struct message *data)
{
    put16(message, 0xc000 | HEADER_BYTES);
    put16(message, type);
    put16(message, 1);
    put16(message, ttl_s >> 16);
    put16(message, ttl_s & 0xffff);
    put16(message, (unsigned)data->size);
    put(message, data->bytes, data->size);
}

static struct message target(const char *name, unsigned port)
{
    struct message data = {.size = 0};
    put16(&data, 0);
    put16(&data, 5);
    put16(&data, port);
    put_name(&data, name);
    return data;
}

static void assert_refused(const struct message *message, const char *reason)
{
    struct srv_answer answer;
    struct error error;
    assert_int_equal(srv_parse(message->bytes, message->size, &answer, &error), STATUS_UNREACHABLE);
    assert_null(answer.records);
    if (strstr(error.text, reason) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", reason, error.text);
    }
}

static void test_records(void **state)
{
    (void)state;
    struct message message, one = target("a-0.svc.test", 7400), other = target("a-1.svc.test", 65535),
                            address = {.bytes = {192, 0, 2, 1}, .size = 4};
    struct srv_answer answer;
    struct error error;
    begin(&message, 0x8180, 3);
    put_record(&message, TYPE_SRV, 90, &one);
    put_record(&message, TYPE_A, 1, &address); /* of no concern */
    put_record(&message, TYPE_SRV, 30, &other);
    assert_int_equal(srv_parse(message.bytes, message.size, &answer, &error), STATUS_OK);
    assert_int_equal(answer.count, 2);
    assert_int_equal(answer.ttl_s, 30);
    assert_string_equal(answer.records[0].target, "a-0.svc.test");
    assert_int_equal(answer.records[0].port, 7400);
    assert_string_equal(answer.records[1].target, "a-1.svc.test");
    assert_int_equal(answer.records[1].port, 65535);
    srv_answer_free(&answer);
    assert_int_equal(answer.count, 0);
}

/* Some name servers compress targets, though RFC 2782 forbids it. */
static void test_compressed_target(void **state)
{
    (void)state;
    struct message message, data = {.size = 0};
    struct srv_answer answer;
    struct error error;
    put16(&data, 0);
    put16(&data, 0);
    put16(&data, 7400);
    put_labels(&data, "b");
    put16(&data, 0xc000 | HEADER_BYTES);
    begin(&message, 0x8180, 1);
    put_record(&message, TYPE_SRV, 5, &data);
    assert_int_equal(srv_parse(message.bytes, message.size, &answer, &error), STATUS_OK);
    assert_string_equal(answer.records[0].target, "b.s.test");
    srv_answer_free(&answer);
}

static void test_compression_that_loops(void **state)
{
    (void)state;
    struct message message, data = {.size = 0};
    begin(&message, 0x8180, 1);
    put16(&data, 0);
    put16(&data, 0);
    put16(&data, 7400);
    put16(&data, 0xc000 | (unsigned)(message.size + 12 + 6)); /* to itself */
    put_record(&message, TYPE_SRV, 5, &data);
    assert_refused(&message, "malformed");
    data.size = 6;
    put16(&data, 0xffff); /* beyond the message */
    begin(&message, 0x8180, 1);
    put_record(&message, TYPE_SRV, 5, &data);
    assert_refused(&message, "malformed");
}

static void test_answers_that_are_none(void **state)
{
    (void)state;
    struct message message, root = target("", 7400), one = target("a.test", 1);
    begin(&message, 0x8180, 0);
    assert_refused(&message, "no SRV records");
    begin(&message, 0x8180, 1);
    put_record(&message, TYPE_SRV, 5, &root); /* the service is not offered */
    assert_refused(&message, "no SRV records");
    begin(&message, 0x8180 | 3, 0);
    assert_refused(&message, "error 3");
    begin(&message, 0x0100, 1); /* a question */
    put_record(&message, TYPE_SRV, 5, &one);
    assert_refused(&message, "reports error");
    begin(&message, 0x8380, 1);
    put_record(&message, TYPE_SRV, 5, &one);
    assert_refused(&message, "cut short");
}

static void test_records_of_wrong_size(void **state)
{
    (void)state;
    struct message message, data = target("a.test", 1);
    put(&data, "x", 1); /* after the target */
    begin(&message, 0x8180, 1);
    put_record(&message, TYPE_SRV, 5, &data);
    assert_refused(&message, "malformed target");
    for (size_t size = 0; size <= 6; size++) {
        data.size = size;
        begin(&message, 0x8180, 1);
        put_record(&message, TYPE_SRV, 5, &data);
        assert_refused(&message, "expected more than 6");
    }
}

/* A message that ends early is refused wherever it ends, and so is one that announces more than it has. */
static void test_every_cut(void **state)
{
    (void)state;
    struct message message, one = target("a-0.svc.test", 7400);
    begin(&message, 0x8180, 1);
    put_record(&message, TYPE_SRV, 90, &one);
    size_t whole = message.size;
    for (message.size = 0; message.size < whole; message.size++) {
        assert_refused(&message, "malformed");
    }
    begin(&message, 0x8180, 65535);
    put_record(&message, TYPE_SRV, 90, &one);
    assert_refused(&message, "malformed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_compressed_target),
        cmocka_unit_test(test_compression_that_loops),
        cmocka_unit_test(test_answers_that_are_none),
        cmocka_unit_test(test_records_of_wrong_size),
        cmocka_unit_test(test_every_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
