#ifndef TESTS_UNIT_CUDA_DOUBLE_NCCL_CASE_H
#define TESTS_UNIT_CUDA_DOUBLE_NCCL_CASE_H

#include "tests/unit/cuda_double/case.h"

#include "daemon/gpu/nccl_library.h"

/* What cases of the double of NCCL share: ranks of one process, each with a device, a stream and a context.
 */

#define RANKS 3

static const struct nccl_library *nccl;
static nccl_comm comms[RANKS];
static cuda_stream streams[RANKS];
static cuda_context of_rank[RANKS];

__attribute__((unused)) static void load(void)
{
    char why[256] = "";
    case_load();
    if (!nccl_library_load(&nccl, why, sizeof why)) {
        (void)fprintf(stderr, "%s\n", why);
        _exit(1);
    }
    for (int i = 0; i < RANKS; i++) {
        of_rank[i] = case_context(i);
        streams[i] = case_stream();
    }
}

__attribute__((unused)) static struct nccl_config config(int blocking)
{
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = NCCL_CONFIG_VERSION,
                                .blocking = blocking,
                                .cga_cluster_size = NCCL_CONFIG_UNDEFINED_INT,
                                .min_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                .max_ctas = 8,
                                .split_share = NCCL_CONFIG_UNDEFINED_INT};
}

__attribute__((unused)) static void here(int rank)
{
    OK(cuda->context_set(of_rank[rank]));
}

__attribute__((unused)) static nccl_result init_all(int ranks, int blocking)
{
    struct nccl_id id;
    struct nccl_config with = config(blocking);
    OK(nccl->unique_id(&id));
    OK(nccl->group_start());
    for (int i = 0; i < ranks; i++) {
        here(i);
        OK(nccl->comm_init(&comms[i], ranks, id, i, &with));
    }
    return nccl->group_end();
}

__attribute__((unused)) static void begin(void)
{
    load();
    OK(init_all(RANKS, 1));
}

__attribute__((unused)) static nccl_result state_of(nccl_comm comm)
{
    nccl_result state = NCCL_RESULT_INTERNAL_ERROR;
    OK(nccl->comm_state(comm, &state));
    return state;
}

/* Makes a buffer with these bytes on the rank's device, where NCCL's own kernels find it. */
__attribute__((unused)) static cuda_pointer buffer(int rank, const void *bytes, size_t size)
{
    here(rank);
    cuda_pointer pointer = case_alloc(size);
    OK(cuda->copy_from_host(pointer, bytes, size, streams[rank]));
    return pointer;
}

__attribute__((unused)) static void read_back(int rank, void *bytes, cuda_pointer pointer, size_t size)
{
    here(rank);
    OK(cuda->copy_to_host(bytes, pointer, size, streams[rank]));
}

__attribute__((unused)) static void *at(cuda_pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}

__attribute__((unused)) static nccl_result all_reduce(int rank, cuda_pointer send, cuda_pointer receive,
                                                      size_t count, int type)
{
    return nccl->all_reduce(at(send), at(receive), count, type, NCCL_REDUCE_SUM, comms[rank], streams[rank]);
}

/* One mapping of virtual memory on the rank's device. */
__attribute__((unused)) static cuda_pointer mapped(int rank)
{
    struct cuda_allocation_properties of = {.type = CUDA_ALLOCATION_PINNED,
                                            .location = {.type = CUDA_LOCATION_DEVICE, .id = rank}};
    struct cuda_access access = {.location = {.type = CUDA_LOCATION_DEVICE, .id = rank},
                                 .flags = CUDA_ACCESS_READ_WRITE};
    cuda_allocation allocation;
    cuda_pointer pointer;
    here(rank);
    OK(cuda->allocation_create(&allocation, 2 * MIB, &of, 0));
    OK(cuda->address_reserve(&pointer, 2 * MIB, 0, 0, 0));
    OK(cuda->address_map(pointer, 2 * MIB, 0, allocation, 0));
    OK(cuda->address_set_access(pointer, 2 * MIB, &access, 1));
    OK(cuda->allocation_release(allocation));
    return pointer;
}

/* Sums 8 bytes of each rank in place: 1, 2 and 3. Waits for the sums. */
__attribute__((unused)) static void reduce_at(const cuda_pointer *at_rank)
{
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        here(rank);
        OK(cuda->set_bytes(at_rank[rank], (unsigned char)(1 + rank), 8, streams[rank]));
        OK(all_reduce(rank, at_rank[rank], at_rank[rank], 8, NCCL_TYPE_U8));
    }
    OK(nccl->group_end());
    for (int rank = 0; rank < RANKS; rank++) {
        here(rank);
        OK(cuda->stream_synchronize(streams[rank]));
    }
}

#endif
