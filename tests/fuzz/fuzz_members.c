#include "tests/fuzz/input.h"
#include "tests/lib/members_look.h"

/*
 * One node's membership core: news of neighbours and others, links that come and go, and time, in any order.
 * The first byte says how many nodes there are. Of each step, one byte says what happens and to which node.
 */
enum { NODES_MAX = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_members {
    struct members *members;
    uint32_t nodes;
    bool linked[NODES_MAX];
    enum member_state states[NODES_MAX];
};

static void on_send(void *context, uint32_t node, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    const struct fuzz_members *fuzz = context;
    struct member_reader reader;
    (void)now_ns;
    fuzz_require(node < fuzz->nodes && fuzz->linked[node]);
    fuzz_require(member_reader_begin(&reader, bytes, size, NULL));
}

static void on_changed(void *context, uint32_t node, enum member_state state, uint64_t now_ns)
{
    struct fuzz_members *fuzz = context;
    (void)now_ns;
    fuzz_require(node < fuzz->nodes && state != fuzz->states[node]);
    /* What is known is forgotten only of a node whose incarnation was never accepted. */
    fuzz_require(state != MEMBER_UNKNOWN || members_incarnation(fuzz->members, node) == 0);
    fuzz->states[node] = state;
}

static void check(const struct fuzz_members *fuzz)
{
    uint32_t counts[3] = {0};
    uint32_t suspects = 0;
    for (uint32_t i = 0; i < fuzz->nodes; i++) {
        enum member_state state = members_state(fuzz->members, i);
        fuzz_require(state == fuzz->states[i]);
        fuzz_require(!fuzz->linked[i] || state == MEMBER_UP);
        counts[state]++;
        suspects += (fuzz->members->records[i + 1].flags & MEMBER_SUSPECT) != 0;
    }
    for (uint32_t i = 0; i < 3; i++) {
        fuzz_require(counts[i] == fuzz->members->statistics.states[i]);
    }
    fuzz_require(suspects == fuzz->members->suspects);
    uint32_t neighbours = members_neighbour_count(fuzz->members);
    fuzz_require(neighbours <= MEMBERS_NEIGHBOURS_MAX && neighbours <= fuzz->nodes);
    fuzz_require(members_own_incarnation(fuzz->members) <= MEMBER_INCARNATION_MAX);
}

/* A record of a node that is there: the fuzzer would not guess its id. */
static void hear_record(struct fuzz_members *fuzz, struct fuzz_input *input, uint32_t from, uint64_t now_ns)
{
    struct member_message message;
    uint32_t index = fuzz_below(input, fuzz->nodes + 1);
    uint64_t incarnation = 1 + (fuzz_number(input) & (MEMBER_INCARNATION_MAX - 1));
    struct member_record_wire record = {.id = member_rings_id(fuzz->members->rings, index),
                                        .incarnation = incarnation,
                                        .epoch = (uint32_t)fuzz_number(input),
                                        .votes = fuzz_u8(input),
                                        .left = fuzz_below(input, 4) == 3};
    member_message_begin(&message);
    if (fuzz_below(input, 8) == 7) {
        uint32_t buckets[MEMBER_DIGEST_BUCKETS] = {fuzz_u8(input)};
        member_message_add_digest(&message, buckets, true);
    }
    fuzz_require(member_message_add(&message, &record));
    (void)!members_receive(fuzz->members, from, message.bytes, message.size, now_ns, NULL);
}

static void step(struct fuzz_members *fuzz, struct fuzz_input *input, uint64_t now_ns)
{
    uint8_t what = fuzz_u8(input);
    uint32_t node = what / 8 % fuzz->nodes;
    const char *why = NULL;
    size_t taken;
    switch (what % 8) {
    case 0:
        fuzz->linked[node] = true;
        members_linked(fuzz->members, node, 1 + fuzz_number(input) / 2, now_ns);
        break;
    case 1:
        fuzz->linked[node] = false;
        members_unlinked(fuzz->members, node, now_ns);
        break;
    case 2: {
        const uint8_t *bytes = fuzz_bytes(input, 4 + 24u * fuzz_below(input, 12), &taken);
        fuzz_require(members_receive(fuzz->members, node, bytes, taken, now_ns, &why) == (why == NULL));
        break;
    }
    case 3:
        members_leave(fuzz->members, now_ns);
        break;
    default:
        hear_record(fuzz, input, node, now_ns);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size, 0};
    struct fuzz_members fuzz = {.nodes = 1 + fuzz_below(&input, NODES_MAX)};
    struct members_options options;
    uint64_t now_ns = TIME_S;
    members_options_default(&options);
    options.own_name = "own";
    options.own_incarnation = 1000;
    options.handler = (struct members_handler){.context = &fuzz, .send = on_send, .changed = on_changed};
    fuzz_require(members_new(&options, now_ns, &fuzz.members, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < fuzz.nodes; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        fuzz_require(members_add(fuzz.members, i, name, NULL) == STATUS_OK);
    }
    for (uint32_t steps = 0; steps < 300 && !fuzz_ended(&input); steps++) {
        step(&fuzz, &input, now_ns);
        uint64_t end_ns = now_ns + fuzz_below(&input, 64) * (uint64_t)(100 * TIME_MS);
        uint64_t deadline_ns;
        while ((deadline_ns = members_next_deadline_ns(fuzz.members)) <= end_ns) {
            now_ns = deadline_ns > now_ns ? deadline_ns : now_ns;
            members_tick(fuzz.members, now_ns);
        }
        now_ns = end_ns;
        check(&fuzz);
    }
    members_free(fuzz.members);
    return 0;
}
