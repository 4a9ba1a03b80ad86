/*
 * Computes and communicates at the same time, as training does with its gradients. Each bucket of data takes
 * seven steps; while one bucket is reduced, the next one is computed. On a GPU the host does not wait before
 * the end. Without a GPU the same calls run one after the other.
 *
 *   overlap [--name NAME] [--rank R --size N] [--device N]
 */
#include <string.h>

#include "client/examples/example.h"
#include "proto/cuda_driver.h"

enum { STEPS = 6, BUCKETS = 4, COUNT = 200000 };
#define VALUES ((int64_t)STEPS * BUCKETS * COUNT)
#define BUCKET_BYTES (COUNT * sizeof(int64_t))

/* Computes on a stream of a GPU or, without cuda, in the calling thread. */
struct compute {
    const struct cuda_driver *cuda;
    cuda_stream stream;
    int64_t *computed; /* of this rank, all steps and buckets; stands for what a kernel would compute */
    int64_t *results;  /* the reduced values */
};

static void cuda_check(const struct compute *compute, cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        char text[256];
        cuda_driver_text(compute->cuda, what, result, text, sizeof text);
        fprintf(stderr, "%s\n", text);
        exit(EXIT_FAILURE);
    }
}

static void *compute_memory(const struct compute *compute)
{
    void *memory;
    if (compute->cuda == NULL) {
        return example_allocate(VALUES, sizeof(int64_t));
    }
    cuda_check(compute, compute->cuda->host_alloc(&memory, VALUES * sizeof(int64_t), 0), "host memory");
    return memory;
}

static struct compute compute_begin(int device)
{
    struct compute compute = {0};
    if (device != COMM_DEVICE_HOST) {
        char why[256];
        cuda_device gpu;
        cuda_context context;
        if (!cuda_driver_load(&compute.cuda, why, sizeof why)) {
            fprintf(stderr, "%s\n", why);
            exit(EXIT_FAILURE);
        }
        cuda_check(&compute, compute.cuda->device_get(&gpu, device), "cuDeviceGet");
        cuda_check(&compute, compute.cuda->context_retain(&context, gpu), "cuDevicePrimaryCtxRetain");
        cuda_check(&compute, compute.cuda->context_set(context), "cuCtxSetCurrent");
        cuda_check(&compute, compute.cuda->stream_create(&compute.stream, CUDA_STREAM_NON_BLOCKING, 0),
                   "cuStreamCreate");
    }
    compute.computed = compute_memory(&compute);
    compute.results = compute_memory(&compute);
    return compute;
}

static int64_t value(uint32_t rank, int64_t place)
{
    return (rank + 1) * (place % 1009 + place / COUNT);
}

/* Computes the bucket's gradient. */
static void compute_gradient(const struct compute *compute, int64_t *gradient, size_t place)
{
    if (compute->cuda == NULL) {
        memcpy(gradient, compute->computed + place, BUCKET_BYTES);
        return;
    }
    cuda_check(compute,
               compute->cuda->copy_from_host((cuda_pointer)(uintptr_t)gradient, compute->computed + place,
                                             BUCKET_BYTES, compute->stream),
               "copy");
}

/* Uses the reduced gradient. */
static void use_gradient(const struct compute *compute, const int64_t *gradient, size_t place)
{
    if (compute->cuda == NULL) {
        memcpy(compute->results + place, gradient, BUCKET_BYTES);
        return;
    }
    cuda_check(compute,
               compute->cuda->copy_to_host(compute->results + place, (cuda_pointer)(uintptr_t)gradient,
                                           BUCKET_BYTES, compute->stream),
               "copy");
}

/* Steps one to six; the seventh is to destroy the event. */
static comm_event_t *reduce_beside(const struct example *example, const struct compute *compute,
                                   int64_t *gradient, size_t place)
{
    comm_event_t *event;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = COMM_STREAM_NONE; /* the event orders it */
    example_check(comm_event_create(example->client, &event), "event");
    compute_gradient(compute, gradient, place);
    example_check(comm_event_record(event, compute->stream), "record");
    example_check(comm_event_wait_comm(event, example->comm), "wait");
    example_check(comm_all_reduce(example->comm, gradient, gradient, COUNT, COMM_I64, COMM_SUM, &options),
                  "all-reduce");
    example_check(comm_event_record_comm(event, example->comm), "record");
    return event;
}

static void step(const struct example *example, const struct compute *compute, int64_t **gradients,
                 size_t number)
{
    comm_event_t *events[BUCKETS];
    for (size_t i = 0; i < BUCKETS; i++) {
        size_t place = (number * BUCKETS + i) * COUNT;
        events[i] = reduce_beside(example, compute, gradients[i], place);
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        size_t place = (number * BUCKETS + i) * COUNT;
        example_check(comm_event_wait(events[i], compute->stream), "wait");
        use_gradient(compute, gradients[i], place);
        comm_event_destroy(events[i]);
    }
}

int main(int argc, char **argv)
{
    int device;
    int64_t *gradients[BUCKETS];
    struct example example = example_begin_on(argc, argv, "overlap", &device);
    struct compute compute = compute_begin(device);
    for (int64_t i = 0; i < VALUES; i++) {
        compute.computed[i] = value(example.rank, i);
    }
    for (int i = 0; i < BUCKETS; i++) {
        void *memory;
        example_check(comm_mem_alloc(example.client, BUCKET_BYTES, device, &memory), "memory");
        gradients[i] = memory;
    }
    for (size_t number = 0; number < STEPS; number++) {
        step(&example, &compute, gradients, number);
    }
    if (compute.cuda != NULL) {
        cuda_check(&compute, compute.cuda->stream_synchronize(compute.stream), "cuStreamSynchronize");
    }
    example_check(comm_sync_stream(example.comm, 0), "sync");
    int good = 1;
    for (int64_t i = 0; i < VALUES; i++) {
        good = good && compute.results[i] == value(0, i) * example.size * (example.size + 1) / 2;
    }
    for (int i = 0; i < BUCKETS; i++) {
        example_check(comm_mem_free(example.client, gradients[i]), "memory");
    }
    return example_end(&example, good, "sums of overlapping buckets");
}
