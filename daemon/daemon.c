#include "daemon/daemon_internal.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "daemon/base/fd_reaper.h"
#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/placement.h"
#include "daemon/base/random.h"
#include "daemon/base/spin.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/base/unmapper.h"
#include "daemon/comm/comms.h"
#include "daemon/configuration.h"
#include "daemon/drain.h"
#include "daemon/exec/exec.h"
#include "daemon/gather/gathers.h"
#include "daemon/gpu/calls.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpus.h"
#include "daemon/host/guard.h"
#include "daemon/host/reduce.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/bulk.h"
#include "daemon/net/quic.h"
#include "daemon/net/stream_parking.h"
#include "daemon/nodes.h"
#include "daemon/reload.h"
#include "daemon/service.h"
#include "daemon/sockets.h"
#include "daemon/store/stores.h"
#include "daemon/workers.h"
#include "proto/version.h"

#define TURN_MAX_MS 3600000u
#define OWN_NAME_WAIT_S 60u /* less than TimeoutStartSec= of a unit */
#define CERTIFICATES_CHECK_NS (3600 * TIME_S)
#define EXEC_TOGETHER_NS (40 * TIME_US) /* of operations, between two looks at the network */
#define SPIN_LOOK_NS (20 * TIME_US)     /* between checks of descriptors while spinning */

static void daemon_arm(struct daemon *daemon, uint64_t now_ns)
{
    uint64_t deadline_ns =
        time_min(mesh_next_deadline_ns(daemon->mesh), comms_next_deadline_ns(daemon->comms));
    deadline_ns = time_min(deadline_ns, exec_next_deadline_ns(daemon->exec));
    deadline_ns = time_min(deadline_ns, p2p_next_deadline_ns(daemon->p2p));
    deadline_ns = time_min(deadline_ns, nodes_next_deadline_ns(daemon->nodes));
    deadline_ns = time_min(deadline_ns, node_source_next_deadline_ns(daemon->node_source));
    deadline_ns = time_min(deadline_ns, stores_next_deadline_ns(daemon->stores));
    deadline_ns = time_min(deadline_ns, gathers_next_deadline_ns(daemon->gathers));
    deadline_ns = time_min(deadline_ns, daemon->certificates_ns);
    deadline_ns = time_min(deadline_ns, drain_next_deadline_ns(&daemon->drain, now_ns));
    loop_timer_set(daemon->tick, deadline_ns);
}

static void daemon_tick(void *context, uint64_t now_ns)
{
    struct daemon *daemon = context;
    node_source_tick(daemon->node_source, now_ns);
    nodes_tick(daemon->nodes, now_ns);
    mesh_tick(daemon->mesh, now_ns);
    if (now_ns >= daemon->certificates_ns) {
        mesh_check_certificates(daemon->mesh, (uint64_t)time(NULL));
        daemon->certificates_ns = time_after(now_ns, CERTIFICATES_CHECK_NS);
    }
    exec_tick(daemon->exec, now_ns);
    p2p_tick(daemon->p2p, now_ns);
    comms_tick(daemon->comms, now_ns);
    stores_tick(daemon->stores, now_ns);
    gathers_tick(daemon->gathers, now_ns);
    daemon->stopping = daemon->stopping || drain_tick(&daemon->drain, now_ns);
}

/* Runs operations. Data of the next ones may have come: those run as well, for a moment. So the answers to
 * other nodes leave together. */
static bool daemon_run_exec(struct daemon *daemon, uint64_t now_ns)
{
    bool any = exec_has_work(daemon->exec), goes_on = true;
    while (goes_on && exec_has_work(daemon->exec)) {
        (void)exec_run(daemon->exec, now_ns);
        goes_on = net_quic_hand_out(daemon->net, now_ns) && loop_now_ns() - now_ns <= EXEC_TOGETHER_NS;
    }
    return any;
}

/* Sends what waits, and with `reads` takes what has arrived for operations that run. Returns whether anything
 * has. */
static bool daemon_poll_net(struct daemon *daemon, bool reads, uint64_t now_ns)
{
    bool any = net_quic_poll(daemon->net, reads, now_ns);
    return net_bulk_poll(daemon->net, reads, now_ns) || any;
}

/* Does the work that needs no check of descriptors and timers: operations within one node, from the requests
 * of its ranks to their answers. Returns whether there was any. */
