#include "tests/system/nccl_program.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How communicators begin and end: without waiting, by an abort, by the loss of a rank or of commd. */

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* An operation that the other ranks never join. */
static void hang(const struct local *local, ncclComm_t comm)
{
    enter(local);
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 64, ncclFloat32, ncclSum, comm, STREAM(local)),
           ncclSuccess, "an operation that hangs");
}

/* Makes all calls that are allowed on a communicator that has failed. */
static void check_failed(const struct local *local, ncclResult_t wanted)
{
    int number;
    ncclComm_t part = NULL;
    ncclResult_t state;
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           wanted, "a call on a failed communicator");
    expect(ncclCommSplit(local->comm, 0, 0, &part, NULL), wanted, "a split of a failed communicator");
    expect(ncclCommCount(local->comm, &number), wanted, "ncclCommCount");
    expect(ncclCommFinalize(local->comm), wanted, "ncclCommFinalize");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclSend(AT(local->send), 1, ncclFloat32, 0, local->comm, STREAM(local)), wanted, "ncclSend");
    expect(ncclGroupEnd(), wanted, "a group on a failed communicator");
    expect(ncclCommGetAsyncError(local->comm, &state), ncclSuccess, "ncclCommGetAsyncError");
    expect(state, wanted, "the asynchronous error");
}

static void begin_again(void)
{
    next_id();
    init_all();
    check_all_work();
    destroy_all();
}

/* An operation hangs on two communicators. Rank 0 aborts them one after the other, and the other ranks see
 * it. */
void case_abort(void)
{
    struct local *local = &locals[0];
    ncclComm_t other;
    init_all();
    expect(ncclCommSplit(local->comm, 0, 0, &other, NULL), ncclSuccess, "ncclCommSplit");
    check_all_work();
    if (local->rank == 0) {
        ncclResult_t state = ncclInternalError;
        double began_s = now_s();
        hang(local, local->comm);
        hang(local, other);
        expect(ncclCommGetAsyncError(local->comm, &state), ncclSuccess, "ncclCommGetAsyncError");
        expect(state, ncclSuccess, "the state while an operation is under way");
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
        expect(ncclCommAbort(other), ncclSuccess, "ncclCommAbort");
        wait_stream(local);
        expect_true(now_s() - began_s < 5, "aborts take less than 5 seconds");
    } else {
        expect(await_error(local->comm), ncclRemoteError, "the error of an abort");
        expect_text("ncclCommAbort");
        check_failed(local, ncclRemoteError);
        expect_true(strstr(ncclGetLastError(local->comm), "rank 0") != NULL, "the text names who aborted");
        expect(await_error(other), ncclRemoteError, "the error of an abort");
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
        expect(ncclCommDestroy(other), ncclSuccess, "ncclCommDestroy");
    }
    begin_again();
}

/* The last rank is killed. The others wait for it in an operation. */
void case_survive(void)
{
    int victim = size - 1;
    char name[32];
    init_all();
    check_all_work();
    if (locals[0].rank == victim) {
        say("READY");
        for (;;) {
            (void)pause();
        }
    }
    EACH(local)
    {
        hang(local, local->comm);
    }
    say("READY");
    (void)snprintf(name, sizeof name, "rank %d", victim);
    EACH(local)
    {
        expect(await_error(local->comm), ncclRemoteError, "the error of a lost rank");
        const char *text = ncclGetLastError(local->comm);
        expect_true(strstr(text, name) != NULL || strstr(text, "node b lost") != NULL,
                    "the text names the lost rank, or its node");
        wait_stream(local);
        check_failed(local, ncclRemoteError);
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
    }
    size--;
    begin_again();
}

