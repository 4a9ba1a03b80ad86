#include "tests/sim/members_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/chance.h"

#define FIRST_INCARNATION 1790000000000000u /* in September 2026 */
#define LOSS 0.01
#define DIAL_AGAIN_MS 3000

enum event_kind { EVENT_MESSAGE, EVENT_DIAL, EVENT_LOST, EVENT_CLOSE };

struct event {
    struct timer_node timer;
    enum event_kind kind;
    struct world_link *link;
    uint32_t to; /* 0 or 1: the end */
    uint32_t generation;
    uint32_t size;
    uint8_t bytes[];
};

static void event_add(struct world *world, enum event_kind kind, struct world_link *link, uint32_t to,
                      const uint8_t *bytes, uint32_t size, uint64_t at_ns)
{
    struct event *event = malloc(sizeof *event + size);
    assert_non_null(event);
    *event = (struct event){.timer.index = TIMER_NODE_DISARMED,
                            .kind = kind,
                            .link = link,
                            .to = to,
                            .generation = link->generation,
                            .size = size};
    if (size > 0) {
        memcpy(event->bytes, bytes, size);
    }
    if (world->timers.count + world->options.count >= world->timers.capacity) { /* each node has one, too */
        assert_true(timer_heap_reserve(&world->timers, 2 * world->timers.capacity));
    }
    timer_heap_set(&world->timers, &event->timer, at_ns);
}

uint32_t world_draw(struct world *world, uint32_t count)
{
    return (uint32_t)random_below(&world->random, count);
}

bool world_is_alive(const struct world *world, uint32_t node)
{
    return world->nodes[node].members != NULL;
}

static bool is_stalled(const struct world_node *node)
{
    return node->stalled_until_ns > node->world->now_ns;
}

/* After each call of the node's core. */
static void world_touch(struct world_node *node)
{
    struct world *world = node->world;
    uint64_t deadline_ns = members_next_deadline_ns(node->members);
    deadline_ns = deadline_ns > world->now_ns ? deadline_ns : world->now_ns;
    deadline_ns = deadline_ns > node->stalled_until_ns ? deadline_ns : node->stalled_until_ns;
    timer_heap_set(&world->timers, &node->tick, deadline_ns);
}

/* --- Links --- */

struct world_link *world_link_of(struct world *world, uint32_t a, uint32_t b)
{
    struct world_node *node = &world->nodes[a];
    for (uint32_t i = 0; i < node->link_count; i++) {
        if (node->links[i]->ends[0] == b || node->links[i]->ends[1] == b) {
            return node->links[i];
        }
    }
    struct world_link *link = calloc(1, sizeof *link);
    assert_non_null(link);
    link->ends[0] = a;
    link->ends[1] = b;
    link->next = world->links;
    world->links = link;
    for (uint32_t end = 0; end < 2; end++) {
        node = &world->nodes[link->ends[end]];
        if (node->link_count == node->link_capacity) {
            node->link_capacity = 2 * node->link_capacity + 8;
            node->links = realloc(node->links, node->link_capacity * sizeof(struct world_link *));
            assert_non_null(node->links);
        }
        node->links[node->link_count++] = link;
    }
    return link;
}

static uint32_t end_of(const struct world_link *link, uint32_t node)
{
    return link->ends[1] == node;
}

static bool link_passes(const struct world *world, const struct world_link *link)
{
    const struct world_node *a = &world->nodes[link->ends[0]];
    const struct world_node *b = &world->nodes[link->ends[1]];
    bool (*knows)(uint32_t of, uint32_t node) = world->options.knows;
    bool known = knows == NULL || (knows(a->number, b->number) && knows(b->number, a->number));
    return known && !link->cut && a->members != NULL && b->members != NULL && a->side == b->side &&
           !is_stalled(a) && !is_stalled(b);
}

static void link_dial(struct world *world, struct world_link *link, uint64_t at_ns)
{
    if (!link->dialling && (link->wants[0] || link->wants[1])) {
        link->dialling = true;
        event_add(world, EVENT_DIAL, link, 0, NULL, 0, at_ns);
    }
}

static uint64_t loss_ns(struct world *world)
{
    return world->now_ns + WORLD_PATIENCE_NS + random_below(&world->random, WORLD_PATIENCE_SPREAD_NS);
}

