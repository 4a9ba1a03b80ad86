#include "daemon/base/hash.h"
#include "proto/little_endian.h"
#include "tests/unit/mesh/members_node.h"

/* Which nodes there are, how they are ordered, and what is refused of messages. */

/* --- Nodes --- */

static void test_a_node_costs_at_most_64_bytes(void **state)
{
    (void)state;
    assert_true(sizeof(struct member_record) + 2 * sizeof(uint16_t) + MEMBER_RINGS_BYTES_PER_NODE <= 64);
}

static void test_wrong_options_are_refused(void **state)
{
    (void)state;
    struct members_options options;
    struct members *members;
    struct error error;
    members_options_default(&options);
    options.own_name = "own";
    assert_int_equal(members_new(&options, 0, &members, &error), STATUS_INVALID_ARGUMENT);
    options.own_incarnation = MEMBER_INCARNATION_MAX + 1;
    assert_int_equal(members_new(&options, 0, &members, &error), STATUS_INVALID_ARGUMENT);
    options.own_incarnation = 1;
    options.own_name = "";
    assert_int_equal(members_new(&options, 0, &members, &error), STATUS_INVALID_ARGUMENT);
}

static void test_names_are_added_once(void **state)
{
    (void)state;
    struct fixture fixture;
    struct error error;
    char long_name[65] = {0};
    begin(&fixture, 2);
    assert_int_equal(members_add(fixture.members, 2, "own", &error), STATUS_ALREADY_EXISTS);
    assert_int_equal(members_add(fixture.members, 2, "node-0", &error), STATUS_ALREADY_EXISTS);
    assert_int_equal(members_add(fixture.members, 0, "other", &error), STATUS_ALREADY_EXISTS);
    assert_int_equal(members_add(fixture.members, 2, "", &error), STATUS_INVALID_ARGUMENT);
    memset(long_name, 'a', 64);
    assert_int_equal(members_add(fixture.members, 2, long_name, &error), STATUS_INVALID_ARGUMENT);
    long_name[63] = '\0';
    assert_int_equal(members_add(fixture.members, 2, long_name, &error), STATUS_OK);
    assert_int_equal(members_add(fixture.members, MEMBERS_NODES_MAX, "x", &error), STATUS_LIMIT);
    assert_int_equal(members_add(fixture.members, MEMBERS_NODES_MAX - 1, "x", &error), STATUS_OK);
    members_remove(fixture.members, 0);
    members_remove(fixture.members, 0);
    assert_int_equal(members_add(fixture.members, 0, "other", &error), STATUS_OK);
    assert_int_equal(statistics_of(&fixture).states[MEMBER_UNKNOWN], 4);
    end(&fixture);
}

/* hash_bytes mixes one word after the other, so a second name with the same hash can be computed. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void test_two_names_of_one_hash_are_refused(void **state)
{
    (void)state;
    static const uint64_t step = 0x9e3779b97f4a7c15u;
    const uint64_t seed = 0x6d656d62657273u;
    char first[17] = "aaaaaaaabbbbbbbb", second[17] = {0};
    struct fixture fixture;
    struct error error;
    uint64_t begin_hash = mix(seed + step) ^ mix(16);
    for (uint64_t word = 0x6161616161616162u; strlen(second) != 16; word++) {
        uint64_t one = mix((begin_hash + step) ^ get_u64_le((const uint8_t *)first));
        uint64_t other = mix((begin_hash + step) ^ word);
        put_u64_le((uint8_t *)second, word);
        put_u64_le((uint8_t *)second + 8,
                   get_u64_le((const uint8_t *)first + 8) ^ (one + step) ^ (other + step));
    }
    assert_string_not_equal(first, second);
    assert_int_equal(hash_bytes(seed, first, 16), hash_bytes(seed, second, 16));
    begin(&fixture, 2);
    assert_int_equal(members_add(fixture.members, 2, first, &error), STATUS_OK);
    assert_int_equal(members_add(fixture.members, 3, second, &error), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(error.text, "hash"));
    end(&fixture);
}

static void test_up_to_nine_nodes_are_all_neighbours(void **state)
{
    (void)state;
    for (uint32_t others = 0; others <= 40; others++) {
        struct fixture fixture;
        uint32_t neighbours = 0;
        begin(&fixture, others);
        for (uint32_t i = 0; i < others; i++) {
            assert_int_equal(members_is_neighbour(fixture.members, i), fixture.wanted[i]);
            neighbours += fixture.wanted[i];
        }
        assert_false(members_is_neighbour(fixture.members, others));
        if (others <= 8) {
            assert_int_equal(neighbours, others);
        } else {
            assert_in_range(neighbours, 2, 8);
        }
        end(&fixture);
    }
}

static void test_rings_are_the_same_on_all_nodes(void **state)
{
    (void)state;
    struct member_rings *rings[2] = {member_rings_new(), member_rings_new()};
    struct error error;
    for (uint32_t i = 0; i < 100; i++) { /* in two orders, and one of them loses and gains some */
        assert_int_equal(member_rings_add(rings[0], i, name_of(i), &error), STATUS_OK);
        assert_int_equal(member_rings_add(rings[1], 99 - i, name_of(99 - i), &error), STATUS_OK);
    }
    for (uint32_t i = 0; i < 100; i += 3) {
        uint64_t id = member_rings_id(rings[1], i);
        member_rings_remove(rings[1], i);
        assert_int_equal(member_rings_find(rings[1], id), MEMBER_RINGS_NONE);
    }
    for (uint32_t i = 0; i < 100; i += 3) {
        assert_int_equal(member_rings_add(rings[1], i, name_of(i), &error), STATUS_OK);
    }
    assert_int_equal(member_rings_count(rings[1]), 100);
    for (uint32_t ring = 0; ring < MEMBER_RINGS_COUNT; ring++) {
        uint32_t differ = 0;
        for (uint32_t i = 0; i < 100; i++) {
            uint32_t place = member_rings_place(rings[0], ring, i);
            assert_int_equal(member_rings_at(rings[1], ring, place), i);
            assert_int_equal(member_rings_find(rings[1], member_rings_id(rings[0], i)), i);
            differ += place != member_rings_place(rings[0], (ring + 1) % MEMBER_RINGS_COUNT, i);
        }
        assert_true(differ > 80);
    }
    member_rings_free(rings[0]);
    member_rings_free(rings[1]);
}

