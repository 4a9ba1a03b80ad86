// Gloo, over its TCP transport: it has no other one for the CPU. $CONTEST_FOLDER is a folder that all ranks share,
// $CONTEST_ADDRESS this rank's address. Gloo's calls block. What is started runs on threads, one operation after
// the other, as in PyTorch's backend.

#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "contest.h"

static int rank_, size_;
static std::shared_ptr<gloo::rendezvous::Context> context;
static std::vector<std::unique_ptr<float[]>> memories;
static std::shared_future<void> started[CONTEST_STARTED_MAX], last_started;

// Gloo's reduce-scatter works in place, with a plan that is made once for each buffer and count.
static void reduce_scatter(const struct contest_call *call, size_t each)
{
    using Plan = gloo::ReduceScatterHalvingDoubling<float>;
    static std::map<std::pair<float *, size_t>, std::unique_ptr<Plan>> plans;
    auto &plan = plans[{call->receive, each}];
    if (!plan) {
        plan = std::make_unique<Plan>(context, std::vector<float *>{call->receive}, static_cast<int>(each * size_),
                                      std::vector<int>(size_, static_cast<int>(each)));
    }
    std::copy(call->send, call->send + each * size_, call->receive);
    plan->run();
}

static void send_recv(const struct contest_call *call)
{
    auto from = context->createUnboundBuffer(const_cast<float *>(call->send), call->count * sizeof(float));
    auto to = context->createUnboundBuffer(call->receive, call->count * sizeof(float));
    from->send((rank_ + 1) % size_, 7);
    to->recv((rank_ + size_ - 1) % size_, 7);
    from->waitSend();
    to->waitRecv();
}

static void all_to_all_v(const struct contest_call *call)
{
    gloo::AlltoallvOptions options(context);
    std::vector<int64_t> sends(call->send_counts, call->send_counts + size_);
    std::vector<int64_t> receives(call->receive_counts, call->receive_counts + size_);
    options.setInput(const_cast<float *>(call->send), sends);
    options.setOutput(call->receive, receives);
    gloo::alltoallv(options);
}

void contestant_run(const struct contest_call *call)
{
    size_t each = call->count / size_;
    float *send = const_cast<float *>(call->send);
    if (call->kind == CONTEST_ALL_REDUCE) {
        gloo::AllreduceOptions options(context);
        options.setInput(send, call->count);
        options.setOutput(call->receive, call->count);
        options.setReduceFunction([](void *a, const void *b, const void *c, size_t n) { gloo::sum<float>(a, b, c, n); });
        gloo::allreduce(options);
    } else if (call->kind == CONTEST_ALL_GATHER) {
        gloo::AllgatherOptions options(context);
        options.setInput(send, each);
        options.setOutput(call->receive, each * size_);
        gloo::allgather(options);
    } else if (call->kind == CONTEST_REDUCE_SCATTER) {
        reduce_scatter(call, each);
    } else if (call->kind == CONTEST_BROADCAST) {
        gloo::BroadcastOptions options(context);
        options.setRoot(0);
        options.setOutput(call->receive, call->count);
        gloo::broadcast(options);
    } else if (call->kind == CONTEST_ALL_TO_ALL) {
        gloo::AlltoallOptions options(context);
        options.setInput(send, each * size_);
        options.setOutput(call->receive, each * size_);
        gloo::alltoall(options);
    } else if (call->kind == CONTEST_ALL_TO_ALL_V) {
        all_to_all_v(call);
    } else if (call->kind == CONTEST_SEND_RECV) {
        send_recv(call);
    } else {
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
    }
}

void contestant_start(const struct contest_call *call, int index)
{
    auto previous = last_started;
    last_started = std::async(std::launch::async, [previous, call] {
                       if (previous.valid()) {
                           previous.wait();
                       }
                       contestant_run(call);
                   }).share();
    started[index] = last_started;
}

void contestant_finish(int index)
{
    started[index].get();
}

static double agree(double value, void (*reduce)(void *, const void *, const void *, size_t))
{
    double sum = value;
    gloo::AllreduceOptions options(context);
    options.setInput(&value, 1);
    options.setOutput(&sum, 1);
    options.setReduceFunction(reduce);
    gloo::allreduce(options);
    return sum;
}

double contestant_largest(double value)
{
    return agree(value, gloo::max<double>);
}

double contestant_sum(double value)
{
    return agree(value, gloo::sum<double>);
}

static const char *environment(const char *name)
{
    const char *value = std::getenv(name);
    if (value == nullptr) {
        std::fprintf(stderr, "gloo_contest: %s is not set\n", name);
        std::exit(2);
    }
    return value;
}

void contestant_begin(int *, char ***, int *rank, int *size)
{
    *rank = rank_ = std::atoi(environment("CONTEST_RANK"));
    *size = size_ = std::atoi(environment("CONTEST_SIZE"));
    gloo::transport::tcp::attr attributes;
    attributes.hostname = environment("CONTEST_ADDRESS");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(environment("CONTEST_FOLDER"));
    context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    context->connectFullMesh(store, device);
}

void contestant_end()
{
    contestant_sum(0); // nobody leaves while others still talk to it
}

float *contestant_memory(size_t count, bool)
{
    memories.push_back(std::make_unique<float[]>(count));
    return memories.back().get();
}

bool contestant_has_two_ways()
{
    return false;
}

bool contestant_can(enum contest_kind kind)
{
    return kind != CONTEST_KINDS;
}

double contestant_service_cpu_s()
{
    return 0;
}
