#ifndef TESTS_UNIT_BASE_LOOP_FIXTURE_H
#define TESTS_UNIT_BASE_LOOP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/loop.h"
#include "daemon/base/time.h"

/* A loop, and two sockets for it to watch. */

#define TURN_MS 5000 /* far longer than any turn here: reached only if something is lost */

struct fixture {
    struct loop *loop;
    int pair[2]; /* non-blocking, connected */
};

static inline int fixture_make(void **state)
{
    static struct fixture fixture;
    struct error error;
    memset(&fixture, 0, sizeof(fixture));
    if (loop_new(&fixture.loop, &error) != STATUS_OK ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fixture.pair) != 0) {
        return -1;
    }
    *state = &fixture;
    return 0;
}

static inline int fixture_free(void **state)
{
    struct fixture *fixture = *state;
    loop_free(fixture->loop);
    close(fixture->pair[0]);
    close(fixture->pair[1]);
    return 0;
}

static inline void turn(struct loop *loop, uint64_t timeout_ms)
{
    struct error error;
    assert_int_equal(loop_run_once(loop, timeout_ms, &error), STATUS_OK);
}

#endif
