#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>

#include "daemon/base/mailbox.h"

enum { SENDERS = 4, MAILS = 20000 };

struct letter {
    struct mail mail;
    unsigned sender, number;
};

static unsigned next_of[SENDERS];
static unsigned delivered;
static unsigned wakes;
static sem_t bell;

static void deliver(void *context, uint64_t now_ns)
{
    const struct letter *letter = context;
    assert_int_equal(now_ns, 7);
    /* Each sender's letters come in order, each once. */
    assert_int_equal(letter->number, next_of[letter->sender]);
    next_of[letter->sender]++;
    delivered++;
}

static void put(struct mailbox *mailbox, struct letter *letter)
{
    letter->mail = (struct mail){.deliver = deliver, .context = letter};
    mailbox_put(mailbox, &letter->mail);
}

static void count_wake(void *context)
{
    (void)context;
    wakes++;
}

static void test_order_and_wakes(void **state)
{
    (void)state;
    struct mailbox mailbox = {.wake = count_wake};
    struct letter letters[3] = {{.number = 0}, {.number = 1}, {.number = 2}};
    delivered = wakes = next_of[0] = 0;
    assert_true(mailbox_is_empty(&mailbox));
    put(&mailbox, &letters[0]);
    assert_int_equal(wakes, 0); /* the owner does not sleep */
    assert_false(mailbox_sleep(&mailbox));
    assert_true(mailbox_run(&mailbox, 7));
    assert_false(mailbox_run(&mailbox, 7));
    assert_true(mailbox_sleep(&mailbox));
    put(&mailbox, &letters[1]);
    put(&mailbox, &letters[2]);
    assert_int_equal(wakes, 1); /* once is enough */
    assert_true(mailbox_run(&mailbox, 7));
    assert_int_equal(delivered, 3);
}

/* --- Several senders, an owner that sleeps --- */

static struct mailbox shared;
static struct letter all[SENDERS][MAILS];

static void ring(void *context)
{
    (void)context;
    sem_post(&bell);
}

static void *send_all(void *context)
{
    unsigned sender = (unsigned)(uintptr_t)context;
    for (unsigned i = 0; i < MAILS; i++) {
        all[sender][i].sender = sender;
        all[sender][i].number = i;
        put(&shared, &all[sender][i]);
    }
    return NULL;
}

static void test_no_mail_is_lost_and_nobody_sleeps_on(void **state)
{
    (void)state;
    pthread_t threads[SENDERS];
    delivered = 0;
    shared.wake = ring;
    assert_int_equal(sem_init(&bell, 0, 0), 0);
    for (unsigned i = 0; i < SENDERS; i++) {
        next_of[i] = 0;
    }
    for (unsigned i = 0; i < SENDERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, (void *)(uintptr_t)i), 0);
    }
    while (delivered < SENDERS * MAILS) {
        if (!mailbox_run(&shared, 7) && mailbox_sleep(&shared)) {
            sem_wait(&bell);
        }
    }
    for (unsigned i = 0; i < SENDERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(next_of[i], MAILS);
    }
    sem_destroy(&bell);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_wakes),
        cmocka_unit_test(test_no_mail_is_lost_and_nobody_sleeps_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
