#include "tests/cuda_double/nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct clique *cliques; /* cliques that are not complete yet */
static char last_text[TEXT_BYTES];

static void keep_text(char text[TEXT_BYTES])
{
    memcpy(last_text, text, TEXT_BYTES);
}

nccl_result nccl_fail(nccl_result result, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep_text(text);
    return result;
}

nccl_result clique_fail(struct clique *clique, nccl_result result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(clique->text, sizeof clique->text, format, arguments);
    va_end(arguments);
    keep_text(clique->text);
    if (clique->verdict == NCCL_RESULT_IN_PROGRESS) {
        clique->verdict = result;
    }
    for (int i = 0; i < clique->size; i++) {
        if (clique->ranks[i] != NULL && clique->ranks[i]->failure == NCCL_RESULT_OK) {
            clique->ranks[i]->failure = result;
        }
    }
    double_progress();
    return result;
}

uint64_t hang_deadline(uint64_t first_ns)
{
    return first_ns + (uint64_t)settings()->hang_ms * 1000000;
}

nccl_result nccl_enter(const char *symbol)
{
    int injected = NCCL_RESULT_SYSTEM_ERROR;
    if (settings()->nccl_off_main && syscall(SYS_gettid) == getpid()) {
        (void)fprintf(stderr, "cuda_double: %s on the main thread, which must not block\n", symbol);
        abort();
    }
    if (!fail_now(symbol, &injected)) {
        return NCCL_RESULT_OK;
    }
    while (injected == HANGS) {
        (void)pause();
    }
    return injected;
}

void clique_unref(struct clique *clique)
{
    if (--clique->references > 0) {
        return;
    }
    for (struct clique **link = &cliques; *link != NULL; link = &(*link)->next) {
        if (*link == clique) {
            *link = clique->next;
            break;
        }
    }
    free(clique);
}

/* A rank leaves its clique. When the last rank leaves, this ends the operations that not all ranks have
 * called. Otherwise they would stay for ever, because operations and their clique hold references to each
 * other. */
static void clique_leave(struct communicator *communicator)
{
    struct clique *clique = communicator->clique;
    clique->ranks[communicator->rank] = NULL;
    for (int i = 0; i < clique->size; i++) {
        if (clique->ranks[i] != NULL) {
            clique_unref(clique);
            return;
        }
    }
    while (clique->operations != NULL) {
        struct operation *operation = clique->operations;
        clique->operations = operation->next;
        operation_unref(operation);
    }
    clique_unref(clique);
}

void communicator_unref(struct communicator *communicator)
{
    if (--communicator->references > 0) {
        return;
    }
    registrations_end(communicator);
    if (communicator->clique != NULL) {
        clique_leave(communicator);
    }
    free(communicator);
}

static struct clique *clique_find(int size, const struct nccl_id *id)
{
    for (struct clique *one = cliques; one != NULL; one = one->next) {
        if (memcmp(&one->id, id, sizeof *id) == 0) {
            return one;
        }
    }
    struct clique *clique = calloc(1, sizeof *clique + (size_t)size * sizeof(struct communicator *));
    if (clique != NULL) {
        clique->id = *id;
        clique->size = size;
        clique->first_ns = now_ns();
        clique->verdict = NCCL_RESULT_IN_PROGRESS;
        clique->next = cliques;
        cliques = clique;
    }
    return clique;
}

/* NCCL compares the devices only when all ranks are there. */
static void clique_complete(struct clique *clique)
{
    struct clique **link = &cliques;
    while (*link != clique) {
        link = &(*link)->next;
    }
    *link = clique->next;
    for (int i = 0; i < clique->size; i++) {
        for (int k = 0; k < i; k++) {
            if (clique->ranks[i]->context == clique->ranks[k]->context) {
                (void)clique_fail(clique, NCCL_RESULT_INVALID_USAGE,
                                  "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", i, k,
                                  (unsigned)(0x10 + clique->ranks[i]->context->physical) << 12);
                return;
            }
        }
    }
    clique->verdict = NCCL_RESULT_OK;
    double_progress();
}

