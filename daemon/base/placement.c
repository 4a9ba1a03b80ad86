#include "daemon/base/placement.h"

#include <arpa/inet.h>
#include <errno.h>
#include <hwloc.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define HOST_MAX_BYTES 64 /* of an IP address in brackets, with a scope */

struct placed_thread {
    pthread_t thread;
    bool is_fixed; /* near a network card */
    uint32_t node; /* PLACEMENT_ANYWHERE: not moved yet */
};

struct placement {
    struct placement_options options;
    hwloc_topology_t topology;
    uint32_t node_count;
    hwloc_obj_t nodes[PLACEMENT_NODES_MAX]; /* those with processors */
    uint32_t ranks[PLACEMENT_NODES_MAX];
    struct placed_thread threads[PLACEMENT_THREADS_MAX];
    uint32_t thread_count;
};

/* --- The machine --- */

static void machine_move(void *context, pthread_t thread, uint32_t node)
{
    const struct placement *placement = context;
    hwloc_const_cpuset_t set = node == PLACEMENT_ANYWHERE
                                   ? hwloc_topology_get_allowed_cpuset(placement->topology)
                                   : placement->nodes[node]->cpuset;
    if (hwloc_set_thread_cpubind(placement->topology, thread, set, 0) != 0) {
        log_debug("a thread cannot be moved to NUMA node %u: %s", node, strerror(errno));
    }
}

static uint32_t machine_node_of_process(void *context, pid_t pid)
{
    const struct placement *placement = context;
    uint32_t found = PLACEMENT_ANYWHERE;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set != NULL &&
        hwloc_get_proc_last_cpu_location(placement->topology, pid, set, HWLOC_CPUBIND_THREAD) == 0) {
        for (uint32_t node = 0; node < placement->node_count && found == PLACEMENT_ANYWHERE; node++) {
            found = hwloc_bitmap_intersects(set, placement->nodes[node]->cpuset) ? node : found;
        }
    }
    hwloc_bitmap_free(set);
    return found;
}

/* Reads which processors, NUMA nodes and network cards there are. hwloc finds them without its plugins, which
 * would load the libraries of GPUs and displays. */
static bool read_machine(struct placement *placement)
{
    if (setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 0) != 0) {
        return false;
    }
    if (hwloc_topology_init(&placement->topology) != 0) {
        placement->topology = NULL;
        return false;
    }
    const char *synthetic = placement->options.synthetic;
    return (synthetic == NULL || hwloc_topology_set_synthetic(placement->topology, synthetic) == 0) &&
           hwloc_topology_set_io_types_filter(placement->topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
           hwloc_topology_load(placement->topology) == 0;
}

static void find_nodes(struct placement *placement)
{
    hwloc_obj_t node = NULL;
    while (placement->node_count < PLACEMENT_NODES_MAX &&
           (node = hwloc_get_next_obj_by_type(placement->topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (!hwloc_bitmap_iszero(node->cpuset)) { /* the memory of a GPU may be a node without processors */
            placement->nodes[placement->node_count++] = node;
        }
    }
}

enum status placement_new(const struct placement_options *options, struct placement **out,
                          struct error *error)
{
    struct placement *placement = calloc(1, sizeof *placement);
    *out = NULL;
    if (placement == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the places of threads");
    }
    placement->options = *options;
    if (placement->options.move == NULL) {
        placement->options.move = machine_move;
        placement->options.context = placement;
    }
    if (placement->options.node_of_process == NULL) {
        placement->options.node_of_process = machine_node_of_process;
    }
    if (!read_machine(placement)) {
        int number = errno;
        placement_free(placement);
        return error_set(error, STATUS_SYSTEM, "the machine's processors cannot be read: %s",
                         strerror(number));
    }
    find_nodes(placement);
    if (placement->node_count < 2) {
        placement_free(placement);
        return STATUS_OK;
    }
    *out = placement;
    return STATUS_OK;
}

void placement_free(struct placement *placement)
{
    if (placement != NULL && placement->topology != NULL) {
        hwloc_topology_destroy(placement->topology);
    }
    free(placement);
}

uint32_t placement_nodes(const struct placement *placement)
{
    return placement != NULL ? placement->node_count : 1;
}

/* --- Network cards --- */

/* Copies the host of "host:port", without brackets and scope. Returns false if it does not fit. */
static bool host_of(const char *address, char host[HOST_MAX_BYTES])
{
    const char *colon = strrchr(address, ':');
    size_t size = colon != NULL ? (size_t)(colon - address) : strlen(address);
    if (size >= 2 && address[0] == '[' && address[size - 1] == ']') {
        address++;
        size -= 2;
    }
    const char *scope = memchr(address, '%', size);
    size = scope != NULL ? (size_t)(scope - address) : size;
    if (size >= HOST_MAX_BYTES) {
        return false;
    }
    memcpy(host, address, size);
    host[size] = '\0';
    return true;
}

static bool has_address(const struct ifaddrs *card, int family, const void *address)
{
    if (card->ifa_addr == NULL || card->ifa_addr->sa_family != family) {
        return false;
    }
    return family == AF_INET ? memcmp(&((const struct sockaddr_in *)(const void *)card->ifa_addr)->sin_addr,
                                      address, sizeof(struct in_addr)) == 0
                             : memcmp(&((const struct sockaddr_in6 *)(const void *)card->ifa_addr)->sin6_addr,
                                      address, sizeof(struct in6_addr)) == 0;
}

static uint32_t node_of_card(const struct placement *placement, const char *name)
{
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_osdev(placement->topology, device)) != NULL) {
        if (device->name == NULL || strcmp(device->name, name) != 0) {
            continue;
        }
        hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(placement->topology, device);
        for (uint32_t node = 0; near != NULL && near->cpuset != NULL && node < placement->node_count;
             node++) {
            if (hwloc_bitmap_isincluded(near->cpuset, placement->nodes[node]->cpuset)) {
                return node;
            }
        }
    }
    return PLACEMENT_ANYWHERE;
}

