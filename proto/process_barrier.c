#include "proto/process_barrier.h"

#include <linux/membarrier.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 1000000

static bool call(int command)
{
    return syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool process_barrier_join(void)
{
    return call(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

bool process_barrier_works(void)
{
    return call(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void process_barrier(void)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!call(MEMBARRIER_CMD_GLOBAL_EXPEDITED)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    atomic_thread_fence(memory_order_seq_cst);
}