static bool daemon_work(struct daemon *daemon, uint64_t now_ns)
{
    bool any = workers_run(daemon->workers, now_ns);
    any |= api_poll(daemon->api, now_ns);
    any |= comms_cells_poll(daemon->comms, now_ns);
    any |= daemon_run_exec(daemon, now_ns);
    (void)daemon_poll_net(daemon, false, now_ns); /* first: a rank that wakes may take this processor */
    comms_cells_ring(daemon->comms);
    if (p2p_has_work(daemon->p2p)) {
        (void)p2p_run(daemon->p2p, now_ns);
        any = true;
    }
    if (comms_next_deadline_ns(daemon->comms) <= now_ns) {
        comms_tick(daemon->comms, now_ns);
        any = true;
    }
    any |= stores_run(daemon->stores, now_ns);
    any |= gathers_run(daemon->gathers, now_ns);
    api_ring_bells(daemon->api);
    return any;
}

static void daemon_drain(void *context, int signal_number, uint64_t now_ns)
{
    struct daemon *daemon = context;
    if (daemon->drain.stops) {
        log_info("%s again: stopping at once", strsignal(signal_number));
        daemon->stopping = true;
        return;
    }
    log_info("%s: draining, for at most %llu ms", strsignal(signal_number),
             (unsigned long long)daemon->configuration.conf->drain_timeout_ms);
    history_note(HISTORY_DRAIN, HISTORY_FOR_ALL, "%s", strsignal(signal_number));
    sd_notify(0, "STOPPING=1\nSTATUS=Draining");
    drain_stop(&daemon->drain, service_is_restarting() ? "restarting" : "stopping",
               daemon->configuration.conf->drain_timeout_ms * TIME_MS, now_ns);
}

static void daemon_watchdog(void *context, uint64_t now_ns)
{
    struct daemon *daemon = context;
    sd_notify(0, "WATCHDOG=1");
    loop_timer_set(daemon->watchdog, time_after(now_ns, daemon->watchdog_interval_ns));
}

/* --- Construction --- */

static enum status daemon_make_net(struct daemon *daemon, struct error *error)
{
    const struct conf *conf = daemon->configuration.conf;
    if (conf->standalone) {
        return STATUS_OK;
    }
    struct quic_options options = configuration_quic(&daemon->configuration);
    struct tls_options tls;
    struct error why;
    enum status status = net_quic_new(daemon->loop, &options, &daemon->net, &why);
    if (status != STATUS_OK) {
        return error_set(error, status, "%s: listen: %s", conf_source(conf, "listen"), why.text);
    }
    if (configuration_tls(&daemon->configuration, &tls)) {
        status = net_tls_attach(daemon->net, daemon->loop, &tls, error);
    }
    if (status == STATUS_OK) {
        net_set_parking(daemon->net, &daemon->parking);
    }
    return status;
}

static bool daemon_user_may(void *context, uint32_t uid, const char *node)
{
    const struct daemon *daemon = context;
    return conf_user_may(daemon->configuration.conf, uid, node);
}

static enum status daemon_make_mesh(struct daemon *daemon, struct error *error)
{
    const struct conf *conf = daemon->configuration.conf;
    struct mesh_options options;
    mesh_options_default(&options);
    options.node_name = conf->node_name;
    options.cluster_name = conf->cluster_name;
    options.version_text = COMMD_VERSION_TEXT;
    options.heartbeat_interval_ns = conf->heartbeat_interval_ms * TIME_MS;
    options.heartbeat_timeout_ns = conf->heartbeat_timeout_ms * TIME_MS;
    options.suspect_timeout_ns = conf->suspect_timeout_ms * TIME_MS;
    options.reconnect_min_ns = conf->reconnect_min_ms * TIME_MS;
    options.reconnect_max_ns = conf->reconnect_max_ms * TIME_MS;
    options.probe_interval_ns = conf->probe_interval_ms * TIME_MS;
    options.slice_bytes = conf->slice_bytes;
    options.algorithms = conf->algorithms;
    options.user_may = daemon_user_may;
    options.user_may_context = daemon;
    options.takes_bulk = daemon->net != NULL && daemon->net->bulk != NULL;
    enum status status = random_secure(&options.instance, sizeof options.instance, error);
    if (status != STATUS_OK) {
        return status;
    }
    options.instance |= 1; /* never 0 */
    options.seed = options.instance;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    options.incarnation = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 + 1;
    options.now_ns = loop_now_ns();
    return mesh_new(daemon->net, &options, &daemon->mesh, error);
}

