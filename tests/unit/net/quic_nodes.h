#ifndef TESTS_UNIT_NET_QUIC_NODES_H
#define TESTS_UNIT_NET_QUIC_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "tests/lib/quic_node.h"
#include "tests/lib/test_pki.h"

/* Two endpoints, a and b, in one process. Their authority has issued a certificate for c, too. */

static struct test_pki *pki;
static struct loop *loop;
static struct quic_node *a;
static struct quic_node *b;

static inline int setup_files(void **state)
{
    (void)state;
    pki = test_pki_new();
    test_pki_issue(pki, "a", &(struct test_certificate){.name = "a"});
    test_pki_issue(pki, "b", &(struct test_certificate){.name = "b"});
    test_pki_issue(pki, "c", &(struct test_certificate){.name = "c"});
    return 0;
}

static inline int teardown_files(void **state)
{
    (void)state;
    test_pki_free(pki);
    return 0;
}

static inline int setup_loop(void **state)
{
    struct error error;
    (void)state;
    return loop_new(&loop, &error) == STATUS_OK ? 0 : -1;
}

/* The nodes do not know each other yet. */
static inline int setup_nodes(void **state)
{
    if (setup_loop(state) != 0) {
        return -1;
    }
    a = quic_node_new(loop, pki, "a", NULL);
    b = quic_node_new(loop, pki, "b", NULL);
    return 0;
}

static inline void free_nodes(void)
{
    assert_false(a != NULL && a->wrong_order);
    assert_false(b != NULL && b->wrong_order);
    quic_node_free(a);
    quic_node_free(b);
    a = NULL;
    b = NULL;
}

static inline int teardown_nodes(void **state)
{
    (void)state;
    free_nodes();
    loop_free(loop);
    return 0;
}

static inline void assert_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", text, part);
    }
}

/* --- Conditions --- */

static inline bool both_up(const void *context)
{
    (void)context;
    return a->up[0] && b->up[0];
}

static inline bool both_down(const void *context)
{
    (void)context;
    return !a->up[0] && !b->up[0];
}

static inline bool source_done(const void *context)
{
    return quic_source_done(context);
}

#endif