static void test_a_removed_node_is_forgotten(void **state)
{
    (void)state;
    struct fixture fixture;
    struct error error;
    begin(&fixture, 3);
    all_linked(&fixture, 3);
    members_remove(fixture.members, 1);
    assert_int_equal(members_state(fixture.members, 1), MEMBER_UNKNOWN);
    assert_false(members_is_neighbour(fixture.members, 1));
    assert_int_equal(statistics_of(&fixture).states[MEMBER_UP], 2);
    hear_votes(&fixture, 0, 2, 0);
    fixture.wanted[1] = false;
    fixture.state[1] = MEMBER_UNKNOWN;
    assert_int_equal(members_add(fixture.members, 1, "node-1", &error), STATUS_OK);
    assert_true(members_is_neighbour(fixture.members, 1));
    assert_int_equal(members_incarnation(fixture.members, 1), 0);
    run(&fixture, 10 * TIME_S);
    end(&fixture);
}

/* --- Input --- */

static bool takes(struct fixture *fixture, const uint8_t *bytes, size_t size)
{
    const char *why = NULL;
    bool taken = members_receive(fixture->members, 0, bytes, size, fixture->now_ns, &why);
    assert_true(taken == (why == NULL));
    return taken;
}

static void test_malformed_messages_are_refused(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_message message;
    uint32_t buckets[MEMBER_DIGEST_BUCKETS] = {0};
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    member_message_begin(&message);
    assert_true(member_message_is_empty(&message));
    assert_false(takes(&fixture, message.bytes, message.size)); /* it says nothing */
    member_message_add_digest(&message, buckets, false);
    for (uint32_t i = 0; i < MEMBER_RECORDS_MAX; i++) {
        assert_true(member_message_add(
            &message, &(struct member_record_wire){.id = i + 1, .incarnation = 1, .votes = 0xff}));
    }
    assert_false(member_message_add(&message, &(struct member_record_wire){.id = 1, .incarnation = 1}));
    assert_true(message.size <= MEMBER_MESSAGE_MAX_BYTES);
    assert_true(takes(&fixture, message.bytes, message.size));
    assert_int_equal(statistics_of(&fixture).records_unknown_node, MEMBER_RECORDS_MAX);
    for (size_t size = 0; size < message.size; size++) {
        assert_false(takes(&fixture, message.bytes, size));
    }
    static const struct {
        uint32_t at;
        uint8_t byte;
    } wrong[] = {{0, 2},
                 {1, 0},
                 {1, 2},
                 {1, 5},
                 {2, 1},
                 {3, 0xff},
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES, 0},         /* no id */
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES + 8, 0},     /* no incarnation */
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES + 15, 0x80}, /* too high an incarnation */
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES + 21, 2},
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES + 22, 1},
                 {MEMBER_HEADER_BYTES + MEMBER_DIGEST_BYTES + 23, 1}};
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t right = message.bytes[wrong[i].at];
        message.bytes[wrong[i].at] = wrong[i].byte;
        assert_false(takes(&fixture, message.bytes, message.size));
        message.bytes[wrong[i].at] = right;
    }
    assert_true(takes(&fixture, message.bytes, message.size));
    end(&fixture);
}

