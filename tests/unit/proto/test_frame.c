#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

enum { MESSAGES_MAX = 8, STREAM_MAX_BYTES = 2 * (FRAME_MAX_BYTES + FRAME_HEADER_BYTES) };

/* A stream of messages whose bytes differ per message and per place. */
struct stream {
    size_t count;
    size_t sizes[MESSAGES_MAX];
    size_t size;
    uint8_t bytes[STREAM_MAX_BYTES];
};

static uint8_t message_byte(size_t message, size_t place)
{
    return (uint8_t)(message * 71 + place * 13 + place / 256 * 7 + 5);
}

static void stream_build(struct stream *stream, const size_t *sizes, size_t count)
{
    static uint8_t message[FRAME_MAX_BYTES];
    stream->count = count;
    stream->size = 0;
    for (size_t m = 0; m < count; m++) {
        for (size_t i = 0; i < sizes[m]; i++) {
            message[i] = message_byte(m, i);
        }
        size_t written_bytes = FRAME_HEADER_BYTES + sizes[m];
        assert_in_range(written_bytes, 0, sizeof(stream->bytes) - stream->size);
        frame_put_header(stream->bytes + stream->size, sizes[m]);
        memcpy(stream->bytes + stream->size + FRAME_HEADER_BYTES, message, sizes[m]);
        stream->sizes[m] = sizes[m];
        stream->size += written_bytes;
    }
}

static void check_message(const struct stream *stream, size_t index, const uint8_t *message, size_t size)
{
    assert_true(index < stream->count);
    assert_int_equal(size, stream->sizes[index]);
    for (size_t i = 0; i < size; i++) {
        assert_int_equal(message[i], message_byte(index, i));
    }
}

/* Feeds a piece from memory of exactly its size, and frees it after the call. So the sanitizers see any read
 * beyond it or after the call. Checks what comes out and counts it in *seen. */
static void feed(struct frame_decoder *decoder, const struct stream *stream, size_t from, size_t size,
                 size_t *seen)
{
    uint8_t *piece = malloc(size > 0 ? size : 1);
    assert_non_null(piece);
    memcpy(piece, stream->bytes + from, size);
    const uint8_t *bytes = piece;
    size_t left = size;
    for (;;) {
        const uint8_t *message = NULL;
        size_t message_bytes = 0;
        enum status status = frame_decoder_next(decoder, &bytes, &left, &message, &message_bytes);
        assert_ptr_equal(bytes, piece + (size - left));
        if (status == STATUS_IN_PROGRESS) {
            break;
        }
        assert_int_equal(status, STATUS_OK);
        check_message(stream, *seen, message, message_bytes);
        (*seen)++;
    }
    assert_int_equal(left, 0);
    free(piece);
}

static void test_header(void **state)
{
    (void)state;
    uint8_t header[FRAME_HEADER_BYTES + 1];
    memset(header, 0xa5, sizeof(header));
    frame_put_header(header, 0x1234);
    assert_memory_equal(header, "\x34\x12\x00\x00\xa5", 5);
    frame_put_header(header, FRAME_MAX_BYTES);
    assert_memory_equal(header, "\x00\x00\x01\x00\xa5", 5);
}

/* All ways to cut a short stream into three pieces, empty ones included: two cuts meet each pair of
 * boundaries. */
static void test_every_split(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t sizes[] = {3, 1, 17, 2, 1};
    stream_build(&stream, sizes, 5);
    for (size_t a = 0; a <= stream.size; a++) {
        for (size_t b = a; b <= stream.size; b++) {
            struct frame_decoder decoder = {0};
            size_t seen = 0;
            feed(&decoder, &stream, 0, a, &seen);
            feed(&decoder, &stream, a, b - a, &seen);
            feed(&decoder, &stream, b, stream.size - b, &seen);
            assert_int_equal(seen, stream.count);
            assert_true(frame_decoder_at_boundary(&decoder));
            frame_decoder_free(&decoder);
        }
    }
}

static void test_every_piece_size(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t sizes[] = {5, 300, 1, 64, 65, 1000};
    stream_build(&stream, sizes, 6);
    for (size_t piece = 1; piece <= stream.size; piece++) {
        struct frame_decoder decoder = {0};
        size_t seen = 0;
        for (size_t at = 0; at < stream.size; at += piece) {
            size_t left = stream.size - at;
            feed(&decoder, &stream, at, piece < left ? piece : left, &seen);
        }
        assert_int_equal(seen, stream.count);
        frame_decoder_free(&decoder);
    }
}

