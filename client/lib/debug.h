#ifndef CLIENT_LIB_DEBUG_H
#define CLIENT_LIB_DEBUG_H

#include <stdatomic.h>
#include <stdbool.h>

/*
 * The library's debug log: $COMM_DEBUG set, and not 0, prints a line on standard error for each notable
 * thing: connections, communicators, failures. Operations are not logged; see trace.c. Off, it costs a load
 * and a branch in places that are not on the path of an operation. Any thread.
 */
#define DEBUG_ENVIRONMENT "COMM_DEBUG"

extern _Atomic int debug_state; /* below 0: not read yet */
bool debug_start(void);
void debug_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline bool debug_is_on(void)
{
    int state = atomic_load_explicit(&debug_state, memory_order_relaxed);
    return state > 0 || (state < 0 && debug_start());
}

#define DEBUG(...)                                                                                           \
    do {                                                                                                     \
        if (__builtin_expect(debug_is_on(), 0)) {                                                            \
            debug_print(__VA_ARGS__);                                                                        \
        }                                                                                                    \
    } while (0)

#endif
