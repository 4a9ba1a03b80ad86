#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/store/stores_internal.h"

/* What this node does with a request to a store that it keeps. */

static void answer_failure(struct stores_opener *opener, uint64_t request, enum store_kind kind,
                           const struct error *error)
{
    struct stores_answer answer = {.result = error};
    stores_answer(opener, request, kind, &answer);
}

static void answer_good(struct stores_opener *opener, uint64_t request, enum store_kind kind,
                        struct store_bytes value, int64_t number)
{
    struct error fine = {.status = STATUS_OK};
    struct stores_answer answer = {.result = &fine, .value = value, .number = number};
    stores_answer(opener, request, kind, &answer);
}

/* --- Waiting --- */

void stores_wait_free(struct stores_wait *wait)
{
    struct stores_opener *opener = wait->opener;
    struct stores_kept *kept = opener->kept;
    if (wait->is_woken) {
        DL_DELETE(opener->woken, wait);
    } else {
        DL_DELETE(opener->waits, wait);
    }
    store_wait_end(kept->store, &wait->waiter);
    kept->wait_count--;
    budget_release(kept->account, BUDGET_STORES, wait->charged_bytes);
    free(wait);
}

/* The wait's answer is ready, and is sent in the opener's turn. */
static void wait_is_over(struct stores_wait *wait, enum status result)
{
    struct stores_opener *opener = wait->opener;
    struct stores *stores = opener->kept->stores;
    if (opener->woken == NULL) {
        DL_APPEND(stores->answering, opener);
    }
    DL_DELETE(opener->waits, wait);
    DL_APPEND(opener->woken, wait);
    wait->is_woken = true;
    wait->result = result;
    stores->run_ns = 0;
}

void stores_kept_woken(void *context, struct store_waiter *waiter, enum status result, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    wait_is_over((struct stores_wait *)waiter, result);
}

