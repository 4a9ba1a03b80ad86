#ifndef TESTS_UNIT_MESH_MEMBERS_NODE_H
#define TESTS_UNIT_MESH_MEMBERS_NODE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/members_look.h"

/* One node's membership core. Its neighbours are messages that the test writes. */

#define START_NS (1000 * TIME_S)
#define OWN_INCARNATION 5000000u
#define NODES_MAX 64

struct fixture {
    struct members *members;
    uint64_t now_ns;
    struct member_reader last[NODES_MAX]; /* the last message to each node */
    uint8_t bytes[NODES_MAX][MEMBER_MESSAGE_MAX_BYTES];
    uint32_t sent[NODES_MAX]; /* messages */
    uint32_t changes[NODES_MAX];
    enum member_state state[NODES_MAX]; /* as told */
    bool wanted[NODES_MAX];
    bool can_ask[NODES_MAX];
    uint32_t asked[NODES_MAX]; /* probes */
};

static inline void on_send(void *context, uint32_t node, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct fixture *fixture = context;
    const char *why = "";
    assert_int_equal(now_ns, fixture->now_ns);
    memcpy(fixture->bytes[node], bytes, size);
    if (!member_reader_begin(&fixture->last[node], fixture->bytes[node], size, &why)) {
        fail_msg("what it sends is malformed: %s", why);
    }
    fixture->sent[node]++;
}

static inline void on_changed(void *context, uint32_t node, enum member_state state, uint64_t now_ns)
{
    struct fixture *fixture = context;
    assert_int_equal(now_ns, fixture->now_ns);
    assert_int_not_equal(state, fixture->state[node]);
    fixture->state[node] = state;
    fixture->changes[node]++;
}

static inline void on_neighbour(void *context, uint32_t node, bool is_neighbour, uint64_t now_ns)
{
    struct fixture *fixture = context;
    (void)now_ns;
    assert_int_not_equal(is_neighbour, fixture->wanted[node]);
    fixture->wanted[node] = is_neighbour;
}

static inline bool on_probe(void *context, uint32_t node, uint64_t now_ns)
{
    struct fixture *fixture = context;
    assert_int_equal(now_ns, fixture->now_ns);
    fixture->asked[node]++;
    return fixture->can_ask[node];
}

static inline const char *name_of(uint32_t node)
{
    static char name[16];
    (void)snprintf(name, sizeof name, "node-%u", node);
    return name;
}

/* "own", and `others` nodes. with_probes: it can ask them all. */
static inline void begin_with(struct fixture *fixture, uint32_t others, bool with_probes)
{
    struct members_options options;
    struct error error = {0};
    *fixture = (struct fixture){.now_ns = START_NS};
    members_options_default(&options);
    options.own_name = "own";
    options.own_incarnation = OWN_INCARNATION;
    options.seed = 7;
    options.handler = (struct members_handler){.context = fixture,
                                               .send = on_send,
                                               .changed = on_changed,
                                               .neighbour = on_neighbour,
                                               .probe = with_probes ? on_probe : NULL};
    memset(fixture->can_ask, with_probes, sizeof fixture->can_ask);
    assert_int_equal(members_new(&options, START_NS, &fixture->members, &error), STATUS_OK);
    for (uint32_t i = 0; i < others; i++) {
        assert_int_equal(members_add(fixture->members, i, name_of(i), &error), STATUS_OK);
    }
    members_tick(fixture->members, fixture->now_ns);
}

static inline void begin(struct fixture *fixture, uint32_t others)
{
    begin_with(fixture, others, false);
}

static inline void end(struct fixture *fixture)
{
    members_free(fixture->members);
}

/* Ticks whenever that is due. */
static inline void run(struct fixture *fixture, uint64_t span_ns)
{
    uint64_t end_ns = fixture->now_ns + span_ns;
    while (members_next_deadline_ns(fixture->members) <= end_ns) {
        uint64_t deadline_ns = members_next_deadline_ns(fixture->members);
        fixture->now_ns = deadline_ns > fixture->now_ns ? deadline_ns : fixture->now_ns;
        members_tick(fixture->members, fixture->now_ns);
    }
    fixture->now_ns = end_ns;
}

static inline void linked(struct fixture *fixture, uint32_t node, uint64_t incarnation)
{
    members_linked(fixture->members, node, incarnation, fixture->now_ns);
}

static inline void all_linked(struct fixture *fixture, uint32_t others)
{
    for (uint32_t i = 0; i < others; i++) {
        linked(fixture, i, 100 + i);
    }
    run(fixture, TIME_S);
}

static inline uint64_t id_of(const struct fixture *fixture, uint32_t node)
{
    return member_rings_id(fixture->members->rings, node + 1);
}

static inline uint64_t own_id(const struct fixture *fixture)
{
    return member_rings_id(fixture->members->rings, 0);
}

/* A neighbour says this. */
static inline void hear(struct fixture *fixture, uint32_t from, const struct member_record_wire *record)
{
    struct member_message message;
    member_message_begin(&message);
    assert_true(member_message_add(&message, record));
    assert_true(members_receive(fixture->members, from, message.bytes, message.size, fixture->now_ns, NULL));
}

static inline void hear_votes(struct fixture *fixture, uint32_t from, uint32_t node, uint8_t votes)
{
    hear(fixture, from,
         &(struct member_record_wire){.id = id_of(fixture, node), .incarnation = 100 + node, .votes = votes});
}

/* Whether the last message to the node has a record with that id; *out gets it. */
static inline bool was_told(const struct fixture *fixture, uint32_t node, uint64_t id,
                            struct member_record_wire *out)
{
    for (uint32_t i = 0; fixture->sent[node] > 0 && i < fixture->last[node].count; i++) {
        *out = member_reader_record(&fixture->last[node], i);
        if (out->id == id) {
            return true;
        }
    }
    return false;
}

static inline void forget_sent(struct fixture *fixture)
{
    memset(fixture->sent, 0, sizeof fixture->sent);
}

static inline enum member_state state_of(const struct fixture *fixture, uint32_t node)
{
    enum member_state state = members_state(fixture->members, node);
    assert_int_equal(state, fixture->state[node]);
    return state;
}

static inline struct members_statistics statistics_of(const struct fixture *fixture)
{
    return fixture->members->statistics;
}

#endif
