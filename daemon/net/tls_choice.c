#include "daemon/net/tls_choice.h"

#include <math.h>

#define FEW_PROCESSORS 2.0

/* How much better way 1 is than way 0: above 1 if it is. */
static double ratio(const struct tls_choice *choice)
{
    const struct tls_way *net = &choice->ways[0], *bulk = &choice->ways[1];
    double rates = (double)(bulk->best_rate + 1) / (double)(net->best_rate + 1);
    double costs = (double)(net->best_cost_ns + 1) / (double)(bulk->best_cost_ns + 1);
    double weight = choice->processors > FEW_PROCESSORS ? FEW_PROCESSORS / choice->processors : 1.0;
    if (rates < 0.5 || rates > 2.0) {
        return rates;
    }
    return pow(rates, 1 - weight) * pow(costs, weight);
}

static void begin_measurement(struct tls_way *way)
{
    way->busy_ns = way->busy_cpu_ns = way->busy_bytes = 0;
}

static void begin_round(struct tls_choice *choice)
{
    choice->trials = 0;
    for (unsigned way = 0; way < 2; way++) {
        choice->ways[way].best_rate = choice->ways[way].best_cost_ns = 0;
    }
}

unsigned tls_choice_way(struct tls_choice *choice, uint64_t now_ns)
{
    if (choice->trials == TLS_TRIALS && now_ns >= choice->again_ns) {
        begin_round(choice);
    }
    unsigned way = choice->trials < TLS_TRIALS ? 1 - choice->trials % 2 : choice->present;
    if (way != choice->last) {
        choice->last = way;
        choice->ways[way].skips = true;
        begin_measurement(&choice->ways[way]);
    }
    return way;
}

/* Both ways were measured equally often, and more measurements would hardly change the choice. */
static bool is_clear(const struct tls_choice *choice)
{
    double better = ratio(choice);
    return choice->trials % 2 == 0 && (better >= TLS_CLEAR || 1 / better >= TLS_CLEAR);
}

static void end_round(struct tls_choice *choice, uint64_t now_ns)
{
    double better = ratio(choice);
    double needed = choice->is_made ? TLS_BETTER : 1.0;
    unsigned before = choice->present;
    if (!choice->is_made || (before == 0 ? better : 1 / better) > needed) {
        choice->present = better >= 1.0;
    }
    bool changed = !choice->is_made || choice->present != before;
    choice->wait_ns = changed ? TLS_AGAIN_MIN_NS : time_min(2 * choice->wait_ns, TLS_AGAIN_MAX_NS);
    choice->again_ns = time_after(now_ns, choice->wait_ns);
    choice->is_made = true;
}

/* A measurement of that way has ended. */
static void note(struct tls_choice *choice, unsigned way, uint64_t now_ns)
{
    struct tls_way *at = &choice->ways[way];
    at->rate = (uint64_t)((double)at->busy_bytes * (double)TIME_S / (double)at->busy_ns);
    at->cost_ns = (at->busy_cpu_ns << 20) / (at->busy_bytes + 1);
    begin_measurement(at);
    if (choice->trials == TLS_TRIALS || way != 1 - choice->trials % 2) {
        return;
    }
    at->best_rate = at->rate > at->best_rate ? at->rate : at->best_rate;
    at->best_cost_ns =
        at->best_cost_ns == 0 || at->cost_ns < at->best_cost_ns ? at->cost_ns : at->best_cost_ns;
    choice->trials++;
    if (choice->trials == TLS_TRIALS || is_clear(choice)) {
        choice->trials = TLS_TRIALS;
        end_round(choice, now_ns);
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
    if (at->skips) {
        at->skips = at->busy_bytes < TLS_SKIPPED_BYTES && at->busy_ns < TLS_TRIAL_MAX_NS;
        if (!at->skips) {
            begin_measurement(at);
        }
        return;
    }
    bool enough = at->busy_bytes >= TLS_TRIAL_BYTES && at->busy_ns >= TLS_TRIAL_MIN_NS;
    if (enough || at->busy_ns >= TLS_TRIAL_MAX_NS) {
        note(choice, way, now_ns);
    }
}

void tls_choice_forget(struct tls_choice *choice)
{
    choice->ways[1].rate = 0;
    begin_measurement(&choice->ways[1]);
    begin_round(choice);
    choice->is_made = false;
}
