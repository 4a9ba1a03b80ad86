#ifndef TESTS_LIB_OWN_PROCESS_H
#define TESTS_LIB_OWN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/* What this process has: for tests that nothing is left behind. */

/* From its allocator, which says it in its own way. */
size_t allocated_bytes(void);
/* Open descriptors, the one with which they are counted included. */
unsigned count_fds(void);
/* Mappings of memfds of that name. */
unsigned count_mappings(const char *memfd);

#endif