static void end_up(struct world *world, struct world_link *link, uint32_t end)
{
    struct world_node *node = &world->nodes[link->ends[end]];
    struct world_node *other = &world->nodes[link->ends[1 - end]];
    link->up[end] = true;
    link->life[end] = other->life;
    members_linked(node->members, other->number, members_own_incarnation(other->members), world->now_ns);
    world_touch(node);
}

static void end_lost(struct world *world, struct world_link *link, uint32_t end)
{
    struct world_node *node = &world->nodes[link->ends[end]];
    if (node->members == NULL || !link->up[end]) {
        return;
    }
    link->up[end] = false;
    members_unlinked(node->members, link->ends[1 - end], world->now_ns);
    world_touch(node);
    link_dial(world, link, world->now_ns + 100 * TIME_MS);
}

void world_lose(struct world *world, struct world_link *link, uint32_t node)
{
    end_lost(world, link, end_of(link, node));
}

static void on_dial(struct world *world, struct world_link *link)
{
    link->dialling = false;
    if (!link->wants[0] && !link->wants[1]) {
        return;
    }
    if (!link_passes(world, link)) {
        link_dial(world, link, world->now_ns + (500 + random_below(&world->random, DIAL_AGAIN_MS)) * TIME_MS);
        return;
    }
    if (link->up[0] && link->up[1]) {
        return;
    }
    link->generation++;
    for (uint32_t end = 0; end < 2; end++) {
        /* The net replaces a connection to the same life without a word. */
        if (!link->up[end] || link->life[end] != world->nodes[link->ends[1 - end]].life) {
            end_up(world, link, end);
        }
    }
}

static void on_close(struct world *world, struct world_link *link)
{
    if (!link->wants[0] && !link->wants[1]) {
        link->generation++;
        end_lost(world, link, 0);
        end_lost(world, link, 1);
    }
}

/* Links that nothing passes any more are lost after the patience, unless that changes before. */
void world_cut_changed(struct world *world)
{
    for (uint32_t i = 0; i < world->options.count; i++) {
        for (uint32_t j = 0; j < world->nodes[i].link_count; j++) {
            struct world_link *link = world->nodes[i].links[j];
            uint32_t end = end_of(link, i);
            if (link->up[end] && !link_passes(world, link)) {
                event_add(world, EVENT_LOST, link, end, NULL, 0, loss_ns(world));
            }
        }
    }
}

/* --- Nodes --- */

static void note_traffic(struct world_node *node, size_t size)
{
    struct world *world = node->world;
    if (world->now_ns - world->second_ns >= TIME_S) {
        memset(world->second_messages, 0, world->options.count * sizeof(uint64_t));
        memset(world->second_bytes, 0, world->options.count * sizeof(uint64_t));
        world->second_ns = world->now_ns;
    }
    uint64_t messages = ++world->second_messages[node->number];
    uint64_t bytes = world->second_bytes[node->number] += size;
    world->peak_messages = messages > world->peak_messages ? messages : world->peak_messages;
    world->peak_bytes = bytes > world->peak_bytes ? bytes : world->peak_bytes;
}

static void on_send(void *context, uint32_t to, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct world_node *node = context;
    assert_true(size <= MEMBER_MESSAGE_MAX_BYTES);
    note_traffic(node, size);
    struct world_link *link = world_link_of(node->world, node->number, to);
    assert_true(link->up[end_of(link, node->number)]);
    uint64_t delay_ns = 100 * TIME_US + random_below(&node->world->random, 5 * TIME_MS);
    if (random_chance(&node->world->random, LOSS)) {
        delay_ns += random_below(&node->world->random, 300 * TIME_MS);
    }
    event_add(node->world, EVENT_MESSAGE, link, end_of(link, to), bytes, (uint32_t)size, now_ns + delay_ns);
}