static void daemon_make_placement(struct daemon *daemon)
{
    struct placement_options options = {0};
    struct error error;
    if (strcmp(daemon->configuration.conf->numa_placement, "on") != 0) {
        return;
    }
    if (placement_new(&options, &daemon->placement, &error) != STATUS_OK) {
        log_warning("threads run anywhere: %s", error.text);
    }
    if (daemon->placement != NULL) {
        log_info("%u NUMA nodes: threads run near the ranks, and near the network cards of rails",
                 placement_nodes(daemon->placement));
    }
}

static enum status daemon_make_workers(struct daemon *daemon, struct error *error)
{
    daemon_make_placement(daemon);
    const struct conf *conf = daemon->configuration.conf;
    struct quic_options quic = configuration_quic(&daemon->configuration);
    struct tls_options tls;
    bool has_tls = configuration_tls(&daemon->configuration, &tls);
    struct workers_options options = {.loop = daemon->loop,
                                      .exec = daemon->exec,
                                      .mesh = daemon->mesh,
                                      .gpus = daemon->gpus,
                                      .parking = &daemon->parking,
                                      .placement = daemon->placement,
                                      .address = conf->standalone ? NULL : conf->listen,
                                      .rail_addresses = conf->rail_addresses,
                                      .thread_count = daemon->configuration.thread_count,
                                      .rail_count = daemon->configuration.rail_count,
                                      .quic = conf->standalone ? NULL : &quic,
                                      .tls = has_tls ? &tls : NULL};
    return workers_new(&options, &daemon->workers, error);
}

static enum status daemon_make_nodes(struct daemon *daemon, struct error *error)
{
    const struct conf *conf = daemon->configuration.conf;
    struct nodes_options options = {.loop = daemon->loop,
                                    .mesh = daemon->mesh,
                                    .family = daemon->configuration.family,
                                    .retry_min_ns = conf->reconnect_min_ms * TIME_MS,
                                    .retry_max_ns = conf->reconnect_max_ms * TIME_MS,
                                    .seed = mesh_own_instance(daemon->mesh)};
    enum status status = nodes_new(&options, &daemon->nodes, error);
    for (size_t i = 0; i < conf->node_count && status == STATUS_OK; i++) {
        status = nodes_add(daemon->nodes, &conf->nodes[i], error);
    }
    if (status == STATUS_OK) {
        struct node_source_options source = {.loop = daemon->loop,
                                             .configuration = &daemon->configuration,
                                             .nodes = daemon->nodes,
                                             .seed = options.seed};
        status = node_source_new(&source, &daemon->node_source, error);
    }
    return status;
}