/* commd is killed and started again. */
void case_restart(void)
{
    void *before = NULL, *after = NULL;
    struct local *local = &locals[0];
    init_all();
    enter(local);
    expect(ncclMemAlloc(&before, 1u << 20), ncclSuccess, "ncclMemAlloc");
    check_all_work();
    if (local->rank == 0) {
        hang(local, local->comm);
    }
    say("READY");
    expect(await_error(local->comm), ncclSystemError, "the error of a lost commd");
    wait_stream(local);
    check_failed(local, ncclSystemError);
    expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
    expect(ncclMemAlloc(&after, 1u << 20), ncclSuccess, "ncclMemAlloc");
    next_id();
    init_all();
    cuda_pointer own = local->receive;
    local->receive = (cuda_pointer)(uintptr_t)after;
    write_gpu(local, local->receive, &size, sizeof size);
    local->receive = own;
    check_all_work();
    destroy_all();
    (void)ncclMemFree(before);
    expect(ncclMemFree(after), ncclSuccess, "ncclMemFree");
}

static void init_without_waiting(struct local *local, int ranks, ncclUniqueId id, int rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    enter(local);
    ncclResult_t result = ncclCommInitRankConfig(&local->comm, ranks, id, rank, &config);
    expect_true(result == ncclInProgress || result == ncclSuccess, "an init that does not wait");
}

/* Checks that calls on a communicator are refused while it is made or split. */
static void check_busy(const struct local *local, ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;
    int number;
    expect(ncclCommGetAsyncError(comm, &state), ncclSuccess, "ncclCommGetAsyncError");
    expect(state, ncclInProgress, "the state");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, comm, STREAM(local)),
           ncclInvalidArgument, "a call while it is in progress");
    expect_text("ncclCommGetAsyncError");
    expect(ncclCommCount(comm, &number), ncclInvalidArgument, "ncclCommCount while it is in progress");
}

/* For processes of one rank. Rank 0 splits before the others do, and sees that in the parent's state. */
void case_non_blocking(void)
{
    struct local *local = &locals[0];
    ncclComm_t parts[2] = {NULL, NULL};
    init_without_waiting(local, size, program_id, local->rank);
    expect(await_state(local->comm), ncclSuccess, "the state");
    check_all_work();
    if (local->rank != 0) {
        await_mark("split");
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclCommSplit(local->comm, 0, -local->rank, &parts[0], NULL), ncclSuccess, "ncclCommSplit");
    expect(ncclCommSplit(local->comm, local->rank % 2, 0, &parts[1], NULL), ncclSuccess, "ncclCommSplit");
    expect(ncclGroupEnd(), ncclInProgress, "ncclGroupEnd");
    expect_true(parts[0] != NULL && parts[1] != NULL, "the handles are there at once");
    if (local->rank == 0) {
        check_busy(local, local->comm);
        check_busy(local, parts[1]);
        mark("split");
    }
    for (int i = 0; i < 2; i++) {
        expect(await_state(parts[i]), ncclSuccess, "the state of a part");
    }
    expect(await_state(local->comm), ncclSuccess, "the state of the parent");
    check_all_work();
    int number = -1;
    expect(ncclCommUserRank(parts[0], &number), ncclSuccess, "ncclCommUserRank");
    expect_true(number == size - 1 - local->rank, "the rank in a part");
    ncclComm_t own = local->comm;
    local->comm = parts[0];
    check_all_work();
    local->comm = own;
    for (int i = 0; i < 2; i++) {
        ncclResult_t result = ncclCommFinalize(parts[i]);
        expect_true(result == ncclInProgress || result == ncclSuccess, "ncclCommFinalize");
        expect(await_state(parts[i]), ncclSuccess, "the state of a finalized communicator");
        expect(ncclCommDestroy(parts[i]), ncclSuccess, "ncclCommDestroy");
    }
    destroy_all();
}

/* The init of several devices in one group does not wait either. */
void case_non_blocking_group(void)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        init_without_waiting(local, size, program_id, local->rank);
    }
    expect(ncclGroupEnd(), ncclInProgress, "ncclGroupEnd");
    EACH(local)
    {
        expect(await_state(local->comm), ncclSuccess, "the state");
    }
    check_all_work();
    destroy_all();
}