static void on_changed(void *context, uint32_t about, enum member_state state, uint64_t now_ns)
{
    struct world_node *node = context;
    struct world *world = node->world;
    const struct world_node *other = &world->nodes[about];
    assert_int_equal(members_state(node->members, about), state);
    if (about == world->watched) {
        world->watched_down += state == MEMBER_DOWN ? 1u : 0u;
        world->watched_down -= state == MEMBER_UP && world->watched_down > 0;
        world->watched_ns = now_ns;
    }
    uint64_t *since = world->down_since == NULL
                          ? NULL
                          : &world->down_since[node->number * (size_t)world->options.count + about];
    if (state == MEMBER_DOWN && other->members != NULL && other->side == node->side) {
        world->false_downs++;
        if (since != NULL) {
            *since = now_ns;
        }
    } else if (since != NULL && *since != 0) {
        uint64_t span_ns = now_ns - *since;
        world->false_down_ns = span_ns > world->false_down_ns ? span_ns : world->false_down_ns;
        *since = 0;
    }
}

static void on_neighbour(void *context, uint32_t other, bool is_neighbour, uint64_t now_ns)
{
    struct world_node *node = context;
    struct world_link *link = world_link_of(node->world, node->number, other);
    link->wants[end_of(link, node->number)] = is_neighbour;
    if (is_neighbour) {
        link_dial(node->world, link, now_ns + (1 + random_below(&node->world->random, 50)) * TIME_MS);
    } else {
        event_add(node->world, EVENT_CLOSE, link, 0, NULL, 0, now_ns + TIME_MS);
    }
}

static void name_of(uint32_t node, char name[16])
{
    (void)snprintf(name, 16, "node-%u", node);
}

/* A node that knows all others already: its records are a private view of one table, so that only what
 * changes costs memory. */
static void settle(struct world *world, struct members *members)
{
    static struct members *known;
    static int fd = -1;
    size_t bytes = world->options.count * sizeof(struct member_record);
    if (members->self == 0) { /* the first one hears of all */
        for (uint32_t i = 1; i < world->options.count; i++) {
            struct member_record_wire wire = {.incarnation = FIRST_INCARNATION};
            members_apply(members, i, &wire, MEMBERS_NO_LINK, world->now_ns);
        }
        fd = memfd_create("members", 0);
        assert_true(fd >= 0 && write(fd, members->records, bytes) == (ssize_t)bytes);
        known = members;
    }
    free(members->records);
    members->records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    assert_true(members->records != MAP_FAILED);
    world->nodes[members->self].template = members->records;
    memmove(members->buckets, known->buckets, sizeof known->buckets);
    memmove(members->statistics.states, known->statistics.states, sizeof known->statistics.states);
    if (members->self == world->options.count - 1) {
        (void)close(fd);
    }
}

void world_start(struct world *world, uint32_t number, uint64_t incarnation)
{
    struct world_node *node = &world->nodes[number];
    struct members_options options;
    struct error error = {0};
    char name[16];
    assert_null(node->members);
    name_of(number, name);
    members_options_default(&options);
    options.own_name = name;
    options.own_incarnation = incarnation;
    options.seed = random_u64(&world->random);
    options.handler = (struct members_handler){
        .context = node, .send = on_send, .changed = on_changed, .neighbour = on_neighbour};
    options.rings = world->rings;
    options.own_index = number;
    node->incarnation = incarnation;
    node->life++;
    assert_int_equal(members_new(&options, world->now_ns, &node->members, &error), STATUS_OK);
    for (uint32_t i = 0; i < world->options.count && world->rings == NULL; i++) {
        name_of(i, name);
        if (i != number && (world->options.knows == NULL || world->options.knows(number, i))) {
            assert_int_equal(members_add(node->members, i, name, &error), STATUS_OK);
        }
    }
    if (world->options.settled) {
        settle(world, node->members);
    }
    timer_heap_set(&world->timers, &node->tick, world->now_ns);
}

void world_start_all(struct world *world)
{
    for (uint32_t i = 0; i < world->options.count; i++) {
        world_start(world, i, FIRST_INCARNATION + (world->options.settled ? 0 : world_draw(world, 1000)));
    }
}

static void add_statistics(struct members_statistics *sum, const struct members *members)
{
    if (members == NULL) {
        return;
    }
    const struct members_statistics *one = &members->statistics;
    sum->messages_sent += one->messages_sent;
    sum->bytes_sent += one->bytes_sent;
    sum->records_sent += one->records_sent;
    sum->votes_cast += one->votes_cast;
    sum->refutations += one->refutations;
}

