#include "tests/sim/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/comm/links.h"
#include "daemon/exec/exec_internal.h"

#define CLUSTER_PORT 4700
/* most time between two looks at the nodes' deadlines while anything happens */
#define CLUSTER_SCAN_NS (200 * TIME_US)
/* least time between two looks, for parts that always want to be called at once */
#define CLUSTER_SCAN_MIN_NS (10 * TIME_US)
#define CLUSTER_PUMP_MAX 1000000 /* turns of exec at one moment; more turns mean an endless loop */

uint64_t cluster_seed(uint32_t which)
{
    const char *text = getenv("COMMD_SEED");
    uint64_t seed = text == NULL || text[0] == '\0' ? CLUSTER_SEED_DEFAULT : strtoull(text, NULL, 0);
    return hash_bytes(seed, &which, sizeof which);
}

int cluster_report(int failed)
{
    if (failed != 0) {
        const char *text = getenv("COMMD_SEED");
        (void)fprintf(stderr, "# this run: COMMD_SEED=%s\n",
                      text == NULL || text[0] == '\0' ? "(unset)" : text);
    }
    return failed;
}

/* --- Nodes --- */

/* Starts the rails. Every rail has a network of its own. All rails run here, one after the other. */
static void node_start_rails(struct cluster_node *node)
{
    struct cluster *cluster = node->cluster;
    struct error error = {0};
    for (uint32_t rail = 0; rail < cluster->exec_count; rail++) {
        node->mailboxes[rail] = (struct mailbox){.newest = NULL};
        if (rail == 0) {
            continue;
        }
        node->rail_nets[rail] =
            rail < cluster->rail_count ? network_add(cluster->rail_networks[rail], node->name) : NULL;
        if (exec_new(node->rail_nets[rail], &node->rail_execs[rail], &error) != STATUS_OK) {
            fail_msg("%s: %s", node->name, error.text);
        }
    }
    node->rail_execs[0] = node->exec;
    if (cluster->exec_count > cluster->rail_count) {
        node->exec->lend_after_bytes = 1;
    }
    struct rails_options options = {.count = cluster->exec_count,
                                    .network_count = cluster->rail_count,
                                    .execs = node->rail_execs,
                                    .mailboxes = node->mailboxes};
    struct mesh_rails_options links = {
        .count = cluster->rail_count, .nets = node->rail_nets, .mailboxes = node->mailboxes};
    if ((cluster->exec_count > 1 && rails_new(&options, &node->rails, &error) != STATUS_OK) ||
        (cluster->rail_count > 1 && links_join(node->mesh, node->exec, &links, &error) != STATUS_OK)) {
        fail_msg("%s: %s", node->name, error.text);
    }
}

static void node_add_peer(struct cluster_node *node, const struct cluster_node *other)
{
    uint32_t peer;
    struct error error = {0};
    char address[NETWORK_ADDRESS_MAX_BYTES];
    network_address(node->cluster->network, other->name, address);
    if (mesh_add_node(node->mesh, other->name, address, &peer, &error) != STATUS_OK) {
        fail_msg("%s: %s", node->name, error.text);
    }
}

static void node_start(struct cluster_node *node)
{
    struct cluster *cluster = node->cluster;
    struct error error = {0};
    uint64_t instance = hash_bytes(cluster->seed, &cluster->incarnations, sizeof cluster->incarnations) | 1;
    cluster->incarnations++;
    node->net = network_add(cluster->network, node->name);
    struct mesh_options options;
    mesh_options_default(&options);
    options.node_name = node->name;
    options.cluster_name = "simulated";
    options.version_text = "0";
    options.instance = instance;
    options.seed = instance;
    options.now_ns = cluster->now_ns;
    options.hides_relays = cluster->old_every > 0 && node->index % cluster->old_every == 0;
    if (mesh_new(node->net, &options, &node->mesh, &error) != STATUS_OK ||
        exec_new(node->net, &node->exec, &error) != STATUS_OK ||
        p2p_new(node->net, &node->p2p, &error) != STATUS_OK) {
        fail_msg("%s: %s", node->name, error.text);
    }
    node_start_rails(node);
    struct comms_options comms_options = {
        .mesh = node->mesh,
        .exec = node->exec,
        .p2p = node->p2p,
        .rail_count = cluster->rail_count,
        .seed_secure = hash_bytes(instance, "nonces", 6),
        .slice_bytes = cluster->slice_bytes,
    };
    if (comms_new(&comms_options, &node->comms, &error) != STATUS_OK) {
        fail_msg("%s: %s", node->name, error.text);
    }
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (i != node->index) {
            node_add_peer(node, &cluster->nodes[i]);
        }
    }
    node->alive = true;
    node->crashed = false;
}

