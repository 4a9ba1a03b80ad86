#ifndef DAEMON_NET_TLS_CHOICE_H
#define DAEMON_NET_TLS_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"

/*
 * Chooses between two ways for bulk data to one peer, by rates that were measured on the data themselves. Way
 * 0 is the net's connection, way 1 the bulk link. In a round, each way is measured several times, in turn, or
 * until one is clearly better. Then the better one is used. The next round comes after some time, which grows
 * while the choice stays the same. Pure; times are arguments.
 *
 * Other work on the machine only makes a way look worse. So the best measurement of a round counts.
 *
 * Two figures count: the rate, and the processor time for each byte. With two processors or one, only the
 * second one counts, as then the processors bound everything. The more processors there are, the more the
 * rate counts. But a way with less than half of the other's rate is never the better one.
 */
#define TLS_TRIAL_BYTES (8ull << 20) /* of one measurement, at least */
#define TLS_TRIAL_MIN_NS (5 * TIME_MS)
#define TLS_TRIAL_MAX_NS (200 * TIME_MS) /* then fewer bytes will do */
#define TLS_SKIPPED_BYTES (4ull << 20)   /* after a change of ways, as both have data under way then */
#define TLS_TRIALS 6u                    /* measurements of a round: of way 1, of way 0, and so on */
#define TLS_AGAIN_MIN_NS (2 * TIME_S)
#define TLS_AGAIN_MAX_NS (60 * TIME_S)
#define TLS_BETTER 1.08 /* how much better the other way must be to be taken */
#define TLS_CLEAR 1.4   /* a way that is so much better is chosen before all measurements were made */

struct tls_way {
    uint64_t rate;                    /* of the last measurement, bytes a second; 0: not measured */
    uint64_t cost_ns;                 /* of processor time for 1 MiB */
    uint64_t bytes;                   /* in all */
    uint64_t best_rate, best_cost_ns; /* of this round, or of the last one */
    bool skips;                       /* what comes first after a change of ways does not count */
    /* The measurement under way: */
    uint32_t under_way;
    uint64_t since_ns;
    uint64_t cpu_since_ns;
    uint64_t busy_ns, busy_cpu_ns, busy_bytes;
};

/* Zero at first, but for `processors`. */
struct tls_choice {
    uint32_t processors;
    struct tls_way ways[2];
    bool is_made;     /* some round has ended */
    unsigned trials;  /* measurements of this round that have ended; TLS_TRIALS: none is under way */
    unsigned present; /* the better way */
    unsigned last;    /* the way that was given last */
    uint64_t again_ns, wait_ns;
};

/* Which way the next bulk data take. */
unsigned tls_choice_way(struct tls_choice *choice, uint64_t now_ns);
/* Data are under way on that way. cpu_ns: the clock of this thread's processor time. */
void tls_choice_began(struct tls_choice *choice, unsigned way, uint64_t now_ns, uint64_t cpu_ns);
void tls_choice_ended(struct tls_choice *choice, unsigned way, uint64_t bytes, uint64_t now_ns,
                      uint64_t cpu_ns);
/* The bulk link is lost or new: what was measured counts no more, and a new round begins. */
void tls_choice_forget(struct tls_choice *choice);

#endif