static enum status daemon_make_api(struct daemon *daemon, struct error *error)
{
    const struct conf *conf = daemon->configuration.conf;
    struct daemon_sockets sockets;
    enum status status = daemon_sockets_take(conf, &sockets, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct api_options options = {.socket_path = conf->socket_path,
                                  .listen_fd = sockets.client_fd,
                                  .socket_mode = (mode_t)strtoul(conf->socket_mode, NULL, 8),
                                  .socket_mode_given = conf_is_given(conf, "socket_mode"),
                                  .socket_group = conf->socket_group,
                                  .admin_socket_path = sockets.admin_path,
                                  .admin_listen_fd = sockets.admin_fd,
                                  .admin_group = conf->admin_group,
                                  .comms = daemon->comms,
                                  .stores = daemon->stores,
                                  .gathers = daemon->gathers,
                                  .mesh = daemon->mesh,
                                  .net = daemon->net,
                                  .fd_reaper = daemon->fd_reaper,
                                  .gpus = daemon->gpus,
                                  .gpus_absent = daemon->gpus_absent,
                                  .tuning = daemon->tuning,
                                  .exec = daemon->exec,
                                  .ipc_handles = reload_ipc_handles(conf),
                                  .unmapper = daemon->unmapper,
                                  .cluster_name = conf->cluster_name,
                                  .network_address = conf->standalone ? "" : conf->listen,
                                  .rail_addresses = conf->rail_addresses,
                                  .standalone = conf->standalone,
                                  .metrics = conf->metrics,
                                  .started_ns = loop_now_ns(),
                                  .owner = {.context = daemon,
                                            .visit_settings = daemon_visit_settings,
                                            .reload = daemon_reload,
                                            .reload_is_used = daemon_reload_is_used,
                                            .set_log_level = daemon_log_level,
                                            .ask_drain = drain_ask,
                                            .drain_context = &daemon->drain}};
    status = api_new(daemon->loop, &options, loop_now_ns(), &daemon->api, error);
    if (status == STATUS_OK) {
        daemon->drain = (struct drain){.comms = daemon->comms,
                                       .stores = daemon->stores,
                                       .gathers = daemon->gathers,
                                       .api = daemon->api,
                                       .node_name = mesh_own_name(daemon->mesh),
                                       .deadline_ns = TIME_NEVER};
        reload_set_user_limits(daemon->api, conf);
    }
    return status;
}

static enum status daemon_make_signals(struct daemon *daemon, struct error *error)
{
    uint64_t watchdog_us = 0;
    enum status status = loop_signal(daemon->loop, SIGTERM, daemon_drain, daemon, error);
    if (status == STATUS_OK) {
        status = loop_signal(daemon->loop, SIGINT, daemon_drain, daemon, error);
    }
    if (status == STATUS_OK) {
        status = loop_signal(daemon->loop, SIGHUP, daemon_hang_up, daemon, error);
    }
    if (status == STATUS_OK) {
        status = loop_timer_new(daemon->loop, daemon_tick, daemon, &daemon->tick, error);
    }
    if (status == STATUS_OK && sd_watchdog_enabled(0, &watchdog_us) > 0) {
        daemon->watchdog_interval_ns = watchdog_us * TIME_US / 2;
        status = loop_timer_new(daemon->loop, daemon_watchdog, daemon, &daemon->watchdog, error);
        if (status == STATUS_OK) {
            loop_timer_set(daemon->watchdog, 0);
        }
    }
    return status;
}

/*
 * A machine may start before its name server. systemd gives up a service that fails several times in a row,
 * so commd itself waits for this node's own name.
 */
static enum status daemon_configure(struct daemon *daemon, struct error *error)
{
    const struct conf_options *options = &daemon->options->conf;
    struct error why;
    enum status status = configuration_prepare(options, NULL, &daemon->configuration, &why);
    for (unsigned second = 0; status == STATUS_UNREACHABLE && second < OWN_NAME_WAIT_S; second++) {
        if (second == 0) {
            log_warning("%s; asking again for %u s", why.text, OWN_NAME_WAIT_S);
        }
        (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        status = configuration_prepare(options, NULL, &daemon->configuration, &why);
    }
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "%s", why.text);
}

/* Makes the parts that all others need. The fd_reaper is made before there are threads and GPUs. */
static enum status daemon_make_base(struct daemon *daemon, struct error *error)
{
    enum status status = daemon_configure(daemon, error);
    if (status != STATUS_OK) {
        return status;
    }
    reload_set_log_level(daemon->configuration.conf);
    (void)guard_start();
    status = loop_new(&daemon->loop, error);
    if (status == STATUS_OK) {
        status = fd_reaper_new(daemon->loop, NULL, &daemon->fd_reaper, error);
    }
    if (status == STATUS_OK) {
        status = unmapper_new(daemon->loop, &daemon->unmapper, error);
    }
    if (status == STATUS_OK) {
        daemon_sockets_await_predecessor(daemon->configuration.conf);
    }
    return status;
}

static enum status daemon_make_engines(struct daemon *daemon, struct error *error)
{
    struct error gpus_absent;
    enum status status = exec_new(daemon->net, &daemon->exec, error);
    if (status != STATUS_OK) {
        return status;
    }
    net_set_clock(daemon->net, loop_now_ns);
    exec_set_clock(daemon->exec, loop_now_ns);
    status = p2p_new(daemon->net, &daemon->p2p, error);
    if (status != STATUS_OK) {
        return status;
    }
    p2p_set_clock(daemon->p2p, loop_now_ns);
    status = gpus_open(daemon->configuration.conf, &daemon->gpus, &gpus_absent, error);
    if (status != STATUS_OK) {
        return status;
    }
    snprintf(daemon->gpus_absent, sizeof daemon->gpus_absent, "%s", gpus_absent.text);
    if (daemon->gpus != NULL) {
        status = gpu_calls_start(daemon->gpus, daemon->loop, error);
        if (status != STATUS_OK) {
            return status;
        }
        exec_set_gpus(daemon->exec, daemon->gpus);
        exec_set_gpu_engine(daemon->exec, gpus_engine(daemon->configuration.conf));
        p2p_set_gpus(daemon->p2p, daemon->gpus);
        p2p_set_by_nccl(daemon->p2p, exec_message_by_nccl, daemon->exec);
        status = gpus_tuning(daemon->configuration.conf, daemon->gpus, &daemon->tuning, error);
    }
    if (daemon->tuning != NULL) {
        status = exec_set_tuning(daemon->exec, daemon->tuning, error);
    }
    return status;
}

static enum status daemon_make_comms(struct daemon *daemon, struct error *error)
{
    struct comms_options options = {.rail_count = daemon->configuration.rail_count,
                                    .placement = daemon->placement,
                                    .mesh = daemon->mesh,
                                    .exec = daemon->exec,
                                    .p2p = daemon->p2p,
                                    .clock = loop_now_ns,
                                    .slice_bytes = daemon->configuration.conf->slice_bytes,
                                    .algorithms = daemon->configuration.conf->algorithms};
    enum status status = random_secure(&options.seed_secure, sizeof options.seed_secure, error);
    return status != STATUS_OK ? status : comms_new(&options, &daemon->comms, error);
}

static enum status daemon_make_stores(struct daemon *daemon, struct error *error)
{
    struct stores_options options = {.mesh = daemon->mesh, .clock = loop_now_ns};
    enum status status = random_secure(&options.seed_secure, sizeof options.seed_secure, error);
    return status != STATUS_OK ? status : stores_new(&options, &daemon->stores, error);
}

/* A generation of an elastic job will not form: its ranks need not wait. */
static void daemon_voided(void *context, uint32_t uid, const char *comm_name, const struct error *cause,
                          uint64_t now_ns)
{
    const struct daemon *daemon = context;
    comms_abort_forming(daemon->comms, uid, comm_name, cause, now_ns);
}

static enum status daemon_make_gathers(struct daemon *daemon, struct error *error)
{
    struct gathers_options options = {
        .mesh = daemon->mesh, .now_ns = loop_now_ns(), .voided = daemon_voided, .context = daemon};
    enum status status = random_secure(&options.seed_secure, sizeof options.seed_secure, error);
    return status != STATUS_OK ? status : gathers_new(&options, &daemon->gathers, error);
}

static enum status daemon_make(struct daemon *daemon, struct error *error)
{
    static enum status (*const parts[])(struct daemon * daemon, struct error * error) = {
        daemon_make_base,    daemon_make_net,     daemon_make_mesh,  daemon_make_engines,
        daemon_make_workers, daemon_make_nodes,   daemon_make_comms, daemon_make_stores,
        daemon_make_gathers, daemon_make_signals, daemon_make_api};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == STATUS_OK; i++) {
        status = parts[i](daemon, error);
    }
    return status;
}

