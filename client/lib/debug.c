#include "client/lib/debug.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

_Atomic int debug_state = -1;

bool debug_start(void)
{
    const char *wish = getenv(DEBUG_ENVIRONMENT);
    int state = wish != NULL && wish[0] != '\0' && strcmp(wish, "0") != 0 && strcmp(wish, "off") != 0;
    atomic_store_explicit(&debug_state, state, memory_order_relaxed);
    return state > 0;
}

/* One write for a line, so that the lines of several threads and processes do not mix. */
void debug_print(const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    struct timespec now;
    va_list arguments;
    int before = errno;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int used = snprintf(line, sizeof line, "commclient[%d/%d] %lld.%06ld ", (int)getpid(), (int)gettid(),
                        (long long)now.tv_sec, now.tv_nsec / 1000);
    va_start(arguments, format);
    int added = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    size_t length = strnlen(line, sizeof line - 2);
    if (added >= 0) {
        line[length] = '\n';
        (void)!write(STDERR_FILENO, line, length + 1);
    }
    errno = before;
}
