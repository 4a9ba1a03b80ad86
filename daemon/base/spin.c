#include "daemon/base/spin.h"

void spin_init(struct spin *spin, uint64_t wake_ns)
{
    uint64_t longest_ns =
        wake_ns < SPIN_LONGEST_MAX_NS / SPIN_WAKES ? SPIN_WAKES * wake_ns : SPIN_LONGEST_MAX_NS;
    *spin = (struct spin){.longest_ns = longest_ns > SPIN_LONGEST_MIN_NS ? longest_ns : SPIN_LONGEST_MIN_NS};
}

static void adapt(struct spin *spin)
{
    bool pays = spin->waited_ns < SPIN_PAYS * spin->longest_ns;
    uint64_t next_ns = pays ? 2 * spin->length_ns : spin->length_ns / 2;
    spin->length_ns = next_ns < SPIN_MIN_NS ? SPIN_MIN_NS : time_min(next_ns, spin->longest_ns);
    spin->waited_ns = 0;
}

void spin_found(struct spin *spin, uint64_t now_ns)
{
    if (spin->waited_ns > 0) {
        adapt(spin);
    }
    if (now_ns >= spin->rest_until_ns) {
        spin->until_ns = time_after(now_ns, spin->length_ns);
    }
}

void spin_waited(struct spin *spin, uint64_t waited_ns)
{
    spin->waited_ns += waited_ns;
}

void spin_yielded(struct spin *spin, uint64_t before_ns, uint64_t now_ns)
{
    if (now_ns - before_ns > SPIN_CROWDED_NS) {
        bool again = now_ns < spin->rest_until_ns + spin->rest_ns;
        spin->rest_ns = again ? time_min(4 * spin->rest_ns, SPIN_REST_MAX_NS) : SPIN_REST_MIN_NS;
        spin->rest_until_ns = now_ns + spin->rest_ns;
        spin->until_ns = 0;
    }
}