static void cluster_advance(struct cluster *cluster, uint64_t now_ns)
{
    network_advance(cluster->network, now_ns);
    for (uint32_t rail = 1; rail < cluster->rail_count; rail++) {
        network_advance(cluster->rail_networks[rail], now_ns);
    }
}

/* Runs the rails. Returns whether there was anything to do. */
static bool node_run_rails(struct cluster_node *node, uint64_t now_ns)
{
    bool any = node->rails != NULL && mailbox_run(&node->mailboxes[0], now_ns);
    for (uint32_t rail = 1; node->rails != NULL && rail < node->cluster->rail_count; rail++) {
        /* A rail reads its mail only in some turns, so that the main thread is sometimes ahead of it. */
        bool read = node->cluster->rail_turns++ % 3 == 0 && mailbox_run(&node->mailboxes[rail], now_ns);
        any |= read || rails_run_rail(node->rails, rail, now_ns);
        mesh_rail_run(node->mesh, rail, now_ns);
    }
    return any;
}

/* One turn of each worker. */
static void node_run_workers(struct cluster_node *node, uint64_t now_ns)
{
    const struct cluster *cluster = node->cluster;
    node->workers_go_on = false;
    for (uint32_t i = cluster->rail_count; node->rails != NULL && i < cluster->exec_count; i++) {
        node->workers_go_on |= rails_run_rail(node->rails, i, now_ns);
    }
}

static bool node_workers_have_work(const struct cluster_node *node)
{
    const struct cluster *cluster = node->cluster;
    bool any = node->workers_go_on;
    for (uint32_t i = cluster->rail_count; node->rails != NULL && i < cluster->exec_count; i++) {
        any |= !mailbox_is_empty(&node->mailboxes[i]);
    }
    return any;
}

/* Gives another user a turn, if the node has workers. */
static void node_serve_another(struct cluster_node *node, uint64_t now_ns)
{
    static const char another;
    if (node->cluster->exec_count > node->cluster->rail_count && !node->cluster->users_are_alone) {
        exec_serve(node->exec, (const struct budget_account *)&another, now_ns);
    }
}

/* Runs exec on every node until it has nothing more to do. No virtual time passes. */
static void cluster_pump(struct cluster *cluster)
{
    bool again = true;
    for (uint32_t turn = 0; again; turn++) {
        assert_true(turn < CLUSTER_PUMP_MAX);
        again = false;
        for (uint32_t i = 0; i < cluster->node_count; i++) {
            struct cluster_node *node = &cluster->nodes[i];
            bool mail = node->rails != NULL && node_run_rails(node, cluster->now_ns);
            if (node->exec != NULL && (mail || exec_has_work(node->exec) || p2p_has_work(node->p2p))) {
                node_serve_another(node, cluster->now_ns);
                bool exec_goes_on = exec_run(node->exec, cluster->now_ns);
                bool p2p_goes_on = p2p_run(node->p2p, cluster->now_ns);
                again |= mail || exec_goes_on || p2p_goes_on;
            }
        }
    }
}

/* Stops a node whose members are gone. The network gives back the buffers that it still holds. After that
 * there is nothing left to wait for. */