static void node_end(struct world_node *node)
{
    add_statistics(&node->world->ended, node->members);
    if (node->template != NULL) {
        (void)munmap(node->template, node->world->options.count * sizeof(struct member_record));
        node->members->records = NULL;
        node->template = NULL;
    }
    members_free(node->members);
    node->members = NULL;
    timer_heap_remove(&node->world->timers, &node->tick);
}

void world_kill(struct world *world, uint32_t number)
{
    struct world_node *node = &world->nodes[number];
    node_end(node);
    node->stalled_until_ns = 0;
    for (uint32_t i = 0; i < node->link_count; i++) {
        struct world_link *link = node->links[i];
        uint32_t end = end_of(link, number);
        link->up[end] = false;
        link->wants[end] = false;
        if (link->up[1 - end]) {
            event_add(world, EVENT_LOST, link, 1 - end, NULL, 0, loss_ns(world));
        }
        if (world->down_since != NULL) {
            world->down_since[link->ends[1 - end] * (size_t)world->options.count + number] = 0;
        }
    }
}

void world_leave(struct world *world, uint32_t number)
{
    struct world_node *node = &world->nodes[number];
    members_leave(node->members, world->now_ns);
    world_touch(node);
    world_run(world, 500 * TIME_MS); /* long enough for what was sent */
    for (uint32_t i = 0; i < node->link_count; i++) {
        node->links[i]->cut = true; /* nobody dials it any more */
        end_lost(world, node->links[i], 1 - end_of(node->links[i], number));
    }
    world_kill(world, number);
}

void world_stall(struct world *world, uint32_t number, uint64_t span_ns)
{
    struct world_node *node = &world->nodes[number];
    node->stalled_until_ns = world->now_ns + span_ns;
    world_touch(node);
    for (uint32_t i = 0; i < node->link_count; i++) {
        struct world_link *link = node->links[i];
        uint32_t end = end_of(link, number);
        if (link->up[1 - end]) {
            event_add(world, EVENT_LOST, link, 1 - end, NULL, 0, loss_ns(world));
        }
        if (link->up[end] && span_ns > WORLD_PATIENCE_NS) { /* its own net notices as soon as it runs */
            event_add(world, EVENT_LOST, link, end, NULL, 0, node->stalled_until_ns + 1);
        }
    }
}

/* --- Running --- */

static void on_message(struct world *world, struct event *event)
{
    struct world_link *link = event->link;
    struct world_node *node = &world->nodes[link->ends[event->to]];
    const char *why = NULL;
    if (event->generation != link->generation || !link->up[event->to] || node->members == NULL) {
        return;
    }
    if (!link_passes(world, link)) { /* the session sends it again */
        event_add(world, EVENT_MESSAGE, link, event->to, event->bytes, event->size,
                  world->now_ns + 200 * TIME_MS);
        return;
    }
    if (!members_receive(node->members, link->ends[1 - event->to], event->bytes, event->size, world->now_ns,
                         &why)) {
        fail_msg("node %u refuses a message: %s", node->number, why);
    }
    world_touch(node);
}

static void run_event(struct world *world, struct event *event)
{
    struct world_link *link = event->link;
    bool still = event->generation == link->generation;
    switch (event->kind) {
    case EVENT_MESSAGE:
        on_message(world, event);
        break;
    case EVENT_DIAL:
        on_dial(world, link);
        break;
    case EVENT_LOST:
        if (still && (!link_passes(world, link) ||
                      world->nodes[link->ends[event->to]].stalled_until_ns + TIME_MS >= world->now_ns)) {
            end_lost(world, link, event->to);
        }
        break;
    case EVENT_CLOSE:
        on_close(world, link);
        break;
    }
    free(event);
}

void world_run(struct world *world, uint64_t span_ns)
{
    uint64_t end_ns = world->now_ns + span_ns;
    struct timer_node *first;
    while ((first = timer_heap_first(&world->timers)) != NULL && first->deadline_ns <= end_ns) {
        world->now_ns = first->deadline_ns > world->now_ns ? first->deadline_ns : world->now_ns;
        timer_heap_remove(&world->timers, first);
        uintptr_t at = (uintptr_t)first - (uintptr_t)world->nodes;
        if (at < world->options.count * sizeof *world->nodes) {
            struct world_node *node = &world->nodes[at / sizeof *world->nodes];
            members_tick(node->members, world->now_ns);
            world_touch(node);
        } else {
            run_event(world, (struct event *)((uintptr_t)first - offsetof(struct event, timer)));
        }
    }
    world->now_ns = end_ns;
}

