#include <stdlib.h>

#include "tests/cuda_double/nccl.h"

/* What one thread does between the outermost start and end of a group, in order. A call without a group is
 * a group of its own. */
struct item {
    struct communicator *communicator; /* holds a reference */
    bool inits;
    struct call call;
    struct operation *operation; /* holds a reference, once the operation is called */
};

struct group {
    struct item *items;
    size_t count;
    size_t room;
    nccl_result failure;
};

static __thread unsigned depth;
static __thread struct group group;

/* What the thread has aborted in the group. */
struct aborted {
    struct aborted *next;
    struct communicator *communicator;
};
static __thread struct aborted *all_aborted;

nccl_result group_note(nccl_result result)
{
    if (depth > 0 && group.failure == NCCL_RESULT_OK) {
        group.failure = result;
    }
    return result;
}

static void clear(void)
{
    for (size_t i = 0; i < group.count; i++) {
        if (group.items[i].operation != NULL) {
            operation_unref(group.items[i].operation);
        }
        communicator_unref(group.items[i].communicator);
    }
    free(group.items);
    group = (struct group){.items = NULL};
}

static nccl_result item_state(struct item *item)
{
    struct communicator *communicator = item->communicator;
    if (communicator->aborted) {
        return nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "rank %d has been aborted", communicator->rank);
    }
    if (communicator->failure != NCCL_RESULT_OK) {
        return communicator->failure;
    }
    return item->inits ? communicator->clique->verdict : operation_state(item->operation);
}

/* Waits for all ranks of every communicator. They may come in this thread's group or in those of others. */
static nccl_result await(void)
{
    uint64_t deadline = hang_deadline(now_ns());
    for (size_t i = 0; i < group.count; i++) {
        struct item *item = &group.items[i];
        nccl_result state = item_state(item);
        while (state == NCCL_RESULT_IN_PROGRESS && double_wait(deadline)) {
            state = item_state(item);
        }
        if (state == NCCL_RESULT_IN_PROGRESS) {
            struct clique *clique = item->communicator->clique;
            return clique_fail(clique, NCCL_RESULT_SYSTEM_ERROR,
                               "%d of %d ranks have %s; NCCL would hang: one thread's calls on several ranks "
                               "belong in one group",
                               item->inits ? clique->joined : item->operation->called, clique->size,
                               item->inits ? "come" : "called");
        }
        if (state != NCCL_RESULT_OK) {
            return state;
        }
    }
    return NCCL_RESULT_OK;
}

/* All calls of the item's rank, from the item on, enter the rank's stream together. */
static nccl_result enqueue_rank(size_t first)
{
    struct operation *operations[PENDING_MAX];
    size_t count = 0;
    for (size_t i = first; i < group.count && count < PENDING_MAX; i++) {
        struct item *item = &group.items[i];
        if (item->communicator == group.items[first].communicator && item->operation != NULL &&
            !operation_is_window(item->operation)) {
            operations[count++] = item->operation;
            item->operation = NULL;
        }
    }
    return operations_enqueue(operations, count, group.items[first].communicator);
}

static nccl_result run_blocking(void)
{
    nccl_result result = await();
    for (size_t i = 0; i < group.count && result == NCCL_RESULT_OK; i++) {
        struct item *item = &group.items[i];
        if (item->inits) {
            item->communicator->forming = false;
        } else if (item->operation != NULL && operation_is_window(item->operation)) {
            result = window_form(item->communicator, item->operation);
            item->operation = NULL;
        } else if (item->operation != NULL) {
            result = enqueue_rank(i);
        }
    }
    return result;
}

/* Leaves the operations pending. The program starts them when it polls the state of each communicator. */
static nccl_result leave_pending(void)
{
    for (size_t i = 0; i < group.count; i++) {
        struct item *item = &group.items[i];
        if (item->inits) {
            continue;
        }
        struct pending *pending = malloc(sizeof *pending);
        if (pending == NULL) {
            return nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory");
        }
        *pending = (struct pending){.operation = item->operation};
        item->operation = NULL;
        struct pending **last = &item->communicator->pending;
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = pending;
        item->communicator->polls = POLLS;
    }
    return NCCL_RESULT_IN_PROGRESS;
}

static nccl_result run(void)
{
    nccl_result result = group.failure;
    for (size_t i = 0; i < group.count && result == NCCL_RESULT_OK; i++) {
        if (group.items[i].communicator->blocking != group.items[0].communicator->blocking) {
            result = nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "blocking and non-blocking ranks in one group");
        }
    }
    for (size_t i = 0; i < group.count && result == NCCL_RESULT_OK; i++) {
        struct item *item = &group.items[i];
        if (!item->inits) {
            item->operation = operation_call(item->communicator, &item->call);
            result =
                item->operation != NULL ? NCCL_RESULT_OK : nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory");
        }
    }
    if (result == NCCL_RESULT_OK && group.count > 0) {
        result = group.items[0].communicator->blocking ? run_blocking() : leave_pending();
    }
    clear();
    return result;
}

static nccl_result add(const struct item *item)
{
    if (group.count == PENDING_MAX) {
        return group_note(nccl_fail(NCCL_RESULT_INVALID_USAGE, "too many calls in a group for the double"));
    }
    if (group.count == group.room) {
        size_t room = group.room == 0 ? 8 : group.room * 2;
        struct item *grown = realloc(group.items, room * sizeof *grown);
        if (grown == NULL) {
            return group_note(nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory"));
        }
        group.items = grown;
        group.room = room;
    }
    group.items[group.count++] = *item;
    item->communicator->references++;
    return depth > 0 ? NCCL_RESULT_OK : run();
}

nccl_result group_add_init(struct communicator *communicator)
{
    return add(&(struct item){.communicator = communicator, .inits = true});
}

nccl_result group_add_call(struct communicator *communicator, const struct call *call)
{
    return add(&(struct item){.communicator = communicator, .call = *call});
}

nccl_result group_add_abort(struct communicator *communicator)
{
    struct aborted *aborted = depth > 0 ? malloc(sizeof *aborted) : NULL;
    if (aborted == NULL) {
        return communicator_end_aborted(communicator);
    }
    *aborted = (struct aborted){.next = all_aborted, .communicator = communicator};
    all_aborted = aborted;
    return NCCL_RESULT_OK;
}

static nccl_result end_aborted(void)
{
    nccl_result result = NCCL_RESULT_OK;
    while (all_aborted != NULL) {
        struct aborted *first = all_aborted;
        all_aborted = first->next;
        nccl_result ended = communicator_end_aborted(first->communicator);
        result = result == NCCL_RESULT_OK ? ended : result;
        free(first);
    }
    return result;
}

nccl_result ncclGroupStart(void)
{
    nccl_result result = nccl_enter(__func__);
    depth += result == NCCL_RESULT_OK;
    return result;
}

nccl_result ncclGroupEnd(void)
{
    nccl_result result = nccl_enter(__func__);
    double_lock();
    if (depth == 0) {
        result = nccl_fail(NCCL_RESULT_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    } else if (--depth == 0) {
        group.failure = result != NCCL_RESULT_OK ? result : group.failure;
        result = run();
        nccl_result ended = end_aborted();
        result = result == NCCL_RESULT_OK ? ended : result;
    }
    double_unlock();
    return result;
}
