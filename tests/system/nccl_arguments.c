#include "tests/system/nccl_program.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

/* Arguments that the library refuses at once. The communicator works afterwards. */

static void refuse_operation(const char *what, const void *send, void *receive, size_t count, int type,
                             int op)
{
    expect(ncclAllReduce(send, receive, count, (ncclDataType_t)type, (ncclRedOp_t)op, locals[0].comm,
                         STREAM(&locals[0])),
           ncclInvalidArgument, what);
    expect_text("ncclAllReduce");
}

static void refuse_operations(void)
{
    struct local *local = &locals[0];
    static float plain[4];
    void *send = AT(local->send), *receive = AT(local->receive);
    refuse_operation("host memory", plain, receive, 4, ncclFloat32, ncclSum);
    refuse_operation("host memory", send, plain, 4, ncclFloat32, ncclSum);
    refuse_operation("no buffer", NULL, receive, 4, ncclFloat32, ncclSum);
    refuse_operation("no buffer", send, NULL, 4, ncclFloat32, ncclSum);
    refuse_operation("type -1", send, receive, 4, -1, ncclSum);
    refuse_operation("type 12", send, receive, 4, ncclNumTypes, ncclSum);
    refuse_operation("operator -1", send, receive, 4, ncclFloat32, -1);
    refuse_operation("operator 5", send, receive, 4, ncclFloat32, 5);
    refuse_operation("operator INT_MAX", send, receive, 4, ncclFloat32, INT_MAX);
    refuse_operation("a huge count", send, receive, SIZE_MAX / 4, ncclFloat32, ncclSum);
    expect(ncclAllReduce(send, receive, 4, ncclFloat32, ncclSum, NULL, STREAM(local)), ncclInvalidArgument,
           "no communicator");
    for (int root = -1; root <= size; root += size + 1) {
        expect(ncclReduce(send, receive, 4, ncclFloat32, ncclSum, root, local->comm, STREAM(local)),
               ncclInvalidArgument, "a root that is no rank");
        expect(ncclSend(send, 4, ncclFloat32, root, local->comm, STREAM(local)), ncclInvalidArgument,
               "a peer that is no rank");
    }
    expect(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, local->comm, STREAM(local)), ncclSuccess,
           "no elements");
    expect(ncclRecv(NULL, 0, ncclFloat32, 0, local->comm, STREAM(local)), ncclSuccess, "no elements");
}

/* Memory from an allocator of the driver's own, which the library refuses. */
static void refuse_memory(const char *symbol, const char *word)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    void *address = library != NULL ? dlsym(library, symbol) : NULL;
    struct local *local = &locals[0];
    cuda_pointer memory = 0;
    cuda_result (*managed)(cuda_pointer * memory, size_t bytes, unsigned flags);
    cuda_result (*pooled)(cuda_pointer * memory, size_t bytes, cuda_stream stream);
    expect_true(address != NULL, symbol);
    memcpy(&managed, &address, sizeof address);
    memcpy(&pooled, &address, sizeof address);
    enter(local);
    cuda(strcmp(symbol, "cuMemAllocManaged") == 0 ? managed(&memory, 4096, 1)
                                                  : pooled(&memory, 4096, local->stream),
         symbol);
    expect(ncclAllReduce(AT(memory), AT(memory), 4, ncclFloat32, ncclSum, local->comm, STREAM(local)),
           ncclInvalidUsage, symbol);
    expect_text(word);
    expect_text("cudaMalloc"); /* the way out */
}