/* A neighbour may send 8,000 records a second, and after a silence those of 16 seconds at once. */
static void test_a_flood_is_a_violation(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_message message;
    begin(&fixture, 8);
    all_linked(&fixture, 7); /* the last one is a stranger */
    member_message_begin(&message);
    for (uint32_t i = 0; i < 312; i++) {
        assert_true(member_message_add(&message, &(struct member_record_wire){.id = 1, .incarnation = 1}));
    }
    for (uint32_t i = 0; i < 400; i++) {
        assert_true(takes(&fixture, message.bytes, message.size));
    }
    assert_false(takes(&fixture, message.bytes, message.size));
    run(&fixture, TIME_S);
    for (uint32_t i = 0; i < 25; i++) {
        assert_true(takes(&fixture, message.bytes, message.size));
    }
    assert_false(takes(&fixture, message.bytes, message.size));
    end(&fixture);
    /* The budget of nodes that are no neighbours is one for all, so more is dropped without blame. */
    begin(&fixture, 40);
    uint32_t stranger = 0;
    while (fixture.wanted[stranger]) {
        stranger++;
    }
    for (uint32_t i = 0; i < 410; i++) {
        assert_true(
            members_receive(fixture.members, stranger, message.bytes, message.size, fixture.now_ns, NULL));
    }
    assert_int_equal(statistics_of(&fixture).messages_dropped, 10);
    end(&fixture);
}

/* What one node was sent in a run. */
struct stream {
    uint32_t node;
    uint32_t messages, records;
    uint32_t vote_in; /* the number of the message that had a vote; 0: none yet */
    uint64_t last_ns;
};

static void on_stream(void *context, uint32_t node, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct stream *stream = context;
    struct member_reader reader;
    assert_int_equal(node, stream->node);
    assert_true(member_reader_begin(&reader, bytes, size, NULL));
    assert_true(stream->last_ns == 0 || now_ns - stream->last_ns >= 50 * TIME_MS);
    stream->last_ns = now_ns;
    stream->messages++;
    stream->records += reader.count;
    for (uint32_t i = 0; i < reader.count; i++) {
        stream->vote_in = member_reader_record(&reader, i).votes != 0 ? stream->messages : stream->vote_in;
    }
}

static void on_any_change(void *context, uint32_t node, enum member_state state, uint64_t now_ns)
{
    (void)context, (void)node, (void)state, (void)now_ns;
}

/* A link gets one message in a batch, of at most 8 KiB, and votes first. */
static void test_much_news_goes_in_bounded_messages(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    struct members_options options;
    struct stream stream = {0};
    struct fixture fixture = {.now_ns = START_NS};
    struct error error;
    struct member_message message;
    uint32_t buckets[MEMBER_DIGEST_BUCKETS] = {0};
    members_options_default(&options);
    options.own_name = "own";
    options.own_incarnation = OWN_INCARNATION;
    options.handler =
        (struct members_handler){.context = &stream, .send = on_stream, .changed = on_any_change};
    assert_int_equal(members_new(&options, START_NS, &fixture.members, &error), STATUS_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(members_add(fixture.members, i, name_of(i), &error), STATUS_OK);
    }
    while (!members_is_neighbour(fixture.members, stream.node)) {
        stream.node++;
    }
    for (uint32_t i = 0; i < MANY; i++) { /* a budget has room for that many */
        hear_votes(&fixture, stream.node, i, 0);
    }
    linked(&fixture, stream.node, 100 + stream.node);
    run(&fixture, TIME_S);
    assert_int_equal(stream.messages, 1);
    member_message_begin(&message);
    member_message_add_digest(&message, buckets, false);
    assert_true(
        members_receive(fixture.members, stream.node, message.bytes, message.size, fixture.now_ns, NULL));
    run(&fixture, 300 * TIME_MS);
    assert_in_range(stream.records, MEMBER_RECORDS_MAX, 7 * MEMBER_RECORDS_MAX);
    uint32_t victim = stream.node == 7 ? 8 : 7;
    hear_votes(&fixture, victim, victim, 1);
    uint32_t before = stream.messages;
    run(&fixture, 3 * TIME_S);
    assert_int_equal(stream.vote_in, before + 1);
    assert_in_range(stream.records, MANY + 1, MANY + 3);
    assert_in_range(stream.messages, MANY / MEMBER_RECORDS_MAX + 1, MANY / MEMBER_RECORDS_MAX + 4);
    end(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_costs_at_most_64_bytes),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_names_are_added_once),
        cmocka_unit_test(test_two_names_of_one_hash_are_refused),
        cmocka_unit_test(test_up_to_nine_nodes_are_all_neighbours),
        cmocka_unit_test(test_rings_are_the_same_on_all_nodes),
        cmocka_unit_test(test_a_removed_node_is_forgotten),
        cmocka_unit_test(test_malformed_messages_are_refused),
        cmocka_unit_test(test_a_flood_is_a_violation),
        cmocka_unit_test(test_much_news_goes_in_bounded_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
