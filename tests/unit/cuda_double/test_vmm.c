#include "tests/unit/cuda_double/case.h"

#define PART (2 * MIB)

static struct cuda_allocation_properties properties(int device, int handle_types)
{
    return (struct cuda_allocation_properties){.type = CUDA_ALLOCATION_PINNED,
                                               .handle_types = handle_types,
                                               .location = {.type = CUDA_LOCATION_DEVICE, .id = device}};
}

static cuda_allocation create(int device, int handle_types)
{
    cuda_allocation allocation;
    struct cuda_allocation_properties of = properties(device, handle_types);
    OK(cuda->allocation_create(&allocation, PART, &of, 0));
    return allocation;
}

static cuda_result allow(cuda_pointer pointer, size_t bytes, int device)
{
    struct cuda_access access = {.location = {.type = CUDA_LOCATION_DEVICE, .id = device},
                                 .flags = CUDA_ACCESS_READ_WRITE};
    return cuda->address_set_access(pointer, bytes, &access, 1);
}

static cuda_pointer reserve(size_t bytes)
{
    cuda_pointer pointer;
    OK(cuda->address_reserve(&pointer, bytes, 0, 0, 0));
    return pointer;
}

static cuda_pointer map(cuda_allocation allocation)
{
    cuda_pointer pointer = reserve(PART);
    OK(cuda->address_map(pointer, PART, 0, allocation, 0));
    return pointer;
}

/* A buffer that consists of two mappings. Kernels and copies do not notice that. */
static void expandable(int unused)
{
    (void)unused;
    cuda_pointer base;
    size_t bytes;
    int flag;
    uint64_t mask;
    case_load();
    case_context(0);
    cuda_pointer pointer = reserve(4 * PART);
    for (cuda_pointer i = 0; i < 2; i++) {
        cuda_allocation allocation = create(0, CUDA_HANDLE_POSIX_FD);
        OK(cuda->address_map(pointer + i * PART, PART, 0, allocation, 0));
        OK(cuda->allocation_release(allocation)); /* the mapping keeps it */
        CHECK_RESULT(cuda->allocation_release(allocation), CUDA_RESULT_INVALID_VALUE);
    }
    OK(allow(pointer, 2 * PART, 0));
    OK(cuda->set_bytes(pointer + PART - 10, 9, 20, NULL));
    CHECK(case_byte(pointer + PART - 10) == 9 && case_byte(pointer + PART + 9) == 9);
    CHECK(case_byte(pointer + PART + 10) == 0xff);
    OK(cuda->memory_range(&base, &bytes, pointer + PART + 5));
    CHECK(base == pointer + PART && bytes == PART);
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_LEGACY_IPC, pointer));
    CHECK(flag == 0);
    OK(cuda->pointer_attribute(&mask, CUDA_POINTER_HANDLE_TYPES, pointer));
    CHECK(mask == CUDA_HANDLE_POSIX_FD);
    OK(cuda->pointer_attribute(&mask, CUDA_POINTER_MAPPING_BASE, pointer + PART + 5));
    CHECK(mask == pointer + PART);
    struct cuda_ipc_handle handle;
    CHECK_RESULT(cuda->ipc_get(&handle, pointer), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->memory_free(pointer), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pointer_attribute(&flag, CUDA_POINTER_DEVICE, pointer + 2 * PART),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->address_free(pointer, 4 * PART), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->address_unmap(pointer + PART, PART / 2), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->address_unmap(pointer, 2 * PART));
    OK(cuda->address_free(pointer, 4 * PART));
}
CASE(expandable)