static void refuse_communicators(void)
{
    ncclComm_t made = NULL;
    ncclUniqueId foreign = {{0}};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int devices[] = {99};
    expect(ncclCommInitRank(&made, 2, program_id, 2), ncclInvalidArgument, "a rank beyond the size");
    expect(ncclCommInitRank(&made, 2, program_id, -1), ncclInvalidArgument, "a negative rank");
    expect(ncclCommInitRank(&made, 0, program_id, 0), ncclInvalidArgument, "no ranks");
    expect(ncclCommInitRank(NULL, 1, program_id, 0), ncclInvalidArgument, "no place for the handle");
    expect_text("null pointer");
    expect(ncclCommInitRank(&made, 1, foreign, 0), ncclInvalidArgument, "an id of another library");
    expect_text("do all ranks load");
    expect(ncclCommInitRankScalable(&made, 1, 0, 0, &program_id, NULL), ncclInvalidArgument, "no ids");
    expect(ncclCommInitRankScalable(&made, 1, 0, 2, &program_id, NULL), ncclInvalidArgument, "too many ids");
    expect(ncclCommInitAll(&made, 1, devices), ncclInvalidArgument, "no such GPU");
    devices[0] = -1;
    expect(ncclCommInitAll(&made, 1, devices), ncclInvalidArgument, "no such GPU");
    expect(ncclCommInitAll(&made, 99, NULL), ncclInvalidArgument, "more GPUs than there are");
    expect(ncclCommInitAll(&made, 0, NULL), ncclInvalidArgument, "no GPUs");
    config.magic ^= 1;
    expect(ncclCommInitRankConfig(&made, 1, program_id, 0, &config), ncclInvalidArgument, "a bad magic");
    expect_text("NCCL_CONFIG_INITIALIZER");
    config.magic ^= 1;
    config.blocking = 7;
    expect(ncclCommInitRankConfig(&made, 1, program_id, 0, &config), ncclInvalidArgument, "blocking = 7");
    expect(ncclCommSplit(locals[0].comm, -2, 0, &made, NULL), ncclInvalidArgument, "a color of -2");
    expect(ncclCommSplit(locals[0].comm, 0, 0, NULL, NULL), ncclInvalidArgument, "no place for the handle");
    expect(ncclCommSplit(locals[0].comm, 0, 0, &made, &config), ncclInvalidArgument, "blocking = 7");
    expect_true(made == NULL, "a refused call gives no handle");
}

static void refuse_rest(void)
{
    ncclResult_t state;
    int number;
    ncclComm_t comm = locals[0].comm;
    expect(ncclGetUniqueId(NULL), ncclInvalidArgument, "ncclGetUniqueId");
    expect(ncclGetVersion(NULL), ncclInvalidArgument, "ncclGetVersion");
    expect(ncclCommGetAsyncError(NULL, &state), ncclInvalidArgument, "ncclCommGetAsyncError");
    expect(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument, "ncclCommGetAsyncError");
    expect(ncclCommCount(NULL, &number), ncclInvalidArgument, "ncclCommCount");
    expect(ncclCommCount(comm, NULL), ncclInvalidArgument, "ncclCommCount");
    expect(ncclCommUserRank(NULL, &number), ncclInvalidArgument, "ncclCommUserRank");
    expect(ncclCommCuDevice(comm, NULL), ncclInvalidArgument, "ncclCommCuDevice");
    expect(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, "ncclRedOpDestroy");
    expect(ncclGroupEnd(), ncclInvalidUsage, "the end of no group");
    expect_text("no group");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclGroupSimulateEnd(NULL), ncclInvalidUsage, "ncclGroupSimulateEnd");
    expect_text("simulate");
}

/* If a call inside a group fails, the group fails with the same error, and none of its calls runs. */
static void refuse_groups(void)
{
    struct local *local = &locals[0];
    ncclComm_t made = NULL;
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           ncclSuccess, "collected");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclSend(AT(local->send), 4, ncclFloat32, -1, local->comm, STREAM(local)), ncclInvalidArgument,
           "a negative rank");
    expect(ncclGroupEnd(), ncclSuccess, "the end of an inner group");
    expect(ncclGroupEnd(), ncclInvalidArgument, "the end of a group with an error");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclCommSplit(local->comm, 0, 0, &made, NULL), ncclSuccess, "collected");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           ncclSuccess, "collected");
    expect(ncclGroupEnd(), ncclInvalidUsage, "a group that makes communicators and has operations");
    expect_true(made == NULL, "a group that failed gives no handle");
}

/* A program destroys a communicator inside a group. This error must not end the process: the group's calls
 * are dropped. */
static void destroy_within_group(void)
{
    struct local *local = &locals[0];
    ncclComm_t parts[LOCAL_MAX];
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(each)
    {
        expect(ncclCommSplit(each->comm, 0, 0, &parts[each - locals], NULL), ncclSuccess, "ncclCommSplit");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(
        ncclAllReduce(AT(local->send), AT(local->receive), 4, ncclFloat32, ncclSum, parts[0], STREAM(local)),
        ncclSuccess, "collected");
    EACH(each)
    {
        expect(ncclCommDestroy(parts[each - locals]), ncclSuccess, "ncclCommDestroy");
    }
    expect(ncclGroupEnd(), ncclSuccess, "a group whose calls are gone");
}

void case_arguments(void)
{
    init_all();
    refuse_operations();
    refuse_memory("cuMemAllocManaged", "managed");
    refuse_memory("cuMemAllocAsync", "pool");
    refuse_communicators();
    refuse_rest();
    refuse_groups();
    destroy_within_group();
    check_all_work();
    destroy_all();
}
