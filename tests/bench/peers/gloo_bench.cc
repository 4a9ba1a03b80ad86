// Runs the work of `commctl bench` with Gloo, over its TCP transport. Gloo has no other transport for the
// CPU.
// usage: gloo_bench RANK SIZE FOLDER ADDRESS OPERATIONS MIN_BYTES MAX_BYTES STEP_FACTOR SECONDS_PER_SIZE

#include <algorithm>
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

#include "sweep.h"

static int rank_, size_;
static std::shared_ptr<gloo::rendezvous::Context> context;
static std::vector<float> input, output;
// For one size, in place in `output`. Gloo makes its plan and buffers once, and then runs them often.
static std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter;

static void run(const std::string &operation, size_t size_bytes)
{
    size_t count = size_bytes / sizeof(float);
    size_t each = count / size_;
    if (operation == "all_reduce") {
        gloo::AllreduceOptions options(context);
        options.setInput(input.data(), count);
        options.setOutput(output.data(), count);
        options.setReduceFunction(
            [](void *a, const void *b, const void *c, size_t n) { gloo::sum<float>(a, b, c, n); });
        gloo::allreduce(options);
    } else if (operation == "all_gather") {
        gloo::AllgatherOptions options(context);
        options.setInput(input.data(), each);
        options.setOutput(output.data(), each * size_);
        gloo::allgather(options);
    } else if (operation == "reduce_scatter") {
        reduce_scatter->run();
    } else if (operation == "broadcast") {
        gloo::BroadcastOptions options(context);
        options.setRoot(0);
        options.setOutput(output.data(), count);
        gloo::broadcast(options);
    } else if (operation == "all_to_all") {
        gloo::AlltoallOptions options(context);
        options.setInput(input.data(), each * size_);
        options.setOutput(output.data(), each * size_);
        gloo::alltoall(options);
    } else if (operation == "send_recv") {
        auto from = context->createUnboundBuffer(input.data(), size_bytes);
        auto to = context->createUnboundBuffer(output.data(), size_bytes);
        from->send((rank_ + 1) % size_, 7);
        to->recv((rank_ + size_ - 1) % size_, 7);
        from->waitSend();
        to->waitRecv();
    } else {
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
    }
}

static double largest(double value)
{
    double all[256];
    gloo::AllgatherOptions options(context);
    options.setInput(&value, 1);
    options.setOutput(all, size_);
    gloo::allgather(options);
    for (int rank = 0; rank < size_; rank++) {
        value = all[rank] > value ? all[rank] : value;
    }
    return value;
}

static void measure(const struct sweep *sweep, const std::string &operation, size_t size_bytes)
{
    static double times_s[SWEEP_ITERATIONS_MAX];
    double once_s = 0;
    if (operation == "reduce_scatter") {
        size_t each = size_bytes / sizeof(float) / size_;
        // The result of one run is the input of the next. Zeros stay finite.
        std::fill(output.begin(), output.end(), 0.0f);
        reduce_scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
            context, std::vector<float *>{output.data()}, static_cast<int>(each * size_),
            std::vector<int>(size_, static_cast<int>(each)));
    }
    for (int i = 0; i < 3; i++) {
        double began_s = sweep_now_s();
        run(operation, size_bytes);
        once_s = sweep_now_s() - began_s;
    }
    size_t wrong = 0;
    for (size_t i = 0; i < size_bytes / sizeof(float) && operation == "all_reduce"; i++) {
        wrong += output[i] != sweep_sum(i, size_);
    }
    int iterations = sweep_iterations(sweep, largest(once_s));
    for (int i = 0; i < iterations; i++) {
        double began_s = sweep_now_s();
        run(operation, size_bytes);
        times_s[i] = sweep_now_s() - began_s;
    }
    double median_s = largest(sweep_median(times_s, iterations));
    wrong = (size_t)largest((double)wrong);
    if (rank_ == 0) {
        sweep_print(operation.c_str(), size_bytes, median_s, iterations, wrong);
    }
}

int main(int argc, char **argv)
{
    struct sweep sweep;
    if (argc < 10 || sweep_parse(&sweep, argc - 4, argv + 4) != 0) {
        fprintf(stderr,
                "usage: %s RANK SIZE FOLDER ADDRESS OPERATIONS MIN_BYTES MAX_BYTES STEP_FACTOR SECONDS\n",
                argv[0]);
        return 2;
    }
    rank_ = atoi(argv[1]);
    size_ = atoi(argv[2]);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = argv[4];
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(argv[3]);
    context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    context->connectFullMesh(store, device);
    input.resize(sweep.max_bytes / sizeof(float) + 16);
    output.assign(sweep.max_bytes / sizeof(float) + 16, -1);
    for (size_t i = 0; i < input.size(); i++) {
        input[i] = sweep_value(i, rank_);
    }
    char operation[64];
    while (sweep_next(&sweep.operations, operation, sizeof operation) != nullptr) {
        if (std::string(operation) == "barrier") {
            measure(&sweep, operation, 0);
            continue;
        }
        for (size_t bytes = sweep.min_bytes; bytes <= sweep.max_bytes; bytes *= sweep.step_factor) {
            if (bytes >= sizeof(float) * (size_t)size_ || std::string(operation) == "all_reduce") {
                measure(&sweep, operation, bytes);
            }
        }
    }
    return 0;
}
