#ifndef DAEMON_BASE_MAILBOX_H
#define DAEMON_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Work that one thread hands to another. A mail lives in its sender's memory, so putting one never fails; it
 * is the mailbox's until `deliver` is called, on the owner's thread, which may put it again or free it. Mails
 * of one sender are delivered in the order put.
 */
struct mail {
    struct mail *next;
    void (*deliver)(void *context, uint64_t now_ns);
    void *context;
};

struct mailbox {
    _Atomic(struct mail *) newest;
    atomic_bool asleep;
    /* Called by a sender, on its thread, when the owner sleeps; null: the owner looks by itself. */
    void (*wake)(void *context);
    void *wake_context;
};

/* Any thread. */
void mailbox_put(struct mailbox *mailbox, struct mail *mail);

/* The owner's thread, as what follows. Delivers what is there; returns whether there was anything. */
bool mailbox_run(struct mailbox *mailbox, uint64_t now_ns);
bool mailbox_is_empty(const struct mailbox *mailbox);
/* Before waiting: from now on senders call `wake`. False when there is a mail already: do not wait. */
bool mailbox_sleep(struct mailbox *mailbox);

#endif
