#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "proto/process_barrier.h"

/*
 * Two threads write their own word and then read the other's. If neither had a fence, both could read what
 * was there before: processors keep writes back. The writer has none; the other one calls process_barrier.
 */
enum { ROUNDS = 100000 };

static struct {
    _Alignas(128) _Atomic unsigned written;
    _Alignas(128) _Atomic unsigned asleep;
    _Alignas(128) _Atomic unsigned round, done;
    unsigned saw_asleep;
} shared;

static void await(_Atomic unsigned *word, unsigned value)
{
    for (unsigned looks = 0; atomic_load_explicit(word, memory_order_acquire) < value; looks++) {
        if (looks % 1000 == 999) {
            sched_yield();
        }
    }
}

static void linger(unsigned steps)
{
    for (unsigned i = 0; i < steps; i++) {
        atomic_signal_fence(memory_order_seq_cst);
    }
}

static void *write_often(void *context)
{
    (void)context;
    for (unsigned i = 1; i <= ROUNDS; i++) {
        await(&shared.round, i);
        atomic_store_explicit(&shared.written, i, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
        shared.saw_asleep = atomic_load_explicit(&shared.asleep, memory_order_relaxed);
        atomic_store_explicit(&shared.done, i, memory_order_release);
        await(&shared.asleep, i); /* so that this processor has the line at hand */
    }
    return NULL;
}

static void test_one_of_two_sees_the_other(void **state)
{
    pthread_t writer;
    unsigned missed = 0;
    (void)state;
    if (!process_barrier_join() || !process_barrier_works()) {
        print_message("SKIP: this kernel has no membarrier for all processes\n");
        skip();
    }
    assert_int_equal(pthread_create(&writer, NULL, write_often, NULL), 0);
    for (unsigned i = 1; i <= ROUNDS; i++) {
        atomic_store_explicit(&shared.round, i, memory_order_release);
        linger(i % 997); /* so that both write at the same time in some rounds */
        atomic_store_explicit(&shared.asleep, i, memory_order_relaxed);
        process_barrier();
        unsigned written = atomic_load_explicit(&shared.written, memory_order_relaxed);
        await(&shared.done, i);
        await(&shared.written, i); /* likewise */
        missed += written != i && shared.saw_asleep != i;
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(missed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_of_two_sees_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
