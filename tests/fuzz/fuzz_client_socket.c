#include <unistd.h>

#include "tests/fuzz/client_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ACTIONS_MAX 200

/*
 * Three clients of two users send and do what the input says, on the socket of a real node. A fourth client
 * is correct. What must hold: commd answers every request once; the fourth client's operation ends well with
 * the right bytes; commd writes only where an operation may; in the end commd holds nothing.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_sessions all;
    static struct fuzz_victim victim;
    struct fuzz_input input = {.bytes = data, .size = size};
    int lowest = dup(STDERR_FILENO);
    close(lowest);
    fuzz_sessions_start(&all, false);
    fuzz_victim_start(&victim, &all.node, false);
    for (unsigned i = 0; i < ACTIONS_MAX && !fuzz_ended(&input); i++) {
        fuzz_act(&all, &input);
    }
    fuzz_victim_end(&victim, &all.node);
    fuzz_sessions_end(&all);
    int lowest_after = dup(STDERR_FILENO);
    close(lowest_after);
    fuzz_require(lowest == lowest_after); /* holds only if no descriptor was left open */
    return 0;
}