nccl_result clique_join(struct communicator *communicator, int size, const struct nccl_id *id)
{
    struct clique *clique = clique_find(size, id);
    if (clique == NULL) {
        return nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory");
    }
    if (clique->size != size || clique->ranks[communicator->rank] != NULL) {
        return nccl_fail(NCCL_RESULT_INTERNAL_ERROR,
                         "rank %d of %d ranks, and another is of %d or the same rank", communicator->rank,
                         size, clique->size);
    }
    clique->references++;
    communicator->clique = clique;
    clique->ranks[communicator->rank] = communicator;
    clique->devices |= UINT32_C(1) << communicator->context->ordinal;
    if (++clique->joined == size) {
        clique_complete(clique);
    }
    return NCCL_RESULT_OK;
}

/* ---- what is exported */

int nccl_version_now(void)
{
    const char *text = getenv("CUDA_DOUBLE_NCCL_VERSION"); /* also asked before cuInit */
    return text != NULL && text[0] != '\0' ? atoi(text) : NCCL_VERSION_DEFAULT;
}

nccl_result ncclGetVersion(int *version)
{
    *version = nccl_version_now();
    return NCCL_RESULT_OK;
}

const char *ncclGetErrorString(nccl_result result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && (size_t)result < sizeof texts / sizeof texts[0] ? texts[result]
                                                                          : "unknown result code";
}

const char *ncclGetLastError(nccl_comm unused)
{
    static __thread char text[TEXT_BYTES];
    (void)unused; /* real NCCL does not use it either */
    double_lock();
    memcpy(text, last_text, sizeof text);
    double_unlock();
    return text;
}

nccl_result ncclGetUniqueId(struct nccl_id *id)
{
    nccl_result result = nccl_enter(__func__);
    if (result == NCCL_RESULT_OK && getrandom(id, sizeof *id, 0) != sizeof *id) {
        result = NCCL_RESULT_SYSTEM_ERROR;
    }
    return result;
}

static bool config_is_sound(const struct nccl_config *config)
{
    return config->size >= sizeof *config && config->magic == NCCL_CONFIG_MAGIC && config->version > 0 &&
           (config->blocking == 0 || config->blocking == 1 ||
            config->blocking == NCCL_CONFIG_UNDEFINED_INT) &&
           (config->max_ctas == NCCL_CONFIG_UNDEFINED_INT ||
            (config->max_ctas > 0 && (config->min_ctas == NCCL_CONFIG_UNDEFINED_INT ||
                                      (config->min_ctas > 0 && config->min_ctas <= config->max_ctas))));
}

static nccl_result init(nccl_comm *handle, int size, const struct nccl_id *id, int rank, bool blocking)
{
    cuda_context context = context_now();
    if (context == NULL || !context->active || context->failure != CUDA_RESULT_OK) {
        return nccl_fail(NCCL_RESULT_UNHANDLED_CUDA_ERROR, "no sound context is current");
    }
    struct communicator *communicator = calloc(1, sizeof *communicator);
    if (communicator == NULL) {
        return nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory");
    }
    *communicator = (struct communicator){.context = context,
                                          .rank = rank,
                                          .references = 1,
                                          .blocking = blocking,
                                          .forming = true,
                                          .polls = POLLS};
    nccl_result result = clique_join(communicator, size, id);
    if (result != NCCL_RESULT_OK) {
        communicator_unref(communicator);
        return result;
    }
    communicator->handle = (nccl_comm)object_add(OBJECT_COMMUNICATOR, communicator);
    *handle = communicator->handle;
    result = group_add_init(communicator);
    if (result != NCCL_RESULT_OK && result != NCCL_RESULT_IN_PROGRESS) {
        (void)object_remove(OBJECT_COMMUNICATOR, (uintptr_t)communicator->handle);
        communicator_unref(communicator);
        *handle = NULL;
    }
    return result;
}