static void node_stop(struct cluster_node *node)
{
    node->alive = false;
    for (unsigned i = 0; i < 10; i++) {
        cluster_pump(node->cluster);
        node_run_workers(node, node->cluster->now_ns);
        comms_tick(node->comms, node->cluster->now_ns);
        cluster_advance(node->cluster, node->cluster->now_ns);
    }
    while (node_workers_have_work(node)) {
        node_run_workers(node, node->cluster->now_ns);
    }
    exec_await_loans(node->exec, node->cluster->now_ns);
    comms_free(node->comms);
    for (unsigned i = 0; i < 10 && node->rails != NULL; i++) {
        (void)node_run_rails(node, node->cluster->now_ns);
        node_run_workers(node, node->cluster->now_ns);
        cluster_advance(node->cluster, node->cluster->now_ns);
    }
    mesh_end_rails(node->mesh);
    rails_free(node->rails, node->cluster->now_ns);
    for (uint32_t rail = 1; rail < node->cluster->exec_count; rail++) {
        exec_free(node->rail_execs[rail]);
        net_free(node->rail_nets[rail]);
    }
    node->rails = NULL;
    exec_free(node->exec);
    p2p_free(node->p2p);
    mesh_free(node->mesh);
    net_free(node->net);
    node->comms = NULL;
    node->exec = NULL;
    node->p2p = NULL;
    node->mesh = NULL;
    node->net = NULL;
}

/* Makes the network of a rail. Its port is the first rail's port plus the number of the rail. */
static struct network *cluster_network_new(const struct cluster_options *options, uint32_t rail)
{
    return options->datagrams ? network_new_datagrams(options->seed + rail, &options->conditions,
                                                      (uint16_t)(CLUSTER_PORT + rail))
                              : network_new_pipes(options->seed + rail, &options->conditions);
}

struct cluster *cluster_new(const struct cluster_options *options)
{
    log_set_level(getenv("COMMD_SIM_LOG") == NULL ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO);
    struct cluster *cluster = calloc(1, sizeof *cluster);
    assert_non_null(cluster);
    assert_true(options->node_count <= CLUSTER_NODES_MAX);
    cluster->seed = options->seed;
    cluster->node_count = options->node_count;
    cluster->old_every = options->old_every;
    cluster->slice_bytes = options->slice_bytes == 0 ? EXEC_SLICE_BYTES_DEFAULT : options->slice_bytes;
    cluster->nodes = calloc(options->node_count, sizeof *cluster->nodes);
    assert_non_null(cluster->nodes);
    random_seed(&cluster->random, options->seed);
    cluster->network = cluster_network_new(options, 0);
    cluster->rail_count = options->rail_count == 0 ? 1 : options->rail_count;
    assert_true(cluster->rail_count <= CLUSTER_RAILS_MAX && options->worker_count <= CLUSTER_WORKERS_MAX);
    cluster->exec_count = cluster->rail_count + options->worker_count;
    for (uint32_t rail = 1; rail < cluster->rail_count; rail++) {
        cluster->rail_networks[rail] = cluster_network_new(options, rail);
    }
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        struct cluster_node *node = &cluster->nodes[i];
        node->cluster = cluster;
        node->index = i;
        (void)snprintf(node->name, sizeof node->name, "n%03u", i % 10000);
    }
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        node_start(&cluster->nodes[i]);
    }
    return cluster;
}

void cluster_free(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (cluster->nodes[i].net != NULL) {
            node_stop(&cluster->nodes[i]);
        }
    }
    network_free(cluster->network);
    for (uint32_t rail = 1; rail < cluster->rail_count; rail++) {
        network_free(cluster->rail_networks[rail]);
    }
    free(cluster->nodes);
    free(cluster);
}

static void cluster_silence(struct cluster *cluster, uint32_t node, bool cut)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (i != node) {
            cluster_cut(cluster, node, i, cut);
        }
    }
}