void world_inject(struct world *world, uint32_t from, uint32_t to, const uint8_t *bytes, uint32_t size)
{
    struct world_link *link = world_link_of(world, from, to);
    event_add(world, EVENT_MESSAGE, link, end_of(link, to), bytes, size, world->now_ns + TIME_MS);
}

struct world *world_new(const struct world_options *options)
{
    struct world *world = calloc(1, sizeof *world);
    struct error error;
    assert_non_null(world);
    world->options = *options;
    world->now_ns = 1000 * TIME_S;
    world->watched = WORLD_NONE;
    random_seed(&world->random, options->seed);
    world->nodes = calloc(options->count, sizeof *world->nodes);
    world->second_messages = calloc(options->count, sizeof(uint64_t));
    world->second_bytes = calloc(options->count, sizeof(uint64_t));
    assert_true(world->nodes != NULL && world->second_messages != NULL && world->second_bytes != NULL);
    if (options->count <= WORLD_TIMED_MAX) {
        world->down_since = calloc((size_t)options->count * options->count, sizeof(uint64_t));
        assert_non_null(world->down_since);
    }
    assert_true(timer_heap_reserve(&world->timers, 2 * (size_t)options->count + 64));
    if (options->knows == NULL && options->count > WORLD_SMALL) {
        world->rings = member_rings_new();
        assert_non_null(world->rings);
    }
    for (uint32_t i = 0; i < options->count; i++) {
        char name[16];
        name_of(i, name);
        world->nodes[i] = (struct world_node){.world = world, .number = i, .tick.index = TIMER_NODE_DISARMED};
        if (world->rings != NULL) {
            assert_int_equal(member_rings_add(world->rings, i, name, &error), STATUS_OK);
        }
    }
    return world;
}

void world_free(struct world *world)
{
    for (uint32_t i = 0; i < world->options.count; i++) {
        if (world->nodes[i].members != NULL) {
            node_end(&world->nodes[i]);
        }
    }
    struct timer_node *first;
    while ((first = timer_heap_first(&world->timers)) != NULL) {
        timer_heap_remove(&world->timers, first);
        free((struct event *)((uintptr_t)first - offsetof(struct event, timer)));
    }
    while (world->links != NULL) {
        struct world_link *next = world->links->next;
        free(world->links);
        world->links = next;
    }
    for (uint32_t i = 0; i < world->options.count; i++) {
        free(world->nodes[i].links);
    }
    timer_heap_free(&world->timers);
    member_rings_free(world->rings);
    free(world->down_since);
    free(world->second_messages);
    free(world->second_bytes);
    free(world->nodes);
    free(world);
}

/* --- Answers --- */

static bool is_right(const struct world *world, uint32_t of, uint32_t about)
{
    enum member_state state = members_state(world->nodes[of].members, about);
    const struct world_node *other = &world->nodes[about];
    if (world->options.knows != NULL && !world->options.knows(of, about)) {
        return state == MEMBER_UNKNOWN;
    }
    bool there = other->members != NULL && other->side == world->nodes[of].side;
    return there == (state == MEMBER_UP);
}

uint64_t world_wrong(const struct world *world)
{
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < world->options.count; i++) {
        for (uint32_t j = 0; j < world->options.count && world_is_alive(world, i); j++) {
            wrong += i != j && !is_right(world, i, j);
        }
    }
    return wrong;
}

void world_check(const struct world *world, const char *what)
{
    for (uint32_t i = 0; i < world->options.count; i++) {
        for (uint32_t j = 0; j < world->options.count && world_is_alive(world, i); j++) {
            if (i != j && !is_right(world, i, j)) {
                fail_msg("%s, %u nodes: node %u calls node %u %s; %llu answers are wrong", what,
                         world->options.count, i, j,
                         member_state_text(members_state(world->nodes[i].members, j)),
                         (unsigned long long)world_wrong(world));
            }
        }
    }
}

struct members_statistics world_statistics(const struct world *world)
{
    struct members_statistics sum = world->ended;
    for (uint32_t i = 0; i < world->options.count; i++) {
        add_statistics(&sum, world->nodes[i].members);
    }
    return sum;
}
