#ifndef TESTS_SIM_CLUSTER_H
#define TESTS_SIM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/random.h"
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/rails.h"
#include "daemon/mesh/mesh.h"
#include "daemon/mesh/rail_links.h"
#include "tests/network/network.h"

/*
 * A whole cluster in one process, on one thread and in virtual time. Every node has a net (of pipes, or QUIC
 * on datagrams: tests/network/network.h), mesh, exec and comms. They are connected as in the daemon, but
 * without sockets and without clients' processes; sim_comm.h replaces these. One seed decides everything: the
 * same seed gives the same run, event for event. Anything unexpected ends the running test (cmocka).
 */
#define CLUSTER_NODES_MAX 4000
#define CLUSTER_RAILS_MAX 4
#define CLUSTER_WORKERS_MAX 2
#define CLUSTER_EXECS_MAX (CLUSTER_RAILS_MAX + CLUSTER_WORKERS_MAX)

struct cluster;

struct cluster_node {
    struct cluster *cluster;
    uint32_t index;
    char name[8]; /* "n000"..., "n1000"... */
    struct net *net;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct rails *rails; /* null if there is one rail and no worker */
    struct mailbox mailboxes[CLUSTER_EXECS_MAX];
    struct net *rail_nets[CLUSTER_EXECS_MAX]; /* the first is unused; workers have no net */
    struct exec *rail_execs[CLUSTER_EXECS_MAX];
    bool workers_go_on;
    struct comms *comms;
    bool alive;
    bool crashed; /* only the daemon has ended; the host still answers */
};

struct cluster {
    uint64_t seed;
    struct network *network;
    struct network *rail_networks[CLUSTER_RAILS_MAX]; /* the first is unused */
    uint32_t rail_count;
    uint32_t exec_count;  /* one exec for each rail, then one for each worker */
    bool users_are_alone; /* set by a test: from now on, no other user shares the main thread */
    struct cluster_node *nodes;
    uint32_t node_count;
    uint64_t slice_bytes;
    uint32_t old_every;
    struct random random; /* for the clients: what they post, and when */
    uint64_t rail_turns;
    uint64_t now_ns;
    uint64_t scan_ns;    /* when to look at the nodes' deadlines again */
    uint64_t trace_hash; /* a hash of what clients were told */
    uint32_t incarnations;
};

struct cluster_options {
    uint64_t seed;
    uint32_t node_count;
    struct network_conditions conditions;
    uint64_t slice_bytes; /* 0: the default */
    uint32_t rail_count;  /* 0: 1 */
    /* Threads without a network. If there are any, other users always share the main thread. So it lends
     * to workers whatever takes more than one piece. Workers are slow: one turn every 200 us. */
    uint32_t worker_count;
    bool datagrams; /* QUIC on datagrams; otherwise pipes */
    /* Each such node is as an older commd, which knows no relays (daemon/comm/meeting.h). 0: none is */
    uint32_t old_every;
};

/* Returns COMMD_SEED of the environment, or a fixed seed. It is mixed with `which`, so that tests differ. */
#define CLUSTER_SEED_DEFAULT 20260601
uint64_t cluster_seed(uint32_t which);
/* Ends main: prints the seed if a test failed. */
int cluster_report(int failed);

/* Makes a cluster whose nodes know each other. No node has dialled yet. */
struct cluster *cluster_new(const struct cluster_options *options);
/* Frees the cluster. Every member must have left. */
void cluster_free(struct cluster *cluster);

/* Call it after asking anything of a node directly, because its deadlines may have changed. */
void cluster_touch(struct cluster *cluster);
void cluster_run(struct cluster *cluster, uint64_t span_ns);
/* Runs until `done`, for at most span_ns of virtual time. Returns whether it is done. */
bool cluster_run_until(struct cluster *cluster, bool (*done)(const void *context), const void *context,
                       uint64_t span_ns);

/* Runs until every live node is connected to every other. Fails the test after a minute of virtual time. */
void cluster_connect(struct cluster *cluster);
bool cluster_connected(const void *cluster);

/*
 * Kills the host, or only crashes its daemon. Nobody is told in either case. But the host of a crashed daemon
 * answers nodes that ask. The parts of the node stay until cluster_bury, so that its members can leave
 * (sim_comm_forget_node).
 */
void cluster_kill(struct cluster *cluster, uint32_t node);
void cluster_crash(struct cluster *cluster, uint32_t node);
/* Frees the parts of a dead node. All of its members must have left. */
void cluster_bury(struct cluster *cluster, uint32_t node);
/* Starts a buried node again, as another instance. */
void cluster_restart(struct cluster *cluster, uint32_t node);

/* Cuts or heals the way from one node to another, on one rail. */
void cluster_cut_rail(struct cluster *cluster, uint32_t rail, uint32_t from, uint32_t to, bool cut);
/* The same on all rails. */
void cluster_cut(struct cluster *cluster, uint32_t from, uint32_t to, bool cut);
/* Cuts or heals every way between the nodes below `first` and the others. */
void cluster_partition(struct cluster *cluster, uint32_t first, bool cut);

/* Returns a hash of the run: every event of the network, and all that clients were told. */
uint64_t cluster_trace(const struct cluster *cluster);
void cluster_tell(struct cluster *cluster, uint32_t node, uint64_t what, uint64_t number, uint64_t result);

#endif
