#include "tests/lib/own_process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1 /* the name that gcc uses */
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
size_t __sanitizer_get_current_allocated_bytes(void);
#else
#include <malloc.h>
#endif

static void must(bool condition, const char *what)
{
    if (!condition) {
        perror(what);
        abort();
    }
}

size_t allocated_bytes(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __sanitizer_get_current_allocated_bytes();
#else
    return mallinfo2().uordblks;
#endif
}

unsigned count_fds(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    must(folder != NULL, "/proc/self/fd");
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

unsigned count_mappings(const char *memfd)
{
    unsigned count = 0;
    char line[1024], wanted[256];
    FILE *file = fopen("/proc/self/maps", "re");
    must(file != NULL, "/proc/self/maps");
    snprintf(wanted, sizeof wanted, "/memfd:%s", memfd);
    while (fgets(line, sizeof line, file) != NULL) {
        count += strstr(line, wanted) != NULL;
    }
    fclose(file);
    return count;
}
