#include "tests/system/nccl_program.h"

#include <unistd.h>

/* Going on after a loss, and taking in ranks. Every process has one rank. NCCL's own header may be older than
 * these. */

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *out, ncclConfig_t *config,
                            int flags);
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId *id, int rank, ncclComm_t *out,
                          ncclConfig_t *config);

static void reduce(const struct local *local, ncclResult_t wanted, const char *what)
{
    enter(local);
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           wanted, what);
}

/* The process goes on with another communicator, of so many ranks. */
static void adopt(struct local *local, ncclComm_t next, int ranks)
{
    int number;
    expect(ncclCommDestroy(local->comm), ncclSuccess, "ncclCommDestroy");
    local->comm = next;
    size = ranks;
    expect(ncclCommCount(next, &number), ncclSuccess, "ncclCommCount");
    expect_true(number == ranks, "the size of the next communicator");
    expect(ncclCommUserRank(next, &local->rank), ncclSuccess, "ncclCommUserRank");
    expect_true(local->rank < ranks, "the rank in the next communicator");
    check_all_work();
}

static void check_shrink_arguments(const struct local *local)
{
    ncclComm_t next = NULL;
    int twice[] = {1, 1}, outside = size, own = local->rank;
    expect(ncclCommShrink(NULL, &own, 1, &next, NULL, 0), ncclInvalidArgument, "no communicator");
    expect(ncclCommShrink(local->comm, &own, 1, NULL, NULL, 0), ncclInvalidArgument, "no place");
    expect(ncclCommShrink(local->comm, NULL, 1, &next, NULL, 0), ncclInvalidArgument, "no list");
    expect(ncclCommShrink(local->comm, &outside, 1, &next, NULL, 0), ncclInvalidArgument, "a rank outside");
    expect(ncclCommShrink(local->comm, twice, 2, &next, NULL, 0), ncclInvalidArgument, "a rank twice");
    expect(ncclCommShrink(local->comm, &own, 1, &next, NULL, 0), ncclInvalidArgument, "this rank");
    expect(ncclCommShrink(local->comm, twice, size, &next, NULL, 0), ncclInvalidArgument, "all ranks");
}

/* Rank 1 dies. The others see it, and shrink. Then rank 0 revokes, and all shrink by nobody. */
void case_shrink(void)
{
    struct local *local = &locals[0];
    ncclComm_t next;
    int lost = 1, ranks = size - 1;
    init_all();
    check_all_work();
    check_shrink_arguments(local);
    if (local->rank == lost) {
        say("OK");
        _exit(EXIT_SUCCESS);
    }
    expect(await_error(local->comm), ncclRemoteError, "the error of a loss");
    expect(ncclCommShrink(local->comm, &lost, 1, &next, NULL, 1), ncclSuccess, "ncclCommShrink");
    adopt(local, next, ranks);
    if (local->rank == 0) {
        expect(ncclCommRevoke(local->comm, 1), ncclInvalidArgument, "a flag of ncclCommRevoke");
        expect(ncclCommRevoke(local->comm, 0), ncclSuccess, "ncclCommRevoke");
        expect(ncclCommRevoke(local->comm, 0), ncclInvalidArgument, "ncclCommRevoke again");
        reduce(local, ncclInvalidUsage, "an operation on a revoked communicator");
        expect_text("revoked");
    } else {
        expect(await_error(local->comm), ncclRemoteError, "the error of a revocation");
    }
    expect(ncclCommShrink(local->comm, NULL, 0, &next, NULL, 0), ncclSuccess, "ncclCommShrink by nobody");
    adopt(local, next, ranks);
    destroy_all();
}

static void check_grow_arguments(const struct local *local, const ncclUniqueId *id)
{
    ncclComm_t next = NULL;
    expect(ncclCommGrow(local->comm, size, id, -1, &next, NULL), ncclInvalidArgument, "no more ranks");
    expect(ncclCommGrow(local->comm, size + 1, id, 0, &next, NULL), ncclInvalidArgument,
           "a present rank's number");
    expect(ncclCommGrow(NULL, size + 1, NULL, size, &next, NULL), ncclInvalidArgument, "no id");
    expect(ncclCommGrow(NULL, size + 1, id, size + 1, &next, NULL), ncclInvalidArgument, "a rank outside");
    expect(ncclCommGrow(local->comm, size + 1, id, -1, NULL, NULL), ncclInvalidArgument, "no place");
}

/* All but the last process make a communicator. Rank 0 has an id for one more rank. */
void case_grow(void)
{
    struct local *local = &locals[0];
    ncclComm_t next;
    int all = size, newcomer = size - 1;
    if (local->rank == newcomer) {
        next_id(); /* of the first communicator, in which it has no part */
        next_id();
        enter(local);
        expect(ncclCommGrow(NULL, all, &program_id, newcomer, &local->comm, NULL), ncclSuccess,
               "ncclCommGrow");
        check_all_work();
        destroy_all();
        return;
    }
    next_id();
    size = newcomer;
    init_all();
    check_all_work();
    check_grow_arguments(local, &program_id);
    if (local->rank == 0) {
        ncclUniqueId id;
        expect(ncclCommGetUniqueId(local->comm, &id), ncclSuccess, "ncclCommGetUniqueId");
        give_id(&id);
        expect(ncclCommGrow(local->comm, all, &id, -1, &next, NULL), ncclSuccess, "ncclCommGrow");
    } else {
        expect(ncclCommGrow(local->comm, all, NULL, -1, &next, NULL), ncclSuccess, "ncclCommGrow");
    }
    adopt(local, next, all);
    destroy_all();
}
