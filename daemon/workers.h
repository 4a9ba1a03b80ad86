#ifndef DAEMON_WORKERS_H
#define DAEMON_WORKERS_H

#include "daemon/base/loop.h"
#include "daemon/exec/rails.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/quic.h"
#include "daemon/net/tls.h"

/*
 * The daemon's other threads. Each has a loop and an exec of its own, and shares the main thread's work
 * (rails.h). The first ones are rails, with a network endpoint on the next UDP ports. The rest work within
 * the node. Only the main thread calls these functions.
 */
struct workers;

struct stream_parking;
struct workers_options {
    struct loop *loop;               /* the main thread's */
    struct exec *exec;               /* the main thread's */
    struct mesh *mesh;               /* without nodes yet; gets the rails; outlives the workers */
    struct gpu_devices *gpus;        /* null: none. They outlive the workers */
    struct stream_parking *parking;  /* shared by all rails; outlives them */
    uint32_t thread_count;           /* with the main thread; 1: no other */
    uint32_t rail_count;             /* likewise; at most thread_count */
    const struct quic_options *quic; /* of rail 0; null without a network. Not kept */
    struct placement *placement;     /* where the threads run; outlives the workers. Null: anywhere */
    const char *address;             /* the node's own; null: not known. Not kept */
    const char *rail_addresses;      /* of its other network cards; null: none. Not kept */
    const struct tls_options *tls;   /* null: no bulk links. Not kept */
};

/* CONFIG if a rail's port is not available; SYSTEM, NO_MEMORY. */
enum status workers_new(const struct workers_options *options, struct workers **out,
                        struct error *error) COMM_MUST_USE;
/* Ends the threads. Call it after every communicator was freed, and before the main thread's exec is. Null is
 * accepted. */
void workers_free(struct workers *workers);

/* The network of every rail except the main thread's will use these certificates soon: see net_quic_use. On
 * NO_MEMORY, some may not. */
enum status workers_use_certificates(struct workers *workers, struct quic_tls *tls,
                                     struct error *error) COMM_MUST_USE;

/* Whether all rails use them. When the last one does, the main thread is woken. */
bool workers_certificates_are_used(const struct workers *workers);

/* Handles what other threads have sent to the main thread. Call it between the main thread's waits.
 * Returns whether there was anything. */
bool workers_run(struct workers *workers, uint64_t now_ns);
/* Call it before the main thread waits. If it returns false, call workers_run first. */
bool workers_sleep(struct workers *workers);

/* The processors that this process may run on: CPUAffinity of a unit, or a container, may limit them. */
long workers_processors(void);
/* The default numbers of threads and rails on a machine with that many processors. */
uint32_t workers_threads_default(long processors);
uint32_t workers_rails_default(long processors);

#endif