static enum status wait_new(struct stores_opener *opener, const struct stores_ask *ask, uint64_t now_ns,
                            struct stores_wait **out, struct error *error)
{
    struct stores_kept *kept = opener->kept;
    size_t key_bytes = ask->kind == STORE_KIND_GET ? ask->keys[0].size : 0;
    size_t size = sizeof **out + key_bytes;
    if (kept->wait_count >= STORE_WAITERS_MAX) {
        return error_set(error, STATUS_LIMIT, "store \"%s\": %u calls wait; more are not allowed",
                         kept->key.name, STORE_WAITERS_MAX);
    }
    enum status status = budget_charge(kept->account, BUDGET_STORES, size, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct stores_wait *wait = calloc(1, size);
    if (wait == NULL) {
        budget_release(kept->account, BUDGET_STORES, size);
        return error_set(error, STATUS_NO_MEMORY, "store \"%s\": no memory for a call that waits",
                         kept->key.name);
    }
    wait->opener = opener;
    wait->request = ask->request;
    wait->kind = ask->kind;
    wait->timeout_ns = ask->timeout_ns;
    wait->deadline_ns = time_after(now_ns, ask->timeout_ns);
    wait->charged_bytes = size;
    wait->key_bytes = key_bytes;
    if (key_bytes > 0) {
        memcpy(wait->key, ask->keys[0].data, key_bytes);
    }
    wait->waiter.timer.index = TIMER_NODE_DISARMED;
    kept->wait_count++;
    DL_APPEND(opener->waits, wait);
    *out = wait;
    return STATUS_OK;
}

/* Waits for the keys. If they exist already, the answer has to wait: there is no room for it. */
static enum status wait_begin(struct stores_opener *opener, const struct stores_ask *ask, uint64_t now_ns,
                              struct error *error)
{
    struct stores_wait *wait = NULL;
    enum status status = wait_new(opener, ask, now_ns, &wait, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = store_wait(opener->kept->store, &wait->waiter, ask->keys, ask->key_count, wait->deadline_ns,
                        now_ns, error);
    if (status == STATUS_OK) {
        wait_is_over(wait, STATUS_OK);
    } else if (status != STATUS_IN_PROGRESS) {
        stores_wait_free(wait);
    }
    return status;
}

static void ask_wait(struct stores_opener *opener, const struct stores_ask *ask, uint64_t now_ns)
{
    const struct store *store = opener->kept->store;
    struct store_bytes value = {0};
    struct error error;
    if (ask->kind == STORE_KIND_GET && store_get(store, ask->keys[0], &value) &&
        stores_has_room(opener, value.size)) {
        answer_good(opener, ask->request, ask->kind, value, 0);
        return;
    }
    enum status status = wait_begin(opener, ask, now_ns, &error);
    if (status != STATUS_OK && status != STATUS_IN_PROGRESS) {
        answer_failure(opener, ask->request, ask->kind, &error);
    }
}

/* A key was deleted after the wait for it had ended, and before its value was sent. Waits for it again. */
static void wait_again(struct stores_wait *wait, uint64_t now_ns)
{
    struct stores_opener *opener = wait->opener;
    struct error error;
    struct store_bytes key = {.data = wait->key, .size = wait->key_bytes};
    store_wait_end(opener->kept->store, &wait->waiter);
    DL_DELETE(opener->woken, wait);
    DL_APPEND(opener->waits, wait);
    wait->is_woken = false;
    enum status status =
        store_wait(opener->kept->store, &wait->waiter, &key, 1, wait->deadline_ns, now_ns, &error);
    if (status != STATUS_IN_PROGRESS) {
        answer_failure(opener, wait->request, wait->kind, &error);
        stores_wait_free(wait);
    }
}

static void answer_wait_failure(const struct stores_wait *wait)
{
    char text[STORE_KEY_TEXT_BYTES];
    struct error error;
    const char *name = wait->opener->kept->key.name;
    const char *key = store_key_text(store_wait_key(&wait->waiter), text);
    if (wait->result == STATUS_TIMED_OUT) {
        error_set(&error, wait->result, "store \"%s\": key %s was not set within %llu ms", name, key,
                  (unsigned long long)(wait->timeout_ns / TIME_MS));
    } else {
        error_set(&error, wait->result, "store \"%s\": a wait for key %s cannot go on: %s", name, key,
                  status_text(wait->result));
    }
    answer_failure(wait->opener, wait->request, wait->kind, &error);
}

/* Answers the opener's first wait that is over. Returns false if there is no room for the answer. */
static bool opener_answer_one(struct stores_opener *opener, uint64_t now_ns)
{
    struct stores_wait *wait = opener->woken;
    struct store_bytes value = {0};
    bool is_get = wait->kind == STORE_KIND_GET && wait->result == STATUS_OK;
    bool exists =
        is_get && store_get(opener->kept->store,
                            (struct store_bytes){.data = wait->key, .size = wait->key_bytes}, &value);
    if (!stores_has_room(opener, value.size)) {
        return false;
    }
    if (is_get && !exists) {
        wait_again(wait, now_ns);
    } else {
        if (wait->result == STATUS_OK) {
            answer_good(opener, wait->request, wait->kind, value, 0);
        } else {
            answer_wait_failure(wait);
        }
        stores_wait_free(wait);
    }
    stores_kept_arm(opener->kept);
    return true;
}

void stores_opener_unlist(struct stores_opener *opener)
{
    struct stores *stores = opener->kept->stores;
    if (opener->blocked) {
        DL_DELETE(stores->blocked, opener);
    } else {
        DL_DELETE(stores->answering, opener);
    }
    opener->blocked = false;
}

/* Answers one wait, and puts the opener at the end of the list where it now belongs. */
static bool opener_serve(struct stores_opener *opener, uint64_t now_ns)
{
    struct stores *stores = opener->kept->stores;
    struct budget_account *account = opener->kept->account;
    uint64_t began_ns = stores->clock != NULL ? stores->clock() : 0;
    stores_opener_unlist(opener);
    bool sent = opener_answer_one(opener, now_ns);
    if (opener->woken != NULL && sent) {
        DL_APPEND(stores->answering, opener);
    } else if (opener->woken != NULL) {
        opener->blocked = true;
        DL_APPEND(stores->blocked, opener);
    }
    if (stores->clock != NULL) {
        budget_spend(account, stores->clock() - began_ns);
    }
    return sent;
}

/* Serves the openers in turns, one answer each. Those without room wait apart: they delay nobody. */
uint32_t stores_kept_run(struct stores *stores, uint64_t now_ns)
{
    uint32_t answered = 0;
    if (stores->blocked != NULL && stores->unblock_ns <= now_ns) {
        const struct stores_opener *last = stores->blocked->prev;
        bool is_last = false;
        for (unsigned i = 0; i < STORES_RETRIES_PER_RUN && stores->blocked != NULL && !is_last; i++) {
            is_last = stores->blocked == last;
            answered += opener_serve(stores->blocked, now_ns);
        }
        stores->unblock_ns = time_after(now_ns, STORES_RETRY_NS);
    }
    for (unsigned i = 0; i < STORES_ANSWERS_PER_RUN && stores->answering != NULL; i++) {
        answered += opener_serve(stores->answering, now_ns);
    }
    return answered;
}

/* --- Requests that are answered at once --- */

static enum status ask_quick(struct store *store, const struct stores_ask *ask, struct store_bytes *value,
                             int64_t *number, uint64_t now_ns, struct error *error)
{
    struct store_bytes found;
    switch (ask->kind) {
    case STORE_KIND_SET:
        return store_set(store, ask->keys[0], ask->value, now_ns, error);
    case STORE_KIND_ADD:
        return store_add(store, ask->keys[0], ask->delta, number, now_ns, error);
    case STORE_KIND_COMPARE_SET:
        return store_compare_set(store, ask->keys[0], ask->expected, ask->value, value, now_ns, error);
    case STORE_KIND_CHECK:
        *number = 1;
        for (size_t i = 0; i < ask->key_count; i++) {
            *number = *number != 0 && store_get(store, ask->keys[i], &found);
        }
        return STATUS_OK;
    case STORE_KIND_DELETE:
        *number = store_delete(store, ask->keys[0]);
        return STATUS_OK;
    case STORE_KIND_COUNT:
        *number = (int64_t)store_count(store);
        return STATUS_OK;
    case STORE_KIND_OPEN:
    case STORE_KIND_CLOSE:
    case STORE_KIND_GET:
    case STORE_KIND_WAIT:
        break;
    }
    return error_set(error, STATUS_INTERNAL, "a request to a store of kind %u", (unsigned)ask->kind);
}

void stores_kept_ask(struct stores_opener *opener, const struct stores_ask *ask, uint64_t now_ns)
{
    struct stores_kept *kept = opener->kept;
    struct store_bytes value = {0};
    struct error error;
    int64_t number = 0;
    if (!stores_kind_is_quick(ask->kind)) {
        ask_wait(opener, ask, now_ns);
    } else if (ask_quick(kept->store, ask, &value, &number, now_ns, &error) == STATUS_OK) {
        answer_good(opener, ask->request, ask->kind, value, number);
    } else {
        answer_failure(opener, ask->request, ask->kind, &error);
    }
    stores_kept_arm(kept);
}
