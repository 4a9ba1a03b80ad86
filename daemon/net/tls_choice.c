#include "daemon/net/tls_choice.h"

#include <math.h>

#define FEW_PROCESSORS 2.0

/* How much better way 1 is than way 0: above 1 if it is. */
static double ratio(const struct tls_choice *choice)
{
    const struct tls_way *net = &choice->ways[0], *bulk = &choice->ways[1];
    double rates = (double)(bulk->rate + 1) / (double)(net->rate + 1);
    double costs = (double)(net->cost_ns + 1) / (double)(bulk->cost_ns + 1);
    double weight = choice->processors > FEW_PROCESSORS ? FEW_PROCESSORS / choice->processors : 1.0;
    if (rates < 0.5 || rates > 2.0) {
        return rates;
    }
    return pow(rates, 1 - weight) * pow(costs, weight);
}

static bool other_is_better(const struct tls_choice *choice)
{
    double better = ratio(choice);
    return (choice->present == 0 ? better : 1 / better) > TLS_BETTER_PERCENT / 100.0;
}

unsigned tls_choice_way(struct tls_choice *choice, uint64_t now_ns)
{
    if (choice->trials < TLS_TRIALS_FIRST) {
        return 1 - choice->trials % 2;
    }
    if (choice->tries == 0 && now_ns >= choice->again_ns) {
        struct tls_way *other = &choice->ways[1 - choice->present];
        choice->tries = TLS_TRIALS_LATER;
        other->busy_ns = other->busy_cpu_ns = other->busy_bytes = 0;
    }
    return choice->tries > 0 ? 1 - choice->present : choice->present;
}

/* A measurement of that way has ended. */
static void decide(struct tls_choice *choice, unsigned way, uint64_t now_ns)
{
    if (choice->trials < TLS_TRIALS_FIRST) {
        choice->trials += way == 1 - choice->trials % 2;
        if (choice->trials == TLS_TRIALS_FIRST) {
            choice->present = ratio(choice) >= 1;
            choice->again_ns = time_after(now_ns, TLS_AGAIN_NS);
        }
        return;
    }
    if (way != choice->present && choice->tries > 0 && --choice->tries == 0) {
        choice->present = other_is_better(choice) ? way : choice->present;
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
    uint64_t rate = (uint64_t)((double)at->busy_bytes * (double)TIME_S / (double)at->busy_ns);
    uint64_t cost_ns = (at->busy_cpu_ns << 20) / (at->busy_bytes + 1);
    uint64_t faded_rate = at->rate - at->rate / TLS_FADES;
    uint64_t faded_cost_ns = at->cost_ns + at->cost_ns / TLS_FADES;
    bool is_first = at->rate == 0;
    at->rate = is_first || rate > faded_rate ? rate : faded_rate;
    at->cost_ns = is_first || cost_ns < faded_cost_ns ? cost_ns : faded_cost_ns;
    at->busy_ns = at->busy_cpu_ns = at->busy_bytes = 0;
    decide(choice, way, now_ns);
}

void tls_choice_forget(struct tls_choice *choice)
{
    choice->ways[1].rate = 0;
    choice->ways[1].busy_ns = choice->ways[1].busy_cpu_ns = choice->ways[1].busy_bytes = 0;
    choice->trials = 0;
    choice->tries = 0;
}
