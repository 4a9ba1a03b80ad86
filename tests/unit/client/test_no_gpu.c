#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/client/client_pair.h"

/* A machine without a GPU. A call that asks for a GPU says why there is none. Other calls do not notice. */

static unsigned count_threads(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static void find_double(char path[PATH_MAX])
{
    char self[PATH_MAX - 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    (void)snprintf(path, PATH_MAX, "%s/../../libcuda_double.so", dirname(self));
    assert_int_equal(access(path, R_OK), 0);
}

static void test_the_host_alone(void **state)
{
    (void)state;
    char path[PATH_MAX];
    find_double(path);
    assert_int_equal(setenv("COMMD_CUDA_LIBRARY", path, 1), 0);
    struct pair pair = pair_start(NULL);
    unsigned threads = count_threads(); /* with the fake daemon's */
    comm_t *comm = pair_comm(&pair, "host", 0, 1);
    comm_event_t *event;
    unsigned char byte = 1;
    assert_int_equal(comm_event_create(pair.client, &event), COMM_OK);
    assert_int_equal(comm_event_record(event, NULL), COMM_OK);
    assert_int_equal(comm_event_wait_comm(event, comm), COMM_OK);
    assert_int_equal(comm_all_reduce(comm, &byte, &byte, 1, COMM_U8, COMM_SUM, NULL), COMM_OK);
    assert_int_equal(comm_event_record_comm(event, comm), COMM_OK);
    assert_int_equal(comm_event_wait(event, NULL), COMM_OK);
    assert_int_equal(comm_sync(comm, 0), COMM_OK);
    assert_int_equal(count_threads(), threads);
    assert_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
    pair_stop(&pair);
}

static void test_no_driver(void **state)
{
    (void)state;
    assert_int_equal(setenv("COMMD_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1), 0);
    struct pair pair = pair_start(NULL);
    comm_t *comm;
    void *memory;
    assert_int_equal(comm_init(pair.client, "gpu", 0, 1, 0, NULL, &comm), COMM_UNSUPPORTED);
    assert_error_says("comm_init: \"gpu\": device 0: no CUDA driver: /nonexistent/libcuda.so.1");
    assert_null(comm);
    assert_int_equal(comm_mem_alloc(pair.client, 1, 0, &memory), COMM_UNSUPPORTED);
    assert_error_says("comm_mem_alloc: device 0: no CUDA driver");
    comm_t *host = pair_comm(&pair, "host", 0, 1);
    assert_int_equal(comm_barrier(host, NULL), COMM_OK);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_host_alone),
        cmocka_unit_test(test_no_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