nccl_result ncclCommInitRankConfig(nccl_comm *comm, int rank_count, struct nccl_id id, int rank,
                                   struct nccl_config *config)
{
    nccl_result result = nccl_enter(__func__);
    *comm = NULL;
    double_lock();
    if (result == NCCL_RESULT_OK && (rank_count < 1 || rank_count > RANKS_MAX || rank < 0 ||
                                     rank >= rank_count || (config != NULL && !config_is_sound(config)))) {
        result =
            nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "rank %d of %d, or the configuration", rank, rank_count);
    }
    if (result == NCCL_RESULT_OK) {
        result = init(comm, rank_count, &id, rank, config == NULL || config->blocking != 0);
    } else {
        result = group_note(result);
    }
    double_unlock();
    return result;
}

nccl_result communicator_check(const struct communicator *communicator)
{
    if (communicator == NULL) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "no such communicator");
    }
    if (communicator->failure != NCCL_RESULT_OK) {
        return communicator->failure;
    }
    if (communicator->finalized) {
        return nccl_fail(NCCL_RESULT_INVALID_USAGE, "rank %d has been finalized", communicator->rank);
    }
    if (communicator->forming || communicator->pending != NULL) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "rank %d is used before its last call is over",
                         communicator->rank);
    }
    return NCCL_RESULT_OK;
}

static nccl_result state_forming(struct communicator *communicator)
{
    struct clique *clique = communicator->clique;
    if (clique->verdict != NCCL_RESULT_IN_PROGRESS) {
        return clique->verdict;
    }
    return now_ns() < hang_deadline(clique->first_ns)
               ? NCCL_RESULT_IN_PROGRESS
               : clique_fail(clique, NCCL_RESULT_SYSTEM_ERROR, "%d of %d ranks have come; NCCL would hang",
                             clique->joined, clique->size);
}

static nccl_result state_now(struct communicator *communicator)
{
    nccl_result state = NCCL_RESULT_OK;
    if (communicator->failure != NCCL_RESULT_OK) {
        return communicator->failure;
    }
    if (communicator->forming) {
        state = state_forming(communicator);
    }
    for (struct pending *one = communicator->pending; one != NULL && state == NCCL_RESULT_OK;
         one = one->next) {
        state = operation_state(one->operation);
    }
    if (state == NCCL_RESULT_OK && communicator->finalizing && communicator->outstanding > 0) {
        state = NCCL_RESULT_IN_PROGRESS;
    }
    return state == NCCL_RESULT_OK && !communicator->blocking && communicator->polls-- > 0
               ? NCCL_RESULT_IN_PROGRESS
               : state;
}

/* The rank's pending operations enter its stream, and its windows are registered. */
static nccl_result settle(struct communicator *communicator)
{
    struct operation *operations[PENDING_MAX];
    size_t count = 0;
    nccl_result result = NCCL_RESULT_OK;
    communicator->forming = false;
    communicator->finalizing = false;
    communicator->polls = 0;
    while (communicator->pending != NULL) {
        struct pending *first = communicator->pending;
        communicator->pending = first->next;
        if (operation_is_window(first->operation)) {
            nccl_result formed = window_form(communicator, first->operation);
            result = result == NCCL_RESULT_OK ? formed : result;
        } else {
            operations[count++] = first->operation;
        }
        free(first);
    }
    if (count > 0) {
        nccl_result entered = operations_enqueue(operations, count, communicator);
        result = result == NCCL_RESULT_OK ? entered : result;
    }
    if (result != NCCL_RESULT_OK) {
        communicator->failure = result;
    }
    return result;
}

nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *state)
{
    nccl_result result = nccl_enter(__func__);
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    double_lock();
    struct communicator *communicator = object_get(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    if (communicator == NULL) {
        result = nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "no such communicator");
    } else {
        *state = state_now(communicator);
        if (*state == NCCL_RESULT_OK) {
            *state = settle(communicator);
        }
    }
    double_unlock();
    return result;
}

