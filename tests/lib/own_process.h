#ifndef TESTS_LIB_OWN_PROCESS_H
#define TESTS_LIB_OWN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/* What this process holds at present. For tests that check that nothing is left behind. */

/* Bytes that are allocated. Each allocator reports this in its own way. */
size_t allocated_bytes(void);
/* Open descriptors, including the one that is needed to count them. */
unsigned count_fds(void);
/* Mappings of memfds with that name. */
unsigned count_mappings(const char *memfd);

#endif
