#ifndef TESTS_SIM_ALLOCATED_H
#define TESTS_SIM_ALLOCATED_H

#include <stddef.h>

/* Bytes that this process has from its allocator, which says it in its own way. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1 /* as gcc says it */
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
size_t __sanitizer_get_current_allocated_bytes(void);
#else
#include <malloc.h>
#endif

static inline size_t allocated_bytes(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __sanitizer_get_current_allocated_bytes();
#else
    return mallinfo2().uordblks;
#endif
}

#endif
