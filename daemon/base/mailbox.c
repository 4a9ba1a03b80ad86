#include "daemon/base/mailbox.h"

#include <stddef.h>

void mailbox_put(struct mailbox *mailbox, struct mail *mail)
{
    struct mail *newest = atomic_load_explicit(&mailbox->newest, memory_order_relaxed);
    do {
        mail->next = newest;
    } while (!atomic_compare_exchange_weak(&mailbox->newest, &newest, mail));
    if (atomic_load(&mailbox->asleep) && atomic_exchange(&mailbox->asleep, false) && mailbox->wake != NULL) {
        mailbox->wake(mailbox->wake_context);
    }
}

bool mailbox_run(struct mailbox *mailbox, uint64_t now_ns)
{
    atomic_store_explicit(&mailbox->asleep, false, memory_order_relaxed);
    struct mail *newest = atomic_exchange(&mailbox->newest, NULL);
    struct mail *oldest = NULL;
    bool any = newest != NULL;
    while (newest != NULL) {
        struct mail *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct mail *mail = oldest;
        oldest = mail->next;
        mail->deliver(mail->context, now_ns);
    }
    return any;
}

bool mailbox_is_empty(const struct mailbox *mailbox)
{
    return atomic_load_explicit(&mailbox->newest, memory_order_acquire) == NULL;
}

/* mailbox_put publishes the mail, then checks whether the owner sleeps. mailbox_sleep marks the owner asleep,
 * then checks for mails. So one of the two always sees the other. */
bool mailbox_sleep(struct mailbox *mailbox)
{
    atomic_store(&mailbox->asleep, true);
    if (atomic_load(&mailbox->newest) != NULL) {
        atomic_store_explicit(&mailbox->asleep, false, memory_order_relaxed);
        return false;
    }
    return true;
}
