#ifndef DAEMON_BASE_MAILBOX_H
#define DAEMON_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Work that one thread hands to another. A mail lives in its sender's memory, so putting one never fails. It
 * belongs to the mailbox until `deliver` is called on the owner's thread. `deliver` may put the mail again or
 * free it. Mails of one sender are delivered in the order in which they were put.
 */
struct mail {
    struct mail *next;
    void (*deliver)(void *context, uint64_t now_ns);
    void *context;
};

struct mailbox {
    _Atomic(struct mail *) newest;
    atomic_bool asleep;
    /* Called on the sender's thread when the owner sleeps. Null: the owner polls the mailbox. */
    void (*wake)(void *context);
    void *wake_context;
};

/* Any thread. */
void mailbox_put(struct mailbox *mailbox, struct mail *mail);

/* This and the calls below: the owner's thread. Delivers all mails that are there; returns whether there were
 * any. */
bool mailbox_run(struct mailbox *mailbox, uint64_t now_ns);
bool mailbox_is_empty(const struct mailbox *mailbox);
/* Call it before waiting: from now on senders call `wake`. Returns false if there is a mail already; the
 * owner must not wait then. */
bool mailbox_sleep(struct mailbox *mailbox);

#endif
