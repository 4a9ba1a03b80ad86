#ifndef TESTS_UNIT_CLIENT_CLIENT_PAIR_H
#define TESTS_UNIT_CLIENT_CLIENT_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <commclient.h>

#include "tests/lib/fake_daemon.h"

/* A fake daemon and a client of it. */
struct pair {
    struct fake_daemon *daemon;
    comm_client_t *client;
};

static inline comm_result_t pair_open(const struct fake_daemon *daemon, uint32_t timeout_ms,
                                      comm_client_t **client)
{
    comm_open_options_t options = COMM_OPEN_OPTIONS_INIT;
    options.socket_path = fake_daemon_path(daemon);
    options.timeout_ms = timeout_ms;
    return comm_client_open(&options, client);
}

static inline struct pair pair_start(const struct fake_script *script)
{
    struct pair pair = {.daemon = fake_daemon_start(script)};
    assert_int_equal(pair_open(pair.daemon, 0, &pair.client), COMM_OK);
    return pair;
}

static inline void pair_stop(struct pair *pair)
{
    comm_client_close(pair->client);
    fake_daemon_stop(pair->daemon);
}

static inline comm_t *pair_comm(const struct pair *pair, const char *name, uint32_t rank, uint32_t size)
{
    comm_t *comm = NULL;
    comm_result_t result = comm_init(pair->client, name, rank, size, COMM_DEVICE_HOST, NULL, &comm);
    if (result != COMM_OK) {
        fail_msg("comm_init: %s", comm_last_error());
    }
    assert_non_null(comm);
    return comm;
}

/* Checks that the last error's text contains this. */
static inline void assert_error_says(const char *text)
{
    if (strstr(comm_last_error(), text) == NULL) {
        fail_msg("\"%s\" is not in: %s", text, comm_last_error());
    }
}

/* Bytes that differ by place and by seed. */
static inline void fill_bytes(unsigned char *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(i * 13u + i / 256u + seed * 29u);
    }
}

/* Whether `output` is what the fake daemon makes of fill_bytes(seed). */
static inline void assert_reduced(const unsigned char *output, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char expected = fake_daemon_byte((unsigned char)(i * 13u + i / 256u + seed * 29u));
        if (output[i] != expected) {
            fail_msg("byte %zu of %zu is %u, expected %u", i, size, output[i], expected);
        }
    }
}

#endif