static void test_largest_message(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t sizes[] = {FRAME_MAX_BYTES, FRAME_MAX_BYTES};
    stream_build(&stream, sizes, 2);
    static const size_t pieces[] = {1,
                                    4096,
                                    FRAME_MAX_BYTES - 1,
                                    FRAME_MAX_BYTES,
                                    FRAME_MAX_BYTES + 3,
                                    FRAME_MAX_BYTES + 5,
                                    STREAM_MAX_BYTES};
    for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++) {
        struct frame_decoder decoder = {0};
        size_t seen = 0;
        for (size_t at = 0; at < stream.size; at += pieces[p]) {
            size_t left = stream.size - at;
            feed(&decoder, &stream, at, pieces[p] < left ? pieces[p] : left, &seen);
            assert_true(decoder.capacity_bytes <= FRAME_MAX_BYTES);
        }
        assert_int_equal(seen, 2);
        frame_decoder_free(&decoder);
    }
}

/* A frame that is complete in the given bytes is not copied. */
static void test_whole_frame_points_into_the_bytes(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t sizes[] = {9, 4};
    stream_build(&stream, sizes, 2);
    struct frame_decoder decoder = {0};
    const uint8_t *bytes = stream.bytes;
    size_t left = stream.size;
    const uint8_t *message = NULL;
    size_t message_bytes = 0;
    assert_int_equal(frame_decoder_next(&decoder, &bytes, &left, &message, &message_bytes), STATUS_OK);
    assert_ptr_equal(message, stream.bytes + 4);
    assert_int_equal(left, 8);
    assert_int_equal(frame_decoder_next(&decoder, &bytes, &left, &message, &message_bytes), STATUS_OK);
    assert_ptr_equal(message, stream.bytes + 17);
    assert_int_equal(left, 0);
    assert_null(decoder.buffer);
    frame_decoder_free(&decoder);
}

static void test_boundary(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t sizes[] = {6, 2};
    stream_build(&stream, sizes, 2);
    struct frame_decoder decoder = {0};
    size_t seen = 0;
    assert_true(frame_decoder_at_boundary(&decoder));
    for (size_t at = 0; at < stream.size; at++) {
        feed(&decoder, &stream, at, 1, &seen);
        assert_int_equal(frame_decoder_at_boundary(&decoder), at + 1 == 10 || at + 1 == stream.size);
    }
    feed(&decoder, &stream, 0, 7, &seen);
    assert_false(frame_decoder_at_boundary(&decoder));
    frame_decoder_free(&decoder);
    assert_true(frame_decoder_at_boundary(&decoder));
}

/* A bad length follows a good frame, and its bytes are cut at each place. The decoder returns the good frame,
 * and afterwards only errors. */
static void check_bad_length(const uint8_t header[FRAME_HEADER_BYTES])
{
    for (size_t cut = 0; cut <= FRAME_HEADER_BYTES; cut++) {
        uint8_t bytes[] = {2, 0, 0, 0, 'o', 'k', 0, 0, 0, 0, 'x'};
        memcpy(bytes + 6, header, FRAME_HEADER_BYTES);
        struct frame_decoder decoder = {0};
        const uint8_t *message = NULL;
        size_t message_bytes = 0;
        const uint8_t *at = bytes;
        size_t left = 6 + cut;
        assert_int_equal(frame_decoder_next(&decoder, &at, &left, &message, &message_bytes), STATUS_OK);
        assert_int_equal(message_bytes, 2);
        assert_memory_equal(message, "ok", 2);
        if (cut < FRAME_HEADER_BYTES) {
            assert_int_equal(frame_decoder_next(&decoder, &at, &left, &message, &message_bytes),
                             STATUS_IN_PROGRESS);
            left = sizeof(bytes) - 6 - cut;
        }
        message = NULL;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(frame_decoder_next(&decoder, &at, &left, &message, &message_bytes),
                             STATUS_PROTOCOL);
        }
        at = (const uint8_t *)"\x01\x00\x00\x00z";
        left = 5;
        assert_int_equal(frame_decoder_next(&decoder, &at, &left, &message, &message_bytes), STATUS_PROTOCOL);
        assert_null(message);
        frame_decoder_free(&decoder);
        assert_int_equal(frame_decoder_next(&decoder, &at, &left, &message, &message_bytes), STATUS_OK);
        assert_int_equal(message[0], 'z');
        frame_decoder_free(&decoder);
    }
}

static void test_zero_and_oversize_are_protocol_errors(void **state)
{
    (void)state;
    static const uint8_t bad[][FRAME_HEADER_BYTES] = {
        {0, 0, 0, 0},    {1, 0, 1, 0},       {0, 0, 2, 0},
        {0, 0, 0, 1},    {0, 0, 0, 0x80},    {0xff, 0xff, 0xff, 0xff},
        {0, 0, 1, 0x01}, {0xff, 0xff, 1, 0}, {0xfc, 0xff, 0xff, 0xff},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        check_bad_length(bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_every_piece_size),
        cmocka_unit_test(test_largest_message),
        cmocka_unit_test(test_whole_frame_points_into_the_bytes),
        cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_zero_and_oversize_are_protocol_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
