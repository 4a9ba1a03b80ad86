#include "tests/system/nccl_program.h"

#include <dlfcn.h>
#include <string.h>

/* Devices and streams that do not fit the communicator. NCCL fails late, or hangs; here the call is refused,
 * and the communicator works afterwards. */

#define COUNT 257

static ncclResult_t all_reduce(const struct local *local, cuda_pointer send, cuda_pointer receive,
                               cudaStream_t stream)
{
    return ncclAllReduce(AT(send), AT(receive), COUNT, ncclInt32, ncclSum, local->comm, stream);
}

/* All calls that take a stream and buffers, on this communicator. */
static void refuse_each(const struct local *local, cuda_pointer send, cuda_pointer receive,
                        cudaStream_t stream, const char *word)
{
    ncclComm_t comm = local->comm;
    void *from = AT(send), *to = AT(receive);
    int own = local->rank;
    const ncclResult_t wanted = ncclInvalidArgument;
    expect(all_reduce(local, send, receive, stream), wanted, "ncclAllReduce");
    expect_text(word);
    expect(ncclReduce(from, to, 4, ncclInt32, ncclSum, own, comm, stream), wanted, "ncclReduce");
    expect_text(word);
    expect(ncclBroadcast(from, to, 4, ncclInt32, own, comm, stream), wanted, "ncclBroadcast");
    expect_text(word);
    expect(ncclAllGather(from, to, 4, ncclInt32, comm, stream), wanted, "ncclAllGather");
    expect_text(word);
    expect(ncclReduceScatter(from, to, 4, ncclInt32, ncclSum, comm, stream), wanted, "ncclReduceScatter");
    expect_text(word);
    expect(ncclAlltoAll(from, to, 4, ncclInt32, comm, stream), wanted, "ncclAlltoAll");
    expect_text(word);
    expect(ncclGather(from, to, 4, ncclInt32, own, comm, stream), wanted, "ncclGather");
    expect_text(word);
    expect(ncclScatter(from, to, 4, ncclInt32, own, comm, stream), wanted, "ncclScatter");
    expect_text(word);
    if (receive == local->receive) {
        expect(ncclBcast(from, 4, ncclInt32, own, comm, stream), wanted, "ncclBcast");
        expect_text(word);
        expect(ncclSend(from, 4, ncclInt32, own, comm, stream), wanted, "ncclSend");
        expect_text(word);
    }
    if (send == local->send) {
        expect(ncclRecv(to, 4, ncclInt32, own, comm, stream), wanted, "ncclRecv");
        expect_text(word);
    }
}

/* A failed call in a group fails the group, and no call of it runs. */
static void refuse_group(cudaStream_t stream_of_last)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        bool last = local == &locals[local_count - 1];
        expect(all_reduce(local, local->send, local->receive, last ? stream_of_last : STREAM(local)),
               last ? ncclInvalidArgument : ncclSuccess, "ncclAllReduce");
    }
    expect(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd");
    EACH(local)
    {
        wait_stream(local); /* nothing waits there */
    }
}

/* For a process of at least two devices. */
void case_mixes(void)
{
    struct local *one = &locals[0], *other = &locals[1];
    void *handle = one;
    init_all();
    enter(other); /* the current device does not matter */
    refuse_each(one, one->send, one->receive, STREAM(other), "the stream is of another GPU");
    refuse_each(one, other->send, one->receive, STREAM(one), "the send buffer");
    refuse_each(one, one->send, other->receive, STREAM(one), "the receive buffer");
    refuse_each(other, one->send, one->receive, STREAM(one), "is on CUDA device");
    refuse_group(STREAM(one));
    expect(ncclCommRegister(one->comm, AT(other->send), 4096, &handle), ncclInvalidArgument,
           "ncclCommRegister");
    expect_text("is on CUDA device");
    expect_true(handle == NULL, "a refused call gives no handle");
    check_all_work();
    EACH(local) /* the null stream is of the communicator's GPU, whatever device is current */
    {
        enter(&locals[(local - locals + 1) % local_count]);
        expect(all_reduce(local, local->send, local->receive, NULL), ncclSuccess, "ncclAllReduce");
    }
    EACH(local)
    {
        enter(local);
        cuda(driver->stream_synchronize(NULL), "stream_synchronize");
    }
    check_all_work();
    destroy_all();
}

/* Two ranks on one GPU, which NCCL refuses. One stream for both would wait for itself. */
void case_one_device(void)
{
    struct local *one = &locals[0], *other = &locals[1];
    init_all();
    check_all_work();
    expect(all_reduce(one, one->send, one->receive, STREAM(one)), ncclSuccess, "ncclAllReduce");
    expect(all_reduce(other, other->send, other->receive, STREAM(one)), ncclInvalidArgument, "one stream");
    expect_text("the stream waits for an operation of rank 0");
    expect(all_reduce(other, other->send, other->receive, STREAM(other)), ncclSuccess, "a stream of its own");
    wait_stream(one);
    wait_stream(other);
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(all_reduce(one, one->send, one->receive, STREAM(one)), ncclSuccess, "ncclAllReduce");
    expect(all_reduce(other, other->send, other->receive, STREAM(one)), ncclSuccess, "one stream in a group");
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    wait_stream(one);
    expect(all_reduce(one, one->send, one->receive, NULL), ncclSuccess, "ncclAllReduce");
    expect(all_reduce(other, other->send, other->receive, NULL), ncclInvalidArgument, "the null stream");
    expect(all_reduce(other, other->send, other->receive, STREAM(other)), ncclSuccess, "a stream of its own");
    enter(one);
    cuda(driver->stream_synchronize(NULL), "stream_synchronize");
    wait_stream(other);
    check_all_work();
    destroy_all();
}

/* One stream of a group is captured, the other is not. Nothing of the group runs, and the capture stays
 * valid. */
void case_half_captured(void)
{
    struct local *one = &locals[0], *other = &locals[1];
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    cuda_result (*begin)(cuda_stream stream, int mode);
    cuda_result (*end)(cuda_stream stream, cuda_graph * graph);
    cuda_graph graph = NULL;
    void *addresses[] = {dlsym(library, "cuStreamBeginCapture_v2"), dlsym(library, "cuStreamEndCapture")};
    expect_true(addresses[0] != NULL && addresses[1] != NULL, "the calls of graphs");
    memcpy(&begin, &addresses[0], sizeof begin);
    memcpy(&end, &addresses[1], sizeof end);
    init_all();
    check_all_work();
    enter(other);
    cuda(begin(other->stream, CUDA_CAPTURE_MODE_RELAXED), "begin");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(all_reduce(one, one->send, one->receive, STREAM(one)), ncclSuccess, "collected");
    expect(all_reduce(other, other->send, other->receive, STREAM(other)), ncclSuccess, "collected");
    expect(ncclGroupEnd(), ncclInvalidUsage, "half a group is captured");
    expect_text("either all ranks of a communicator in a group are captured, or none is: rank 0 is not");
    enter(other);
    cuda(end(other->stream, &graph), "end");
    expect_true(graph != NULL, "the capture is valid");
    wait_stream(one);
    check_all_work();
    destroy_all();
}