static void daemon_free(struct daemon *daemon)
{
    if (daemon->gpus != NULL) {
        gpus_bound_end();
    }
    if (daemon->comms != NULL) {
        struct error cause;
        error_set(&cause, STATUS_SHUTTING_DOWN, "node %s: commd is shutting down",
                  daemon->configuration.conf->node_name);
        if (daemon->drain.stops) {
            error_set(&cause, STATUS_SHUTTING_DOWN, "%s", daemon->drain.why);
            net_set_farewell(daemon->net, daemon->drain.why);
        }
        comms_abort_all(daemon->comms, &cause, loop_now_ns());
        mesh_leave(daemon->mesh, loop_now_ns());
        exec_await_loans(daemon->exec, loop_now_ns());
        api_say_goodbye(daemon->api, cause.text);
    }
    api_free(daemon->api);
    gathers_free(daemon->gathers);
    stores_free(daemon->stores);
    comms_free(daemon->comms);
    node_source_free(daemon->node_source);
    nodes_free(daemon->nodes);
    if (daemon->exec != NULL) {
        exec_stop_tuning(daemon->exec);
    }
    workers_free(daemon->workers);
    exec_free(daemon->exec);
    gpu_tuning_free(daemon->tuning);
    p2p_free(daemon->p2p);
    gpu_devices_close(daemon->gpus);
    mesh_free(daemon->mesh);
    net_free(daemon->net);
    placement_free(daemon->placement);
    stream_parking_free(&daemon->parking);
    unmapper_free(daemon->unmapper);
    loop_timer_free(daemon->watchdog);
    loop_timer_free(daemon->tick);
    fd_reaper_free(daemon->fd_reaper);
    loop_free(daemon->loop);
    configuration_free(&daemon->configuration);
    gpus_unbound_end();
}

