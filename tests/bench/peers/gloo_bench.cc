// The benchmark's calls by Gloo over TCP: gloo_bench FOLDER ADDRESS RANK RANKS ARGUMENTS (sweep.h). FOLDER,
// empty and shared by the ranks, is where they find each other. C++, since Gloo has no other interface.
#include "sweep.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace
{

struct Peer {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter; // of one buffer and size
    unsigned rank;
    unsigned ranks;
};

void prepare(void *context, enum sweep_operation operation, const float *send, float *receive, size_t count)
{
    auto *peer = static_cast<Peer *>(context);
    if (operation != SWEEP_REDUCE_SCATTER) {
        return;
    }
    // It works in place: on the inputs the first time, on what it left of them afterwards.
    memcpy(receive, send, count * sizeof(float));
    peer->reduce_scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
        peer->context, std::vector<float *>{receive}, static_cast<int>(count),
        std::vector<int>(peer->ranks, static_cast<int>(count / peer->ranks)));
}

void all_reduce(Peer *peer, const float *send, float *receive, size_t count)
{
    gloo::AllreduceOptions options(peer->context);
    options.setInput(const_cast<float *>(send), count);
    options.setOutput(receive, count);
    options.setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

void send_recv(Peer *peer, const float *send, float *receive, size_t count)
{
    auto out = peer->context->createUnboundBuffer(const_cast<float *>(send), count * sizeof(float));
    auto in = peer->context->createUnboundBuffer(receive, count * sizeof(float));
    in->recv(static_cast<int>((peer->rank + peer->ranks - 1) % peer->ranks), 1);
    out->send(static_cast<int>((peer->rank + 1) % peer->ranks), 1);
    in->waitRecv();
    out->waitSend();
}

void operate(void *context, enum sweep_operation operation, const float *send, float *receive, size_t count)
{
    auto *peer = static_cast<Peer *>(context);
    auto *input = const_cast<float *>(send);
    switch (operation) {
    case SWEEP_ALL_REDUCE:
        all_reduce(peer, send, receive, count);
        break;
    case SWEEP_ALL_GATHER: {
        gloo::AllgatherOptions options(peer->context);
        options.setInput(input, count / peer->ranks);
        options.setOutput(receive, count);
        gloo::allgather(options);
        break;
    }
    case SWEEP_REDUCE_SCATTER:
        peer->reduce_scatter->run();
        break;
    case SWEEP_BROADCAST: {
        gloo::BroadcastOptions options(peer->context);
        options.setRoot(0);
        options.setOutput(peer->rank == 0 ? input : receive, count);
        gloo::broadcast(options);
        break;
    }
    case SWEEP_ALL_TO_ALL: {
        gloo::AlltoallOptions options(peer->context);
        options.setInput(input, count);
        options.setOutput(receive, count);
        gloo::alltoall(options);
        break;
    }
    case SWEEP_SEND_RECV:
        send_recv(peer, send, receive, count);
        break;
    case SWEEP_BARRIER:
    case SWEEP_OPERATIONS: {
        gloo::BarrierOptions options(peer->context);
        gloo::barrier(options);
        break;
    }
    }
}

void larger(void *out, const void *left, const void *right, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        static_cast<double *>(out)[i] =
            std::max(static_cast<const double *>(left)[i], static_cast<const double *>(right)[i]);
    }
}

double maximum(void *context, double value)
{
    auto *peer = static_cast<Peer *>(context);
    double largest = 0;
    gloo::AllreduceOptions options(peer->context);
    options.setInput(&value, 1);
    options.setOutput(&largest, 1);
    options.setReduceFunction(larger);
    gloo::allreduce(options);
    return largest;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: gloo_bench FOLDER ADDRESS RANK RANKS ARGUMENTS\n");
        return 2;
    }
    try {
        Peer peer;
        peer.rank = static_cast<unsigned>(atoi(argv[3]));
        peer.ranks = static_cast<unsigned>(atoi(argv[4]));
        gloo::transport::tcp::attr attributes(argv[2]);
        auto device = gloo::transport::tcp::CreateDevice(attributes);
        gloo::rendezvous::FileStore store(argv[1]);
        peer.context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(peer.rank),
                                                                   static_cast<int>(peer.ranks));
        peer.context->setTimeout(std::chrono::seconds(60));
        peer.context->connectFullMesh(store, device);
        sweep_library library = {};
        library.context = &peer;
        library.rank = peer.rank;
        library.ranks = peer.ranks;
        library.prepare = prepare;
        library.operate = operate;
        library.maximum = maximum;
        int status = sweep_run(&library, argc - 4, argv + 4);
        maximum(&peer, 0); // nobody leaves while another still receives
        return status;
    } catch (const std::exception &error) {
        fprintf(stderr, "gloo_bench: %s\n", error.what());
        return 1;
    }
}
