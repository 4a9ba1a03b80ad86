#ifndef DAEMON_BASE_PLACEMENT_H
#define DAEMON_BASE_PLACEMENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/error.h"

/*
 * Where commd's threads run on a machine with several NUMA nodes, whose processors reach the memory of their
 * own node faster. A thread of a network card runs on the processors of the card's node. All other threads
 * run where the ranks run: the more ranks a node has, the more of the threads. Without ranks, they are
 * spread evenly. A thread may use all processors of its node that the process may use. The main thread is
 * left to the kernel, which moves it to those who wake it.
 *
 * Memory needs no placement: Linux takes a page from the node of the thread that touches it first. The
 * library touches what comm_mem_alloc returns, and a rank its own cells; a rail's thread makes its own
 * buffers.
 *
 * One thread calls these functions. A null placement does nothing.
 */
struct placement;

#define PLACEMENT_NODES_MAX 64   /* further NUMA nodes get no threads */
#define PLACEMENT_THREADS_MAX 32 /* further threads run anywhere */
#define PLACEMENT_ANYWHERE UINT32_MAX

struct placement_options {
    const char *synthetic; /* null: this machine. Otherwise a description as in hwloc(7), for tests */
    /* Null: the machine is asked. Moves a thread to the processors of a node; PLACEMENT_ANYWHERE: to all. */
    void (*move)(void *context, pthread_t thread, uint32_t node);
    /* Null: the machine is asked. Returns the node on which a process ran last, or PLACEMENT_ANYWHERE. */
    uint32_t (*node_of_process)(void *context, pid_t pid);
    void *context;
};

/* Sets *out to null on a machine with one NUMA node. NO_MEMORY; SYSTEM if the machine cannot be read. Sets
 * $HWLOC_PLUGINS_PATH if it is not set: no other thread may look at the environment meanwhile. */
enum status placement_new(const struct placement_options *options, struct placement **out,
                          struct error *error) COMM_MUST_USE;
/* Threads stay where they are. Null is accepted. */
void placement_free(struct placement *placement);

/* NUMA nodes with processors that this process may use; 1 if placement is null. */
uint32_t placement_nodes(const struct placement *placement);

/* From now on, the thread runs where the ranks run; or near the network card that has this IP address.
 * address is "host:port", or null. An address that no card has, such as 0.0.0.0, is the same as null. */
void placement_add(struct placement *placement, pthread_t thread, const char *address);

/* A rank's process has come. Returns its node, for placement_rank_left. */
uint32_t placement_rank_came(struct placement *placement, pid_t pid);
void placement_rank_left(struct placement *placement, uint32_t node);

/*
 * Decides on which of node_count nodes each of the threads runs, in proportion to the ranks (ranks[node]),
 * by the method of d'Hondt: the next thread goes to the node with the most ranks for each thread that it
 * would have. The first of equals gets it. Without ranks, every node counts as having one.
 */
void placement_spread(const uint32_t *ranks, uint32_t node_count, uint32_t thread_count,
                      uint32_t *node_of_thread);

#endif
