#ifndef DAEMON_WORKERS_H
#define DAEMON_WORKERS_H

#include "daemon/base/loop.h"
#include "daemon/exec/rails.h"
#include "daemon/net/quic.h"

/*
 * The daemon's other threads, each with a loop and an exec of its own that share the work of main's
 * (rails.h): the first ones are rails, with a network endpoint on the next UDP ports; the rest work within
 * the node. Main's thread calls everything here.
 */
struct workers;

struct stream_parking;
struct workers_options {
    struct loop *loop;               /* main's */
    struct exec *exec;               /* main's */
    struct gpu_devices *gpus;        /* null: none. Outlive the workers */
    struct stream_parking *parking;  /* all rails'; outlives them */
    uint32_t thread_count;           /* main's included; 1: none other */
    uint32_t rail_count;             /* likewise; at most thread_count */
    const struct quic_options *quic; /* of rail 0; null without a network. Not kept */
    const char *node_name;           /* copied */
    uint64_t reconnect_min_ns, reconnect_max_ns;
};

/* CONFIG where a rail's port cannot be had; SYSTEM, NO_MEMORY. */
enum status workers_new(const struct workers_options *options, struct workers **out,
                        struct error *error) COMM_MUST_USE;
/* Ends the threads. After every communicator was freed, before main's exec is. Null is accepted. */
void workers_free(struct workers *workers);

/* For as long as the workers are. */
struct rails *workers_rails(const struct workers *workers);
/* Every rail's network but the home's uses these certificates soon: see net_quic_use. NO_MEMORY: some may
 * not. */
enum status workers_use_certificates(struct workers *workers, struct quic_tls *tls,
                                     struct error *error) COMM_MUST_USE;

/* What other threads have for main's, between its waits; beside rails_tick. Returns whether there was
 * anything. */
bool workers_run(struct workers *workers, uint64_t now_ns);
/* Before main waits. False: workers_run first. */
bool workers_sleep(struct workers *workers);

/* How many threads and rails there are by default on a machine with so many processors. */
uint32_t workers_threads_default(long processors);
uint32_t workers_rails_default(long processors);

#endif
