#include "tests/unit/cuda_double/nccl_case.h"

/* Memory that is registered with NCCL, which the double checks as strictly as NCCL would need it. */

static void registers(int unused)
{
    cuda_pointer memory[RANKS];
    void *handles[RANKS], *handle;
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        memory[rank] = mapped(rank);
        OK(nccl->register_memory(comms[rank], at(memory[rank]), 2 * MIB, &handles[rank]));
    }
    CHECK_RESULT(nccl->register_memory(comms[0], at(memory[0]), 2 * MIB, &handle), NCCL_RESULT_INVALID_USAGE);
    CHECK_RESULT(nccl->register_memory(comms[0], at(memory[0] + 64), 64, &handle), NCCL_RESULT_INVALID_USAGE);
    CHECK_RESULT(nccl->register_memory(comms[0], at(mapped(0) + MIB), 2 * MIB, &handle),
                 NCCL_RESULT_UNHANDLED_CUDA_ERROR); /* beyond the mapping */
    CHECK_RESULT(nccl->register_memory(comms[1], at(memory[0]), 64, &handle),
                 NCCL_RESULT_UNHANDLED_CUDA_ERROR); /* another device's */
    here(0);
    CHECK_RESULT(nccl->register_memory(comms[0], at(case_alloc(2 * MIB)), 2 * MIB, &handle),
                 NCCL_RESULT_UNHANDLED_CUDA_ERROR);
    reduce_at(memory);
    here(1);
    CHECK(case_byte(memory[1]) == 6);
    OK(nccl->deregister_memory(comms[1], handles[1]));
    CHECK_RESULT(nccl->deregister_memory(comms[1], handles[1]), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->deregister_memory(comms[0], handles[2]), NCCL_RESULT_INVALID_ARGUMENT);
    reduce_at(memory);
    here(1);
    CHECK(case_byte(memory[1]) != 6); /* one rank's memory is not registered */
    OK(nccl->comm_abort(comms[2]));
    CHECK_RESULT(nccl->deregister_memory(comms[2], handles[2]), NCCL_RESULT_INVALID_ARGUMENT);
    here(2);
    OK(cuda->address_unmap(memory[2], 2 * MIB)); /* its communicator has ended */
    OK(cuda->stream_synchronize(streams[2]));
    here(0);
    OK(cuda->address_unmap(memory[0], 2 * MIB));
    CHECK_RESULT(cuda->stream_synchronize(streams[0]), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(registers)

static void deregisters_in_use(int unused)
{
    cuda_pointer memory[RANKS], on_gpu;
    void *handles[RANKS];
    uint64_t *word = NULL;
    (void)unused;
    begin();
    OK(cuda->host_alloc((void **)&word, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    *word = 0;
    OK(cuda->host_device_pointer(&on_gpu, word, 0));
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        memory[rank] = mapped(rank);
        OK(nccl->register_memory(comms[rank], at(memory[rank]), 2 * MIB, &handles[rank]));
        OK(cuda->stream_wait_value(streams[rank], on_gpu, 1, CUDA_WAIT_VALUE_GEQ));
        OK(all_reduce(rank, memory[rank], memory[rank], 8, NCCL_TYPE_U8));
    }
    OK(nccl->group_end());
    OK(nccl->deregister_memory(comms[0], handles[0]));
    here(0);
    CHECK_RESULT(cuda->stream_synchronize(streams[0]), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(deregisters_in_use)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registers),
        cmocka_unit_test(test_deregisters_in_use),
    };
    return cmocka_run_group_tests_name("cuda_double_nccl_register", tests, NULL, NULL);
}