static void refusals(int unused)
{
    (void)unused;
    cuda_allocation allocation;
    size_t bytes;
    int fd;
    case_load();
    case_context(0);
    struct cuda_allocation_properties of = properties(0, 0);
    OK(cuda->allocation_granularity(&bytes, &of, 0));
    CHECK(bytes == PART);
    CHECK_RESULT(cuda->allocation_create(&allocation, PART + 4096, &of, 0), CUDA_RESULT_INVALID_VALUE);
    of = properties(9, 0);
    CHECK_RESULT(cuda->allocation_create(&allocation, PART, &of, 0), CUDA_RESULT_INVALID_VALUE);
    allocation = create(0, 0);
    CHECK_RESULT(cuda->allocation_export(&fd, allocation, CUDA_HANDLE_POSIX_FD, 0),
                 CUDA_RESULT_INVALID_VALUE);
    cuda_pointer pointer = reserve(PART);
    CHECK_RESULT(cuda->address_map(pointer + PART, PART, 0, allocation, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->address_map(pointer, PART, 4096, allocation, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(allow(pointer, PART, 0), CUDA_RESULT_INVALID_VALUE); /* nothing is mapped */
    OK(cuda->address_map(pointer, PART, 0, allocation, 0));
    CHECK_RESULT(cuda->address_map(pointer, PART, 0, allocation, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(allow(pointer, PART, 9), CUDA_RESULT_INVALID_DEVICE);
    CHECK_RESULT(cuda->allocation_import(&allocation, (void *)(uintptr_t)0, CUDA_HANDLE_POSIX_FD),
                 CUDA_RESULT_INVALID_VALUE); /* some other file */
    OK(cuda->set_bytes(pointer, 1, 1, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), CUDA_RESULT_ILLEGAL_ADDRESS); /* access was never set */
}
CASE(refusals)

static int sockets[2];

static void exporter(int fd)
{
    int exported = -1;
    char step = 0;
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    case_load();
    case_context(0);
    cuda_pointer pointer = map(create(0, CUDA_HANDLE_POSIX_FD));
    OK(allow(pointer, PART, 0));
    OK(cuda->set_bytes(pointer, 3, PART, NULL));
    OK(cuda->stream_synchronize(NULL));
    cuda_allocation allocation;
    OK(cuda->allocation_retain(&allocation, (void *)(uintptr_t)(pointer + 100)));
    OK(cuda->allocation_export(&exported, allocation, CUDA_HANDLE_POSIX_FD, 0));
    OK(cuda->allocation_release(allocation));
    case_send(fd, &step, 1, exported);
    (void)case_receive(fd, &step, 1);
    CHECK(case_byte(pointer + 7) == 4);
}

static void imported(int unused)
{
    (void)unused;
    char step = 0;
    int device;
    cuda_allocation allocation;
    cuda_allocation again;
    setenv("CUDA_DOUBLE_MEMORY_BYTES", "2097152", 1);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    pid_t pid = case_fork(exporter, sockets[1]);
    case_load();
    case_context(1);
    int fd = case_receive(sockets[0], &step, 1);
    CHECK(fd >= 0);
    OK(cuda->allocation_import(&allocation, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD));
    OK(cuda->allocation_import(&again, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD));
    close(fd);
    cuda_pointer pointer = map(allocation);
    OK(allow(pointer, PART, 1));
    OK(cuda->pointer_attribute(&device, CUDA_POINTER_DEVICE, pointer));
    CHECK(device == 1);
    CHECK(case_byte(pointer + PART - 1) == 3);
    OK(cuda->set_bytes(pointer, 4, PART, NULL));
    OK(cuda->stream_synchronize(NULL));
    case_send(sockets[0], &step, 1, -1);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(case_byte(pointer) == 4); /* the exporter has ended */
    cuda_pointer none;
    CHECK_RESULT(cuda->memory_alloc(&none, 1), CUDA_RESULT_OUT_OF_MEMORY);
    OK(cuda->allocation_release(allocation));
    OK(cuda->allocation_release(again));
    OK(cuda->address_unmap(pointer, PART));
    (void)case_alloc(1);
}
CASE(imported)

static void exporter_elsewhere(int fd)
{
    int exported = -1;
    char step = 0;
    char folder[PATH_MAX + 8];
    (void)snprintf(folder, sizeof folder, "%s/other", case_folder);
    setenv("CUDA_DOUBLE_FOLDER", folder, 1);
    case_load();
    case_context(0);
    OK(cuda->allocation_export(&exported, create(0, CUDA_HANDLE_POSIX_FD), CUDA_HANDLE_POSIX_FD, 0));
    case_send(fd, &step, 1, exported);
}

/* Two folders are two machines. */
static void another_machine(int unused)
{
    (void)unused;
    char step = 0;
    cuda_allocation allocation;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    pid_t pid = case_fork(exporter_elsewhere, sockets[1]);
    case_load();
    case_context(0);
    int fd = case_receive(sockets[0], &step, 1);
    CHECK(fd >= 0);
    CHECK_RESULT(cuda->allocation_import(&allocation, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD),
                 CUDA_RESULT_INVALID_VALUE);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}
CASE(another_machine)

/* A machine without virtual memory says so in its attributes, and in its calls. */
static void without(int unused)
{
    (void)unused;
    int value = -1;
    size_t bytes;
    cuda_allocation allocation;
    cuda_pointer pointer;
    struct cuda_allocation_properties of = properties(0, CUDA_HANDLE_POSIX_FD);
    CHECK(setenv("CUDA_DOUBLE_VIRTUAL_MEMORY", "0", 1) == 0);
    case_load();
    case_context(0);
    OK(cuda->device_attribute(&value, CUDA_DEVICE_VIRTUAL_MEMORY, 0));
    CHECK(value == 0);
    OK(cuda->device_attribute(&value, CUDA_DEVICE_POSIX_FD, 0));
    CHECK(value == 0);
    CHECK_RESULT(cuda->allocation_granularity(&bytes, &of, CUDA_GRANULARITY_MINIMUM),
                 CUDA_RESULT_NOT_SUPPORTED);
    CHECK_RESULT(cuda->allocation_create(&allocation, PART, &of, 0), CUDA_RESULT_NOT_SUPPORTED);
    CHECK_RESULT(cuda->address_reserve(&pointer, PART, 0, 0, 0), CUDA_RESULT_NOT_SUPPORTED);
    OK(cuda->memory_alloc(&pointer, PART));
}
CASE(without)

/* Everything that is mapped into a reservation has the reservation's number. Blocks have numbers of their
 * own. */
static void numbered_by_reservation(int unused)
{
    (void)unused;
    uint64_t numbers[4];
    uint64_t blocks[4];
    CHECK(setenv("CUDA_DOUBLE_MAPPINGS_NUMBERED", "0", 1) == 0);
    case_load();
    case_context(0);
    cuda_pointer pointer = reserve(2 * PART);
    cuda_pointer other = reserve(PART);
    const cuda_pointer places[] = {pointer, pointer, pointer + PART, other};
    for (int i = 0; i < 4; i++) {
        cuda_allocation allocation = create(0, 0);
        OK(cuda->address_map(places[i], PART, 0, allocation, 0));
        OK(cuda->allocation_release(allocation));
        OK(cuda->pointer_attribute(&numbers[i], CUDA_POINTER_BUFFER_ID, places[i]));
        OK(cuda->pointer_attribute(&blocks[i], CUDA_POINTER_BLOCK_ID, places[i]));
        for (int earlier = 0; earlier < i; earlier++) {
            CHECK(blocks[i] != blocks[earlier]);
        }
        if (i == 0) {
            OK(cuda->address_unmap(pointer, PART));
        }
    }
    CHECK(numbers[0] == numbers[1] && numbers[1] == numbers[2] && numbers[3] != numbers[0]);
    cuda_pointer plain = case_alloc(PART);
    OK(cuda->pointer_attribute(&numbers[0], CUDA_POINTER_BUFFER_ID, plain));
    OK(cuda->memory_free(plain));
    CHECK(case_alloc(PART) == plain);
    OK(cuda->pointer_attribute(&numbers[1], CUDA_POINTER_BUFFER_ID, plain));
    CHECK(numbers[0] != numbers[1]);
}
CASE(numbered_by_reservation)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expandable), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_imported),   cmocka_unit_test(test_another_machine),
        cmocka_unit_test(test_without),    cmocka_unit_test(test_numbered_by_reservation),
    };
    return cmocka_run_group_tests_name("cuda_double_vmm", tests, NULL, NULL);
}