/* So many aborts, each later than the one before. */
#define EARLY_ABORTS 200
#define EARLY_STEP_S 2e-6
#define EARLY_PAUSE_US 50

static atomic_bool threads_dawdle;
static _Thread_local bool is_program;

/* Stands in for the C library's. While threads dawdle, all but the program's own pause before each lock. So
 * an abort meets them between any two steps that they take. */
__attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t *lock)
{
    static int (*_Atomic next)(pthread_mutex_t *);
    if (next == NULL) {
        next = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    }
    if (threads_dawdle && !is_program) {
        (void)usleep(EARLY_PAUSE_US);
    }
    return next(lock);
}

static int thread_count(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

/* The thread that made an aborted communicator ends soon. */
static void await_threads(int count)
{
    double began_s = now_s();
    while (thread_count() > count) {
        expect_true(now_s() - began_s < 4, "no thread waits for an aborted communicator");
        (void)usleep(1000);
    }
}

/* Aborts inits that no other rank joins, at all times from the moment the handle exists: before, while and
 * after the thread that makes the communicator begins to wait for the other rank. */
static void abort_inits(struct local *local)
{
    int threads = thread_count();
    ncclUniqueId id;
    is_program = true;
    threads_dawdle = true;
    for (int i = 0; i < EARLY_ABORTS; i++) {
        expect(ncclGetUniqueId(&id), ncclSuccess, "ncclGetUniqueId");
        init_without_waiting(local, size, id, 0);
        double made_s = now_s();
        while (now_s() - made_s < i * EARLY_STEP_S) {
        }
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
    }
    await_threads(threads);
    threads_dawdle = false;
}

/* Rank 0 aborts inits and a split that no other rank joins. */
void case_abandon(void)
{
    struct local *local = &locals[0];
    ncclUniqueId id;
    ncclComm_t part = NULL;
    init_without_waiting(local, size, program_id, local->rank);
    ncclResult_t made = await_state(local->comm);
    if (local->rank == 0) {
        expect(made, ncclSuccess, "the state");
        ncclComm_t own = local->comm;
        double began_s = now_s();
        expect(ncclGetUniqueId(&id), ncclSuccess, "ncclGetUniqueId");
        init_without_waiting(local, size, id, 0);
        check_busy(local, local->comm);
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
        abort_inits(local);
        local->comm = own;
        expect(ncclCommSplit(local->comm, 0, 0, &part, NULL), ncclInProgress, "ncclCommSplit");
        check_busy(local, local->comm);
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
        expect(await_state(part), ncclRemoteError, "the state of a part whose parent is aborted");
        expect(ncclCommAbort(part), ncclSuccess, "ncclCommAbort");
        expect_true(now_s() - began_s < 5, "aborts take less than 5 seconds");
    } else { /* it may learn of both at once */
        ncclResult_t end = made == ncclSuccess ? await_error(local->comm) : made;
        expect(end, ncclRemoteError, "the error of an abort");
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
    }
    begin_again();
}

/* One process. The devices in turn, and then backwards. */
void case_init_all(void)
{
    ncclComm_t comms[LOCAL_MAX];
    int devices[LOCAL_MAX];
    for (int turn = 0; turn < 2; turn++) {
        EACH(local)
        {
            devices[local - locals] = local->device;
        }
        expect(ncclCommInitAll(comms, local_count, turn == 0 ? NULL : devices), ncclSuccess,
               "ncclCommInitAll");
        EACH(local)
        {
            int device = -1, rank = -1, index = (int)(local - locals);
            int wanted = turn == 0 ? index : local->device;
            expect(ncclCommCuDevice(comms[index], &device), ncclSuccess, "ncclCommCuDevice");
            expect(ncclCommUserRank(comms[index], &rank), ncclSuccess, "ncclCommUserRank");
            expect_true(device == wanted && rank == index, "device and rank");
            for (struct local *owner = locals; owner < locals + local_count; owner++) {
                if (owner->device == device) {
                    owner->comm = comms[index];
                }
            }
        }
        check_all_work();
        destroy_all();
    }
}