static uint32_t node_of_address(const struct placement *placement, const char *address)
{
    char host[HOST_MAX_BYTES];
    struct in6_addr binary;
    struct ifaddrs *cards;
    uint32_t node = PLACEMENT_ANYWHERE;
    if (address == NULL || !host_of(address, host)) {
        return node;
    }
    int family = strchr(host, ':') != NULL ? AF_INET6 : AF_INET;
    if (inet_pton(family, host, &binary) != 1 || getifaddrs(&cards) != 0) {
        return node;
    }
    for (const struct ifaddrs *card = cards; card != NULL && node == PLACEMENT_ANYWHERE;
         card = card->ifa_next) {
        node = has_address(card, family, &binary) ? node_of_card(placement, card->ifa_name) : node;
    }
    freeifaddrs(cards);
    return node;
}

/* --- Threads --- */

void placement_spread(const uint32_t *ranks, uint32_t node_count, uint32_t thread_count,
                      uint32_t *node_of_thread)
{
    uint32_t given[PLACEMENT_NODES_MAX] = {0};
    bool any = false;
    for (uint32_t node = 0; node < node_count; node++) {
        any = any || ranks[node] > 0;
    }
    for (uint32_t thread = 0; thread < thread_count; thread++) {
        uint32_t best = 0;
        for (uint32_t node = 1; node < node_count; node++) {
            /* ranks[node] / (given[node] + 1) > the same of the best, without division */
            uint64_t left = (uint64_t)(any ? ranks[node] : 1) * (given[best] + 1);
            best = left > (uint64_t)(any ? ranks[best] : 1) * (given[node] + 1) ? node : best;
        }
        given[best]++;
        node_of_thread[thread] = best;
    }
}

static void move(struct placement *placement, struct placed_thread *thread, uint32_t node)
{
    if (thread->node != node) {
        thread->node = node;
        placement->options.move(placement->options.context, thread->thread, node);
    }
}

/* Moves as few threads as the new spread allows: a thread keeps its node while the node keeps its number. */
static void spread(struct placement *placement)
{
    uint32_t node_of_thread[PLACEMENT_THREADS_MAX], wanted[PLACEMENT_NODES_MAX] = {0}, free_count = 0;
    for (uint32_t i = 0; i < placement->thread_count; i++) {
        free_count += !placement->threads[i].is_fixed;
    }
    placement_spread(placement->ranks, placement->node_count, free_count, node_of_thread);
    for (uint32_t i = 0; i < free_count; i++) {
        wanted[node_of_thread[i]]++;
    }
    struct placed_thread *homeless[PLACEMENT_THREADS_MAX];
    uint32_t homeless_count = 0;
    for (uint32_t i = 0; i < placement->thread_count; i++) {
        struct placed_thread *thread = &placement->threads[i];
        if (!thread->is_fixed && thread->node != PLACEMENT_ANYWHERE && wanted[thread->node] > 0) {
            wanted[thread->node]--;
        } else if (!thread->is_fixed) {
            homeless[homeless_count++] = thread;
        }
    }
    for (uint32_t node = 0; node < placement->node_count; node++) {
        for (; wanted[node] > 0; wanted[node]--) {
            move(placement, homeless[--homeless_count], node);
        }
    }
}

void placement_add(struct placement *placement, pthread_t thread, const char *address)
{
    if (placement == NULL || placement->thread_count == PLACEMENT_THREADS_MAX) {
        return;
    }
    struct placed_thread *added = &placement->threads[placement->thread_count++];
    uint32_t node = node_of_address(placement, address);
    *added = (struct placed_thread){
        .thread = thread, .is_fixed = node != PLACEMENT_ANYWHERE, .node = PLACEMENT_ANYWHERE};
    if (added->is_fixed) {
        move(placement, added, node);
    } else {
        spread(placement);
    }
}

uint32_t placement_rank_came(struct placement *placement, pid_t pid)
{
    if (placement == NULL) {
        return PLACEMENT_ANYWHERE;
    }
    uint32_t node = placement->options.node_of_process(placement->options.context, pid);
    if (node < placement->node_count) {
        placement->ranks[node]++;
        spread(placement);
    }
    return node;
}

void placement_rank_left(struct placement *placement, uint32_t node)
{
    if (placement != NULL && node < placement->node_count && placement->ranks[node] > 0) {
        placement->ranks[node]--;
        spread(placement);
    }
}