void cluster_kill(struct cluster *cluster, uint32_t node)
{
    network_kill(cluster->network, cluster->nodes[node].name);
    for (uint32_t rail = 1; rail < cluster->rail_count; rail++) {
        network_kill(cluster->rail_networks[rail], cluster->nodes[node].name);
    }
    cluster->nodes[node].alive = false;
}

void cluster_crash(struct cluster *cluster, uint32_t node)
{
    cluster_silence(cluster, node, true);
    cluster->nodes[node].alive = false;
    cluster->nodes[node].crashed = true;
}

void cluster_bury(struct cluster *cluster, uint32_t node)
{
    node_stop(&cluster->nodes[node]);
    if (cluster->nodes[node].crashed) {
        cluster_silence(cluster, node, false);
    }
}

void cluster_restart(struct cluster *cluster, uint32_t node)
{
    assert_null(cluster->nodes[node].net);
    node_start(&cluster->nodes[node]);
    cluster_touch(cluster);
}

void cluster_cut_rail(struct cluster *cluster, uint32_t rail, uint32_t from, uint32_t to, bool cut)
{
    network_cut(rail == 0 ? cluster->network : cluster->rail_networks[rail], cluster->nodes[from].name,
                cluster->nodes[to].name, cut);
}

void cluster_cut(struct cluster *cluster, uint32_t from, uint32_t to, bool cut)
{
    for (uint32_t rail = 0; rail < cluster->rail_count; rail++) {
        cluster_cut_rail(cluster, rail, from, to, cut);
    }
}

void cluster_partition(struct cluster *cluster, uint32_t first, bool cut)
{
    for (uint32_t i = 0; i < first; i++) {
        for (uint32_t j = first; j < cluster->node_count; j++) {
            cluster_cut(cluster, i, j, cut);
            cluster_cut(cluster, j, i, cut);
        }
    }
}

/* --- Time --- */

static uint64_t node_deadline_ns(const struct cluster_node *node)
{
    uint64_t deadline_ns = mesh_next_deadline_ns(node->mesh);
    deadline_ns = time_min(deadline_ns, exec_next_deadline_ns(node->exec));
    deadline_ns = time_min(deadline_ns, p2p_next_deadline_ns(node->p2p));
    for (uint32_t rail = 1; node->rails != NULL && rail < node->cluster->rail_count; rail++) {
        deadline_ns = time_min(deadline_ns, exec_next_deadline_ns(node->rail_execs[rail]));
    }
    if (node_workers_have_work(node)) {
        deadline_ns = time_min(deadline_ns, node->cluster->now_ns + CLUSTER_SCAN_NS);
    }
    return time_min(deadline_ns, comms_next_deadline_ns(node->comms));
}

/* Calls whatever of the node is due. Returns its next deadline, or now if anything was called. */
static uint64_t node_tick(struct cluster_node *node, uint64_t now_ns)
{
    uint64_t deadline_ns = node_deadline_ns(node);
    if (deadline_ns > now_ns && node->cluster->exec_count == 1) {
        return deadline_ns;
    }
    if (mesh_next_deadline_ns(node->mesh) <= now_ns) {
        mesh_tick(node->mesh, now_ns);
    }
    if (exec_next_deadline_ns(node->exec) <= now_ns) {
        exec_tick(node->exec, now_ns);
    }
    if (p2p_next_deadline_ns(node->p2p) <= now_ns) {
        p2p_tick(node->p2p, now_ns);
    }
    for (uint32_t rail = 1; node->rails != NULL && rail < node->cluster->rail_count; rail++) {
        exec_tick(node->rail_execs[rail], now_ns);
    }
    node_run_workers(node, now_ns);
    if (comms_next_deadline_ns(node->comms) <= now_ns) {
        comms_tick(node->comms, now_ns);
    }
    return now_ns;
}

