#ifndef DAEMON_DAEMON_INTERNAL_H
#define DAEMON_DAEMON_INTERNAL_H

#include "daemon/base/loop.h"
#include "daemon/base/spin.h"
#include "daemon/comm/comms.h"
#include "daemon/configuration.h"
#include "daemon/daemon.h"
#include "daemon/drain.h"
#include "daemon/net/stream_parking.h"
#include "daemon/node_source.h"
#include "daemon/nodes.h"
#include "daemon/workers.h"

/* Shared by daemon.c, which constructs the parts and runs the loop, and daemon_conf.c. */

struct daemon {
    const struct daemon_options *options;
    struct configuration configuration;
    struct loop *loop;
    struct fd_reaper *fd_reaper;
    struct unmapper *unmapper;
    struct net *net; /* null: standalone */
    struct stream_parking parking;
    struct mesh *mesh;
    struct gpu_devices *gpus;               /* null: none */
    struct gpu_tuning *tuning;              /* null: nothing is measured among GPUs */
    char gpus_absent[ERROR_TEXT_MAX_BYTES]; /* why there are none */
    struct exec *exec;
    struct p2p *p2p;
    struct placement *placement; /* null: one NUMA node, or numa_placement is off */
    struct workers *workers;
    struct nodes *nodes;
    struct node_source *node_source;
    struct comms *comms;
    struct stores *stores;
    struct gathers *gathers;
    struct api *api;
    struct loop_timer *tick;
    struct loop_timer *watchdog;
    uint64_t watchdog_interval_ns;
    /* For the network, while an operation of several nodes runs; for clients. After computing, a rank has had
     * more of a processor than commd. If they share it, the kernel lets commd spin on, however often it
     * yields. So commd must not spin for a client's next call because the waits for the network are short. */
    struct spin network_spin, client_spin;
    struct drain drain;
    bool stopping;
    uint64_t certificates_ns; /* when certificates are checked next */
};

/* --- daemon_conf.c: what a running daemon shows of its configuration, and changes. The context is the
 * daemon.
 * --- */

void daemon_visit_settings(void *context, conf_visit_function *visit, void *visit_context);
enum status daemon_reload(void *context, struct conf_changes *changes, uint64_t now_ns,
                          struct error *error) COMM_MUST_USE;
/* Whether the last reload's certificates are in use everywhere. */
bool daemon_reload_is_used(void *context);
/* For SIGHUP: reloads; the log says the outcome. */
void daemon_hang_up(void *context, int signal_number, uint64_t now_ns);
enum status daemon_log_level(void *context, const char *level, struct error *error) COMM_MUST_USE;

#endif
