#include <unistd.h>

#include "tests/fuzz/client_node.h"
#include "tests/fuzz/scribble.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ACTIONS_MAX 200

/*
 * Clients of a real node have rings. They write bytes of the input to the memory that they share with the
 * node: heads, tails, sleep flags, lengths, packets. They do so between requests, or before commd has read a
 * request. Another client is correct, and also has rings. What must hold: commd stays within bounds;
 * the correct client's operation ends well with the right bytes; in the end commd holds nothing.
 */
static void scribble(struct fuzz_sessions *all, struct fuzz_input *input)
{
    uint8_t what = fuzz_u8(input);
    struct fuzz_client *client = &all->sessions[what % FUZZ_CLIENTS].client;
    if (client->fd < 0 || client->shared == NULL) {
        return;
    }
    client->scribbles = true;
    fuzz_ring_scribble((what & 32) != 0 ? &client->in : &client->out, input);
    all->waits_long = true;
    if ((what & 64) != 0) {
        (void)!write(client->bell_of_daemon, "", 1);
    }
    if ((what & 128) != 0) {
        fuzz_node_turn(&all->node);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_sessions all;
    static struct fuzz_victim victim;
    struct fuzz_input input = {.bytes = data, .size = size};
    int lowest = dup(STDERR_FILENO);
    close(lowest);
    fuzz_sessions_start(&all, true);
    fuzz_victim_start(&victim, &all.node, true);
    for (unsigned i = 0; i < ACTIONS_MAX && !fuzz_ended(&input); i++) {
        uint32_t what = fuzz_below(&input, 8);
        if (what == 7) {
            (void)api_sleep(all.node.api);
        } else if (what >= 4) {
            scribble(&all, &input);
        } else {
            fuzz_act(&all, &input);
        }
    }
    fuzz_victim_end(&victim, &all.node);
    for (unsigned i = 0; i < FUZZ_FILES; i++) {
        /* an operation that nobody counted may have written there */
        fuzz_file_touch(&all.files[i], 0, UINT64_MAX);
    }
    fuzz_sessions_end(&all);
    int lowest_after = dup(STDERR_FILENO);
    close(lowest_after);
    fuzz_require(lowest == lowest_after); /* holds only if no descriptor was left open */
    return 0;
}
