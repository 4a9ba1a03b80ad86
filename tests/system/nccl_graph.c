#include "tests/system/nccl_program.h"

#include <dlfcn.h>
#include <string.h>

/* Calls on streams that are captured: each replay of the graph runs the operations anew. */

#define REPLAYS 50
#define COUNT 1031

typedef struct cuda_graph_exec_handle *graph_exec;

static struct {
    cuda_result (*begin)(cuda_stream stream, int mode);
    cuda_result (*end)(cuda_stream stream, cuda_graph *graph);
    cuda_result (*instantiate)(graph_exec *exec, cuda_graph graph, unsigned long long flags);
    cuda_result (*launch)(graph_exec exec, cuda_stream stream);
    cuda_result (*exec_destroy)(graph_exec exec);
    cuda_result (*destroy)(cuda_graph graph);
} calls;

static float values[3 * COUNT];

static void look_up(void *library, const char *symbol, void *slot)
{
    void *address = dlsym(library, symbol);
    expect_true(library != NULL && address != NULL, symbol);
    memcpy(slot, &address, sizeof address);
}

static void load(void)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    look_up(library, "cuStreamBeginCapture_v2", &calls.begin);
    look_up(library, "cuStreamEndCapture", &calls.end);
    look_up(library, "cuGraphInstantiateWithFlags", &calls.instantiate);
    look_up(library, "cuGraphLaunch", &calls.launch);
    look_up(library, "cuGraphExecDestroy", &calls.exec_destroy);
    look_up(library, "cuGraphDestroy", &calls.destroy);
}

static void *part(cuda_pointer at, int index)
{
    return AT(at + (cuda_pointer)((size_t)index * COUNT * sizeof(float)));
}

/* A sum, a message with the block of the rank before, and a broadcast whose root has two buffers. */
static void operations(const struct local *local)
{
    int next = (local->rank + 1) % size, before = (local->rank + size - 1) % size;
    expect(ncclAllReduce(AT(local->send), part(local->receive, 0), COUNT, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           ncclSuccess, "ncclAllReduce");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclSend(AT(local->send), COUNT, ncclFloat32, next, local->comm, STREAM(local)), ncclSuccess,
           "ncclSend");
    expect(ncclRecv(part(local->receive, 1), COUNT, ncclFloat32, before, local->comm, STREAM(local)),
           ncclSuccess, "ncclRecv");
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    expect(ncclBroadcast(AT(local->send), part(local->receive, 2), COUNT, ncclFloat32, 1, local->comm,
                         STREAM(local)),
           ncclSuccess, "ncclBroadcast");
}

static float value_of(int rank, int replay, int index)
{
    return (float)((rank + 1) * (replay + 3) + index % 17);
}

static void check_replay(const struct local *local, int replay)
{
    int before = (local->rank + size - 1) % size;
    read_gpu(local, local->receive, values, sizeof values);
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int rank = 0; rank < size; rank++) {
            sum += value_of(rank, replay, i);
        }
        expect_true(values[i] == sum, "a sum of a replay");
        expect_true(values[COUNT + i] == value_of(before, replay, i), "a message of a replay");
        expect_true(values[2 * COUNT + i] == value_of(1, replay, i), "a broadcast of a replay");
    }
}

/* A factor in GPU memory would have to be read during the capture. So the call is refused, and the capture
 * goes on. */
static void refuse_factor(const struct local *local)
{
    ncclRedOp_t op;
    expect(ncclRedOpCreatePreMulSum(&op, AT(local->send), ncclFloat32, ncclScalarDevice, local->comm),
           ncclSuccess, "ncclRedOpCreatePreMulSum");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, ncclFloat32, op, local->comm, STREAM(local)),
           ncclInvalidUsage, "a factor of the GPU in a capture");
    expect_text("captured");
    expect(ncclRedOpDestroy(op, local->comm), ncclSuccess, "ncclRedOpDestroy");
}

/* For processes of one rank. */
void case_graph(void)
{
    struct local *local = &locals[0];
    cuda_graph graph;
    graph_exec exec;
    load();
    init_all();
    check_all_work();
    enter(local);
    cuda(calls.begin(local->stream, CUDA_CAPTURE_MODE_GLOBAL), "begin");
    operations(local);
    refuse_factor(local);
    cuda(calls.end(local->stream, &graph), "end");
    cuda(calls.instantiate(&exec, graph, 0), "instantiate");
    for (int replay = 0; replay < REPLAYS; replay++) {
        poison(local);
        for (int i = 0; i < COUNT; i++) {
            values[i] = value_of(local->rank, replay, i);
        }
        write_gpu(local, local->send, values, COUNT * sizeof *values);
        cuda(calls.launch(exec, local->stream), "launch");
        check_replay(local, replay);
        if (replay % 10 == 0) {
            check_all_work();
        }
    }
    cuda(calls.exec_destroy(exec), "exec_destroy");
    cuda(calls.destroy(graph), "destroy");
    destroy_all();
}
