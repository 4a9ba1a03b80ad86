#ifndef DAEMON_NET_TLS_CHOICE_H
#define DAEMON_NET_TLS_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"

/*
 * Chooses between two ways for bulk data to one peer, by rates that were measured on the data themselves. Way
 * 0 is the net's connection, way 1 the bulk link. At first each is measured several times, in turn. Then the
 * better one is used, and the other one is measured again now and then. Pure; times are arguments.
 *
 * Other work on the machine only makes a way look worse. So the best of the latest measurements counts: it
 * fades with each later one.
 *
 * Two figures count: the rate, and the processor time for each byte. With two processors or one, only the
 * second one counts, as then the processors bound everything. The more processors there are, the more the
 * rate counts. But a way with less than half of the other's rate is never the better one.
 */
#define TLS_TRIAL_BYTES (8ull << 20) /* of one measurement, at least */
#define TLS_TRIAL_MIN_NS (5 * TIME_MS)
#define TLS_TRIAL_MAX_NS (200 * TIME_MS) /* then fewer bytes will do */
#define TLS_TRIALS_FIRST 8u
#define TLS_TRIALS_LATER 3u        /* measurements of the other way, each time */
#define TLS_FADES 32u              /* the best figure loses this part with each measurement */
#define TLS_AGAIN_NS (20 * TIME_S) /* between measurements of the way that is not used */
#define TLS_BETTER_PERCENT 108u    /* the other way's value, over the present one's, at which it is taken */

struct tls_way {
    uint64_t rate;    /* bytes a second; 0: not measured */
    uint64_t cost_ns; /* of processor time for 1 MiB */
    uint64_t bytes;   /* in all */
    /* The measurement under way: */
    uint32_t under_way;
    uint64_t since_ns;
    uint64_t cpu_since_ns;
    uint64_t busy_ns, busy_cpu_ns, busy_bytes;
};

struct tls_choice {
    uint32_t processors;
    struct tls_way ways[2];
    unsigned trials;  /* first measurements that have ended */
    unsigned present; /* the way in use, but for measurements of the other one */
    unsigned tries;   /* measurements of the other way that are still to be made */
    uint64_t again_ns;
};

/* Which way the next bulk data take. */
unsigned tls_choice_way(struct tls_choice *choice, uint64_t now_ns);
/* Data are under way on that way. cpu_ns: the clock of this thread's processor time. */
void tls_choice_began(struct tls_choice *choice, unsigned way, uint64_t now_ns, uint64_t cpu_ns);
void tls_choice_ended(struct tls_choice *choice, unsigned way, uint64_t bytes, uint64_t now_ns,
                      uint64_t cpu_ns);
/* The bulk link is lost or new: what was measured of it counts no more. */
void tls_choice_forget(struct tls_choice *choice);

#endif
