#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "daemon/net/resolver.h"

/* Names are looked up by threads, and answered on the loop's thread. */

#define QUESTIONS 200

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* held: lookups do not end */
static unsigned answers, found, failed;
static uint32_t last_id;
static char last_asked[64], last_address[64], last_why[ERROR_TEXT_MAX_BYTES];

static enum status lookup(const char *text, int family, char out[QUIC_ADDRESS_TEXT_MAX_BYTES],
                          struct error *error)
{
    assert_int_equal(family, AF_INET);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    if (strncmp(text, "no", 2) == 0) {
        return error_set(error, STATUS_UNREACHABLE, "address \"%s\": nobody knows it", text);
    }
    snprintf(out, QUIC_ADDRESS_TEXT_MAX_BYTES, "192.0.2.1:%s", strchr(text, ':') + 1);
    return STATUS_OK;
}

static void on_answer(void *context, uint32_t id, const char *asked, const char *address,
                      const struct error *why, uint64_t now_ns)
{
    assert_ptr_equal(context, &answers);
    assert_true(now_ns > 0);
    answers++;
    found += address != NULL;
    failed += address == NULL;
    last_id = id;
    snprintf(last_asked, sizeof last_asked, "%s", asked);
    snprintf(last_address, sizeof last_address, "%s", address != NULL ? address : "");
    snprintf(last_why, sizeof last_why, "%s", address == NULL ? why->text : "");
}

static struct loop *make(struct resolver **resolver, resolver_lookup *function)
{
    struct loop *loop;
    struct error error;
    answers = found = failed = 0;
    assert_int_equal(loop_new(&loop, &error), STATUS_OK);
    struct resolver_options options = {
        .loop = loop, .family = AF_INET, .lookup = function, .done = on_answer, .context = &answers};
    assert_int_equal(resolver_new(&options, resolver, &error), STATUS_OK);
    return loop;
}

static void ask(struct resolver *resolver, uint32_t id, const char *text)
{
    struct error error;
    assert_int_equal(resolver_ask(resolver, id, text, &error), STATUS_OK);
}

static void run_until(struct loop *loop, unsigned count)
{
    struct error error;
    for (unsigned i = 0; i < 1000 && answers < count; i++) {
        assert_int_equal(loop_run_once(loop, 100, &error), STATUS_OK);
    }
    assert_int_equal(answers, count);
}

static void test_answers(void **state)
{
    (void)state;
    struct resolver *resolver;
    struct loop *loop = make(&resolver, lookup);
    ask(resolver, 7, "b.example:7400");
    assert_int_equal(answers, 0); /* not from within the call */
    run_until(loop, 1);
    assert_int_equal(last_id, 7);
    assert_string_equal(last_asked, "b.example:7400");
    assert_string_equal(last_address, "192.0.2.1:7400");
    ask(resolver, 8, "no.example:7400");
    run_until(loop, 2);
    assert_string_equal(last_address, "");
    assert_string_equal(last_why, "address \"no.example:7400\": nobody knows it");
    for (uint32_t i = 0; i < QUESTIONS; i++) {
        ask(resolver, i, i % 2 == 0 ? "no.example:1" : "x:1");
    }
    run_until(loop, 2 + QUESTIONS);
    assert_int_equal(found, 1 + QUESTIONS / 2);
    assert_int_equal(failed, 1 + QUESTIONS / 2);
    resolver_free(resolver);
    loop_free(loop);
}

/* While no name server answers, the loop goes on. A resolver that ends does not wait for an answer. */
static void test_lookups_that_do_not_end(void **state)
{
    (void)state;
    struct resolver *resolver;
    struct error error;
    struct loop *loop = make(&resolver, lookup);
    pthread_mutex_lock(&gate);
    for (uint32_t i = 0; i < 2 * RESOLVER_THREADS_MAX; i++) {
        ask(resolver, i, "x:1");
    }
    assert_int_equal(loop_run_once(loop, 1, &error), STATUS_OK);
    assert_int_equal(answers, 0);
    resolver_free(resolver);
    pthread_mutex_unlock(&gate);
    assert_int_equal(loop_run_once(loop, 1, &error), STATUS_OK);
    assert_int_equal(answers, 0);
    loop_free(loop);
}

static void test_limit(void **state)
{
    (void)state;
    struct resolver *resolver;
    struct error error;
    struct loop *loop = make(&resolver, lookup);
    pthread_mutex_lock(&gate);
    for (uint32_t i = 0; i < RESOLVER_QUESTIONS_MAX; i++) {
        ask(resolver, i, "x:1");
    }
    assert_int_equal(resolver_ask(resolver, 0, "x:1", &error), STATUS_LIMIT);
    pthread_mutex_unlock(&gate);
    run_until(loop, RESOLVER_QUESTIONS_MAX);
    ask(resolver, 0, "x:1");
    run_until(loop, RESOLVER_QUESTIONS_MAX + 1);
    resolver_free(resolver);
    loop_free(loop);
}

/* The system's own lookup, which needs no name server for this one. */
static void test_the_system(void **state)
{
    (void)state;
    struct resolver *resolver;
    struct loop *loop = make(&resolver, NULL);
    ask(resolver, 1, "localhost:7400");
    run_until(loop, 1);
    assert_string_equal(last_address, "127.0.0.1:7400");
    resolver_free(resolver);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_lookups_that_do_not_end),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