static bool daemon_has_work(const struct daemon *daemon)
{
    return exec_has_work(daemon->exec) || p2p_has_work(daemon->p2p);
}

/* Handles descriptors and timers. Waits for them unless there is more to do. */
static enum status daemon_turn(struct daemon *daemon, struct spin *spin, bool spins, struct error *error)
{
    bool wait = !spins && !daemon_has_work(daemon) && workers_sleep(daemon->workers) &&
                api_sleep(daemon->api) && comms_cells_sleep(daemon->comms);
    /* Any turn may have moved a deadline, so all deadlines are read before the next wait. */
    uint64_t began_ns = loop_now_ns();
    daemon_arm(daemon, began_ns);
    enum status status = loop_run_once(daemon->loop, wait ? TURN_MAX_MS : 0, error);
    if (wait) {
        spin_waited(spin, loop_now_ns() - began_ns);
    }
    return status;
}

static enum status daemon_loop(struct daemon *daemon, struct error *error)
{
    const struct conf *conf = daemon->configuration.conf;
    log_info(
        "commd %s: node %s ready on %s%s%s, %zu other nodes, %u threads, %u of them rails, reductions: %s",
        COMMD_VERSION_TEXT, conf->node_name, conf->socket_path, conf->standalone ? "" : " and udp ",
        conf->standalone ? "" : conf->listen, conf->node_count, daemon->configuration.thread_count,
        daemon->configuration.rail_count, host_reduce_level_text());
    history_note(HISTORY_STARTED, HISTORY_FOR_ALL, "commd %s", COMMD_VERSION_TEXT);
    sd_notifyf(0, "READY=1\nSTATUS=Node %s\nMAINPID=%d", conf->node_name, (int)getpid());
    enum status status = STATUS_OK;
    uint64_t looked_ns = 0;
    while (status == STATUS_OK && !daemon->stopping) {
        uint64_t now_ns = loop_now_ns();
        bool any = daemon_work(daemon, now_ns);
        bool arrived = daemon_poll_net(daemon, exec_awaits_nodes(daemon->exec), loop_now_ns());
        struct spin *spin = exec_awaits_nodes(daemon->exec) ? &daemon->network_spin : &daemon->client_spin;
        if (any || arrived) {
            spin_found(spin, now_ns);
        }
        bool awake = api_is_awake(daemon->api) || comms_cells_are_awake(daemon->comms);
        bool spins = spin_goes_on(spin, now_ns) && awake;
        bool looks = now_ns - looked_ns >= SPIN_LOOK_NS || loop_is_due(daemon->loop, now_ns);
        if (arrived && !looks) {
            continue; /* the operations go on at once */
        }
        if (spins && !daemon_has_work(daemon) && !looks) {
            uint64_t before_ns = loop_now_ns();
            (void)sched_yield(); /* another process that has work on this core runs first */
            spin_yielded(spin, before_ns, loop_now_ns());
            continue;
        }
        looked_ns = now_ns;
        status = daemon_turn(daemon, spin, spins, error);
    }
    return status;
}

enum status daemon_run(const struct daemon_options *options, struct error *error)
{
    struct daemon daemon = {.options = options};
    stream_parking_init(&daemon.parking);
    thread_take_short_turns();
    uint64_t wake_ns = thread_measure_wake_ns();
    spin_init(&daemon.network_spin, wake_ns);
    spin_init(&daemon.client_spin, wake_ns);
    enum status status = daemon_make(&daemon, error);
    if (status == STATUS_OK) {
        node_source_follow(daemon.node_source, loop_now_ns());
        status = daemon_loop(&daemon, error);
        log_info("stopped");
    }
    daemon_free(&daemon);
    return status;
}