static void cluster_scan(struct cluster *cluster)
{
    uint64_t now_ns = cluster->now_ns;
    uint64_t next_ns = TIME_NEVER;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (cluster->nodes[i].alive) {
            next_ns = time_min(next_ns, node_tick(&cluster->nodes[i], now_ns));
        }
    }
    if (next_ns <= now_ns) { /* what was called may have changed any node's deadline */
        cluster_pump(cluster);
        next_ns = TIME_NEVER;
        for (uint32_t i = 0; i < cluster->node_count; i++) {
            if (cluster->nodes[i].alive) {
                next_ns = time_min(next_ns, node_deadline_ns(&cluster->nodes[i]));
            }
        }
    }
    cluster->scan_ns = next_ns > now_ns + CLUSTER_SCAN_MIN_NS ? next_ns : now_ns + CLUSTER_SCAN_MIN_NS;
}

static uint64_t cluster_next_ns(const struct cluster *cluster)
{
    uint64_t next_ns = time_min(network_next_ns(cluster->network), cluster->scan_ns);
    for (uint32_t rail = 1; rail < cluster->rail_count; rail++) {
        next_ns = time_min(next_ns, network_next_ns(cluster->rail_networks[rail]));
    }
    return next_ns;
}

/* Moves on to the next event. */
static void cluster_step(struct cluster *cluster)
{
    uint64_t next_ns = cluster_next_ns(cluster);
    cluster->now_ns = next_ns > cluster->now_ns ? next_ns : cluster->now_ns;
    cluster_advance(cluster, cluster->now_ns);
    cluster_pump(cluster);
    if (cluster->now_ns >= cluster->scan_ns) {
        cluster_scan(cluster);
    } else {
        cluster->scan_ns = time_min(cluster->scan_ns, cluster->now_ns + CLUSTER_SCAN_NS);
    }
}

void cluster_touch(struct cluster *cluster)
{
    cluster->scan_ns = cluster->now_ns;
}

static bool never(const void *context)
{
    (void)context;
    return false;
}

bool cluster_run_until(struct cluster *cluster, bool (*done)(const void *context), const void *context,
                       uint64_t span_ns)
{
    uint64_t until_ns = cluster->now_ns + span_ns;
    cluster_pump(cluster);
    while (!done(context)) {
        if (cluster_next_ns(cluster) > until_ns) {
            cluster->now_ns = until_ns;
            cluster_advance(cluster, until_ns);
            return done(context);
        }
        cluster_step(cluster);
    }
    return true;
}

void cluster_run(struct cluster *cluster, uint64_t span_ns)
{
    (void)cluster_run_until(cluster, never, NULL, span_ns);
}

bool cluster_connected(const void *context)
{
    const struct cluster *cluster = context;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const struct cluster_node *node = &cluster->nodes[i];
        for (uint32_t j = 0; node->alive && j < cluster->node_count; j++) {
            uint32_t peer;
            if (j != i && cluster->nodes[j].alive &&
                !(mesh_find_node(node->mesh, cluster->nodes[j].name, &peer) &&
                  mesh_node_is_alive(node->mesh, peer) &&
                  (mesh_node_is_up(node->mesh, peer) || !mesh_is_complete(node->mesh)))) {
                return false;
            }
        }
    }
    return true;
}

void cluster_connect(struct cluster *cluster)
{
    for (unsigned i = 0; i < 600 && !cluster_connected(cluster); i++) {
        cluster_run(cluster, 100 * TIME_MS);
    }
    assert_true(cluster_connected(cluster));
}

/* --- The trace --- */

void cluster_tell(struct cluster *cluster, uint32_t node, uint64_t what, uint64_t number, uint64_t result)
{
    uint64_t words[] = {cluster->now_ns, node, what, number, result};
    cluster->trace_hash = hash_bytes(cluster->trace_hash, words, sizeof words);
}

uint64_t cluster_trace(const struct cluster *cluster)
{
    struct network_counters counters;
    network_counters(cluster->network, &counters);
    return hash_bytes(counters.trace_hash, &cluster->trace_hash, sizeof cluster->trace_hash);
}