/* Waits until all operations of the communicator have left its stream. */
static nccl_result await_outstanding(struct communicator *communicator)
{
    uint64_t deadline = hang_deadline(now_ns());
    communicator->references++;
    while (communicator->outstanding > 0 && !communicator->aborted && double_wait(deadline)) {
    }
    bool over = communicator->outstanding == 0 || communicator->aborted;
    int rank = communicator->rank;
    communicator_unref(communicator);
    return over ? NCCL_RESULT_OK
                : nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "rank %d: its operations do not end; NCCL would hang",
                            rank);
}

nccl_result ncclCommFinalize(nccl_comm comm)
{
    nccl_result result = nccl_enter(__func__);
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    double_lock();
    struct communicator *communicator = object_get(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    result = communicator_check(communicator);
    if (result == NCCL_RESULT_OK) {
        communicator->finalized = true;
        communicator->finalizing = !communicator->blocking;
        communicator->polls = POLLS;
        result = communicator->blocking ? await_outstanding(communicator) : NCCL_RESULT_IN_PROGRESS;
    }
    double_unlock();
    return result;
}

static void drop_pending(struct communicator *communicator)
{
    while (communicator->pending != NULL) {
        struct pending *first = communicator->pending;
        communicator->pending = first->next;
        operation_unref(first->operation);
        free(first);
    }
}

nccl_result ncclCommDestroy(nccl_comm comm)
{
    nccl_result result = nccl_enter(__func__);
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    double_lock();
    struct communicator *communicator = object_get(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    if (communicator == NULL) {
        result = nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "no such communicator");
    } else if (communicator->failure == NCCL_RESULT_OK &&
               (communicator->forming || communicator->pending != NULL || communicator->finalizing)) {
        result = nccl_fail(NCCL_RESULT_INVALID_USAGE, "rank %d is destroyed before its last call is over",
                           communicator->rank);
    } else {
        result = await_outstanding(communicator);
    }
    if (result == NCCL_RESULT_OK && object_remove(OBJECT_COMMUNICATOR, (uintptr_t)comm) != NULL) {
        drop_pending(communicator);
        registrations_end(communicator);
        communicator_unref(communicator);
    }
    double_unlock();
    return result;
}

/* Waits until all ranks' work has left the streams. */
static nccl_result await_clique(struct clique *clique)
{
    uint64_t deadline = hang_deadline(now_ns());
    while (clique->outstanding > 0 && double_wait(deadline)) {
    }
    return clique->outstanding == 0
               ? NCCL_RESULT_OK
               : nccl_fail(NCCL_RESULT_SYSTEM_ERROR,
                           "a stream does not come to the work that is aborted; NCCL would hang");
}

/* NCCL frees its memory with cudaFree. That waits for all work of the device, also for waits in streams of
 * others. */
static void await_devices(const struct clique *clique)
{
    for (int ordinal = 0; ordinal < DEVICES_MAX; ordinal++) {
        if ((clique->devices >> ordinal & 1) != 0 && contexts[ordinal].active) {
            (void)context_await(&contexts[ordinal]);
        }
    }
}

static bool clique_is_aborted(const struct clique *clique)
{
    for (int i = 0; i < clique->size; i++) {
        if (clique->ranks[i] != NULL && !clique->ranks[i]->aborted) {
            return false;
        }
    }
    return true;
}

/* The last rank of the process ends the whole clique. */
nccl_result communicator_end_aborted(struct communicator *communicator)
{
    nccl_result result = NCCL_RESULT_OK;
    struct clique *clique = communicator->clique;
    if (clique_is_aborted(clique)) {
        clique->references++;
        result = await_clique(clique);
        await_devices(clique);
        clique_unref(clique);
    }
    registrations_end(communicator);
    communicator_unref(communicator);
    return result;
}

nccl_result ncclCommAbort(nccl_comm comm)
{
    nccl_result result = nccl_enter(__func__);
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    double_lock();
    struct communicator *communicator = object_remove(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    if (communicator == NULL) {
        result = nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "no such communicator");
    } else {
        communicator->aborted = true;
        drop_pending(communicator);
        double_progress();
        result = group_add_abort(communicator);
    }
    double_unlock();
    return result;
}
