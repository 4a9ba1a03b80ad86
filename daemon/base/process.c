#include "daemon/base/process.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/time.h"

uint64_t process_resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        if (fscanf(file, "%*u %llu", &pages) != 1) {
            pages = 0;
        }
        fclose(file);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* To list tens of thousands of descriptors would stop the loop for long, so older kernels tell nothing. */
uint64_t process_open_descriptors(void)
{
    struct stat folder;
    return stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0 ? (uint64_t)folder.st_size : 0;
}

uint64_t process_descriptors_max(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

uint64_t process_cpu_ns(void)
{
    struct timespec spent;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent) == 0
               ? (uint64_t)spent.tv_sec * TIME_S + (uint64_t)spent.tv_nsec
               : 0;
}
