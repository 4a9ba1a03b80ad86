#include "daemon/net/tls_choice.h"

/* A way's rate, times the part of the processors that is left. */
static uint64_t value(const struct tls_choice *choice, const struct tls_way *way)
{
    uint64_t all = 1000ull * choice->processors;
    uint64_t used = way->cpu_permille < all - all / 10 ? way->cpu_permille : all - all / 10;
    return way->rate / all * (all - used);
}

static bool other_is_better(const struct tls_choice *choice)
{
    uint64_t present = value(choice, &choice->ways[choice->present]);
    uint64_t other = value(choice, &choice->ways[1 - choice->present]);
    return other / TLS_BETTER_PERCENT > present / 100;
}

unsigned tls_choice_way(struct tls_choice *choice, uint64_t now_ns)
{
    if (choice->trials < TLS_TRIALS_FIRST) {
        return 1 - choice->trials % 2;
    }
    if (!choice->tries_other && now_ns >= choice->again_ns) {
        choice->tries_other = true;
        choice->ways[1 - choice->present].busy_ns = 0;
        choice->ways[1 - choice->present].busy_cpu_ns = 0;
        choice->ways[1 - choice->present].busy_bytes = 0;
    }
    return choice->tries_other ? 1 - choice->present : choice->present;
}

/* A measurement of that way has ended. */
static void decide(struct tls_choice *choice, unsigned way, uint64_t now_ns)
{
    if (choice->trials < TLS_TRIALS_FIRST) {
        choice->trials += way == 1 - choice->trials % 2;
        if (choice->trials < TLS_TRIALS_FIRST) {
            return;
        }
        choice->present = value(choice, &choice->ways[1]) >= value(choice, &choice->ways[0]);
        choice->again_ns = time_after(now_ns, TLS_AGAIN_NS);
        return;
    }
    if (other_is_better(choice)) {
        choice->present = 1 - choice->present;
        choice->tries_other = false;
        choice->again_ns = time_after(now_ns, TLS_AGAIN_NS);
    } else if (way != choice->present) {
        choice->tries_other = false;
        choice->again_ns = time_after(now_ns, TLS_AGAIN_NS);
    }
}

void tls_choice_began(struct tls_choice *choice, unsigned way, uint64_t now_ns, uint64_t cpu_ns)
{
    struct tls_way *at = &choice->ways[way];
    if (at->under_way++ == 0) {
        at->since_ns = now_ns;
        at->cpu_since_ns = cpu_ns;
    }
}

void tls_choice_ended(struct tls_choice *choice, unsigned way, uint64_t bytes, uint64_t now_ns,
                      uint64_t cpu_ns)
{
    struct tls_way *at = &choice->ways[way];
    at->under_way -= at->under_way > 0;
    at->bytes += bytes;
    at->busy_bytes += bytes;
    at->busy_ns += now_ns > at->since_ns ? now_ns - at->since_ns : 0;
    at->busy_cpu_ns += cpu_ns > at->cpu_since_ns ? cpu_ns - at->cpu_since_ns : 0;
    at->since_ns = now_ns;
    at->cpu_since_ns = cpu_ns;
    bool enough = at->busy_bytes >= TLS_TRIAL_BYTES && at->busy_ns >= TLS_TRIAL_MIN_NS;
    if (!enough && at->busy_ns < TLS_TRIAL_MAX_NS) {
        return;
    }
    at->rate = (uint64_t)((double)at->busy_bytes * (double)TIME_S / (double)at->busy_ns);
    at->cpu_permille = at->busy_cpu_ns * 1000 / at->busy_ns;
    at->busy_ns = at->busy_cpu_ns = at->busy_bytes = 0;
    decide(choice, way, now_ns);
}

void tls_choice_forget(struct tls_choice *choice)
{
    choice->ways[1].rate = 0;
    choice->ways[1].busy_ns = choice->ways[1].busy_cpu_ns = choice->ways[1].busy_bytes = 0;
    choice->trials = 0;
    choice->tries_other = false;
}
