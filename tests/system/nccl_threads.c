#include "tests/system/nccl_program.h"

#include <pthread.h>

/* One thread for each device of a process, without groups. Another thread asks for errors meanwhile. */

#define ROUNDS 200

static volatile bool ended;

static void *run(void *argument)
{
    struct local *local = argument;
    enter(local);
    expect(ncclCommInitRank(&local->comm, size, program_id, local->rank), ncclSuccess, "ncclCommInitRank");
    for (int round = 0; round < ROUNDS; round++) {
        float value = (float)(local->rank + round), got = -1;
        int sum = size * round + size * (size - 1) / 2;
        write_gpu(local, local->send, &value, sizeof value);
        expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, local->comm,
                             STREAM(local)),
               ncclSuccess, "ncclAllReduce");
        read_gpu(local, local->receive, &got, sizeof got);
        expect_true(got == (float)sum, "a sum");
    }
    return NULL;
}

static void *watch(void *argument)
{
    (void)argument;
    while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
        EACH(local)
        {
            ncclComm_t comm = __atomic_load_n(&local->comm, __ATOMIC_ACQUIRE);
            ncclResult_t state = ncclSuccess;
            if (comm != NULL) {
                expect(ncclCommGetAsyncError(comm, &state), ncclSuccess, "ncclCommGetAsyncError");
                expect_true(state == ncclSuccess || state == ncclInProgress, "the state");
            }
        }
    }
    return NULL;
}

void case_threads(void)
{
    pthread_t threads[LOCAL_MAX], watcher;
    expect_true(pthread_create(&watcher, NULL, watch, NULL) == 0, "a thread");
    for (int i = 0; i < local_count; i++) {
        expect_true(pthread_create(&threads[i], NULL, run, &locals[i]) == 0, "a thread");
    }
    for (int i = 0; i < local_count; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    __atomic_store_n(&ended, true, __ATOMIC_RELEASE);
    (void)pthread_join(watcher, NULL);
    destroy_all();
}
