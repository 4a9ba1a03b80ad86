#include "tests/unit/comm/comm_nodes.h"

/* Node b has a certificate of the cluster, but follows no rule: the test writes its control messages. Node a
 * is real. Its communicator is in each state that b can bring it to. */
static struct world world;

struct heard {
    uint64_t nonce, comm_id; /* of node a's last announcement */
    unsigned verdicts;
};
static struct heard heard;

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct heard *of = context;
    (void)node;
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE && message->announce->nonce != 0) {
        of->nonce = message->announce->nonce;
        of->comm_id = message->announce->comm_id;
    }
    of->verdicts += message->body_case == COMMD__MESH__MESSAGE__BODY_VERDICT;
}

static void hostile_start(void)
{
    memset(&heard, 0, sizeof heard);
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    struct mesh_handler handler = {.context = &heard, .message = on_message};
    mesh_set_handler(world.nodes[1].mesh, MESH_ROOM_COMM, &handler);
}

static void say(Commd__Mesh__Message *message)
{
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, message), STATUS_OK);
    run(&world, TIME_MS);
}

static void say_claim(uint64_t nonce, uint32_t rank, uint64_t comm_id, bool answer)
{
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    Commd__Mesh__Announce body = COMMD__MESH__ANNOUNCE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    terms.size = 2;
    terms.owner_uid = 1000;
    terms.op_timeout_ms = 5000;
    terms.slice_bytes = 1 << 20;
    body.name = "comm";
    body.owner_uid = terms.owner_uid;
    body.terms = &terms;
    body.nonce = nonce;
    body.ranks = &rank;
    body.n_ranks = 1;
    body.revision = 1;
    body.comm_id = comm_id;
    body.answer = answer;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
    message.announce = &body;
    say(&message);
}

/* Node b claims rank 1 and promises comm_id. 0: it promises nothing. */
static void say_announce(uint64_t comm_id, bool answer)
{
    say_claim(77, 1, comm_id, answer);
}

/* Announces ranks that do not ascend. */
static void say_malformed(void)
{
    uint32_t ranks[] = {1, 1};
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    Commd__Mesh__Announce body = COMMD__MESH__ANNOUNCE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    terms.size = 2;
    body.name = "other";
    body.terms = &terms;
    body.nonce = 78;
    body.ranks = ranks;
    body.n_ranks = 2;
    body.revision = 1;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
    message.announce = &body;
    say(&message);
}

static void say_dispute(uint64_t seq)
{
    Commd__Mesh__Dispute body = COMMD__MESH__DISPUTE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    body.comm_id = heard.comm_id;
    body.seq = seq;
    body.ops = 1;
    body.call = "rank 1";
    message.body_case = COMMD__MESH__MESSAGE__BODY_DISPUTE;
    message.dispute = &body;
    say(&message);
}

static void say_verdict(uint64_t seq, bool final)
{
    Commd__Mesh__Verdict body = COMMD__MESH__VERDICT__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    body.comm_id = heard.comm_id;
    body.seq = seq;
    body.ops = 1;
    body.status = STATUS_MISMATCH;
    body.text = "no";
    body.final = final;
    message.body_case = COMMD__MESH__MESSAGE__BODY_VERDICT;
    message.verdict = &body;
    say(&message);
}

static void say_missing(uint64_t seq, Commd__Mesh__Missing__Step step)
{
    Commd__Mesh__Missing body = COMMD__MESH__MISSING__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    body.comm_id = heard.comm_id;
    body.seq = seq;
    body.step = step;
    body.count = UINT32_MAX;
    body.text = "all of you";
    message.body_case = COMMD__MESH__MESSAGE__BODY_MISSING;
    message.missing = &body;
    say(&message);
}

static void say_reach(uint32_t rails)
{
    Commd__Mesh__Reach body = COMMD__MESH__REACH__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    body.comm_id = heard.comm_id;
    body.rails = rails;
    message.body_case = COMMD__MESH__MESSAGE__BODY_REACH;
    message.reach = &body;
    say(&message);
}

static void say_leave(uint64_t last_seq, uint32_t rank)
{
    uint32_t ranks[] = {1, rank};
    Commd__Mesh__Leave body = COMMD__MESH__LEAVE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    body.comm_id = heard.comm_id;
    body.ranks = ranks;
    body.n_ranks = rank != 1 ? 2 : 1;
    body.last_seq = last_seq;
    message.body_case = COMMD__MESH__MESSAGE__BODY_LEAVE;
    message.leave = &body;
    say(&message);
}

static struct member *join_comm(void)
{
    struct comms_terms terms = {
        .name = "comm", .rank = 0, .size = 2, .op_timeout_ms = 5000, .form_timeout_ms = 10000};
    struct member *member = join_as(&world, 0, &terms, 1000);
    run(&world, TIME_MS);
    assert_int_not_equal(heard.nonce, 0);
    return member;
}

/* Node a has promised an id and waits for node b's promise. There are no operations yet to which a message
 * could apply. */
static void test_messages_while_forming(void **state)
{
    (void)state;
    hostile_start();
    struct member *member = join_comm();
    say_announce(0, true);
    assert_int_not_equal(heard.comm_id, 0);
    for (uint64_t seq = 1; seq < 3; seq++) {
        say_dispute(seq);
        say_verdict(seq, false);
    }
    say_dispute(UINT64_MAX - 1);
    assert_int_equal(heard.verdicts, 2); /* node b may have formed, so it may ask */
    assert_int_equal(member->formed_count, 0);
    say_announce(heard.comm_id, true);
    assert_formed(member);
    struct error error;
    assert_int_equal(post_barrier(member, 0, &error), STATUS_OK);
    run(&world, TIME_MS);
    assert_error(&member->results[1], STATUS_MISMATCH, "no");
    world_stop(&world);
}

/* The numbers of operations that were never posted, or that have ended, change nothing. */
static void test_messages_once_formed(void **state)
{
    (void)state;
    struct error error;
    hostile_start();
    struct member *member = join_comm();
    say_announce(0, true);
    say_announce(heard.comm_id, true);
    assert_formed(member);
    assert_int_equal(post_barrier(member, 0, &error), STATUS_OK);
    say_dispute(UINT64_MAX - 1);
    assert_int_equal(member->completed, 0);
    say_dispute(1);
    assert_int_equal(member->completed, 1);
    assert_error(&member->results[1], STATUS_MISMATCH, "op 1 on \"comm\": rank 1; rank 0");
    say_leave(0, 1);
    assert_int_equal(post_barrier(member, 0, &error), STATUS_OK);
    run(&world, TIME_MS);
    assert_error(&member->results[2], STATUS_RANK_LOST, "rank 1 of node b has left after op 0");
    say_dispute(2);
    say_verdict(2, false);
    say_leave(0, 1);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    world_stop(&world);
}

/* After node a has left, no communicator has the id. */
static void test_messages_after_leaving(void **state)
{
    (void)state;
    hostile_start();
    struct member *member = join_comm();
    say_announce(0, true);
    say_announce(heard.comm_id, true);
    assert_formed(member);
    leave(member, COMMS_LEAVE_ORDERLY);
    run(&world, TIME_MS);
    say_dispute(1);
    say_verdict(1, true);
    say_leave(0, 0);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    world_stop(&world);
}

enum costly { DISPUTE, VERDICT, FINAL, LEAVE, BEYOND, ANNOUNCE, SUMMARY, REACH, CASES };

static void say_what_costs(enum costly which)
{
    switch (which) {
    case DISPUTE:
        say_dispute(UINT64_MAX);
        break;
    case VERDICT:
        say_verdict(0, false);
        break;
    case FINAL:
        say_verdict(1, true);
        break;
    case LEAVE:
        say_leave(0, 0);
        break;
    case BEYOND:
        say_leave(0, UINT32_MAX);
        break;
    case ANNOUNCE:
        say_malformed();
        break;
    case SUMMARY: /* the messages that it may send have no effect */
        say_missing(UINT64_MAX, COMMD__MESH__MISSING__STEP__ASKED);
        say_missing(UINT64_MAX, COMMD__MESH__MISSING__STEP__ANSWER);
        say_missing(0, COMMD__MESH__MISSING__STEP__ANSWER);
        assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
        say_missing(1, COMMD__MESH__MISSING__STEP__SUMMARY);
        break;
    case REACH: /* this node has one rail: the first message has no effect */
        say_reach(UINT32_MAX);
        assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
        say_reach(0);
        break;
    case CASES:
        break;
    }
}

/* A message that no correct node sends, whatever its users call, ends the connection. The communicators with
 * ranks on both nodes fail, and say why. */
static void test_what_costs_the_connection(void **state)
{
    (void)state;
    static const char *const whats[CASES] = {
        "a dispute on operations that cannot exist",           "a verdict on operations that cannot exist",
        "a verdict that it may not give, or not to this node", "the leave of a rank that it does not have",
        "the leave of a rank that it does not have",           "a malformed announcement of ranks",
        "a list of missing ranks that it may not send",        "a second list of the rails that it reaches"};
    for (enum costly which = 0; which < CASES; which++) {
        struct mesh_node_info info;
        hostile_start();
        struct member *member = join_comm();
        say_announce(0, true);
        say_announce(heard.comm_id, true);
        assert_formed(member);
        say_what_costs(which);
        assert_false(mesh_node_is_up(world.nodes[0].mesh, 0));
        run(&world, TIME_MS);
        mesh_node_info(world.nodes[0].mesh, 0, &info);
        assert_non_null(strstr(info.last_error, whats[which]));
        if (member->aborted_count != 1) {
            fail_msg("%d: %s", which, info.last_error);
        }
        assert_error(&member->aborted, STATUS_NODE_LOST, whats[which]);
        assert_non_null(strstr(member->aborted.text, "node b"));
        run(&world, MESH_HOLD_OFF_MIN_NS / 2);
        assert_false(mesh_node_is_up(world.nodes[0].mesh, 0));
        run(&world, 2 * MESH_HOLD_OFF_MIN_NS);
        assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
        world_stop(&world);
    }
}

static unsigned logged_count;

static void count_lines(void *context, enum log_level level, const char *line)
{
    const char *wanted = context;
    logged_count += level <= LOG_LEVEL_INFO && strstr(line, wanted) != NULL;
}

/* However often a node repeats something, the log gets a few lines only. */
static void test_refusals_do_not_flood_the_log(void **state)
{
    (void)state;
    hostile_start();
    struct member *member = join_comm();
    say_announce(0, true);
    say_announce(heard.comm_id, true);
    assert_formed(member);
    logged_count = 0;
    log_set_level(LOG_LEVEL_INFO);
    log_set_sink(count_lines, "node b refused");
    for (uint64_t nonce = 100; nonce < 600; nonce++) {
        say_claim(nonce, 0, 0, false);
    }
    log_set_sink(NULL, NULL);
    log_set_level(LOG_LEVEL_ERROR);
    assert_in_range(logged_count, 1, 25);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    assert_int_equal(member->aborted_count, 0);
    world_stop(&world);
}

/* Refuses with terms of node b's that have that size; size 0: it shows no terms. rank UINT32_MAX: it refuses
 * all of node a's ranks. */
static void say_refuse(uint64_t nonce, uint32_t size, uint32_t rank)
{
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    Commd__Mesh__Refuse body = COMMD__MESH__REFUSE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    terms.size = size;
    terms.owner_uid = 1000;
    terms.op_timeout_ms = 5000;
    terms.slice_bytes = 1 << 20;
    body.name = "comm";
    body.owner_uid = 1000;
    body.nonce = nonce;
    body.status = STATUS_PERMISSION;
    body.text = "because";
    body.ranks = &rank;
    body.n_ranks = rank != UINT32_MAX;
    body.terms = size != 0 ? &terms : NULL;
    message.body_case = COMMD__MESH__MESSAGE__BODY_REFUSE;
    message.refuse = &body;
    say(&message);
}

/* Node b refuses node a for a fact that it shows, and that contradicts node a's ranks or terms. */
static void test_refusals_with_a_fact(void **state)
{
    (void)state;
    static const struct {
        uint32_t size, rank;
        enum status status;
    } facts[] = {{2, 0, STATUS_ALREADY_EXISTS}, {3, UINT32_MAX, STATUS_MISMATCH}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        hostile_start();
        struct member *member = join_comm();
        say_refuse(heard.nonce + 1, facts[i].size, facts[i].rank); /* of another incarnation */
        say_refuse(heard.nonce, 2, 1);                             /* a rank that node a does not have */
        run(&world, TIME_S);
        assert_int_equal(member->formed_count, 0);
        say_refuse(heard.nonce, facts[i].size, facts[i].rank);
        run(&world, TIME_S);
        assert_int_equal(member->formed_count, 1);
        assert_error(&member->formed, facts[i].status, "because");
        assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
        world_stop(&world);
    }
}

/* A refusal without such a fact does not count, and ends the connection. */
static void test_refusals_without_a_fact(void **state)
{
    (void)state;
    static const struct {
        uint32_t size, rank;
        const char *what;
    } lies[] = {{0, UINT32_MAX, "a refusal that shows no terms"},
                {0, 0, "a refusal that shows no terms"},
                {COMM_SIZE_MAX + 1, UINT32_MAX, "a refusal that shows no terms"},
                {2, UINT32_MAX, "a refusal for terms that are the same"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct mesh_node_info info;
        hostile_start();
        struct member *member = join_comm();
        say_refuse(heard.nonce, lies[i].size, lies[i].rank);
        run(&world, TIME_MS);
        mesh_node_info(world.nodes[0].mesh, 0, &info);
        assert_non_null(strstr(info.last_error, lies[i].what));
        run(&world, TIME_S);
        assert_int_equal(member->formed_count, 0);
        world_stop(&world);
    }
}

/* A refusal from a node on which the user may have no ranks does not count either. */
static void test_refusals_of_a_node_without_the_user(void **state)
{
    (void)state;
    hostile_start();
    struct member *member = join_comm();
    world.nodes[0].limit.uid = 1000;
    world.nodes[0].limit.nodes = "a";
    say_refuse(heard.nonce, 3, UINT32_MAX);
    say_refuse(heard.nonce, 2, 0);
    run(&world, TIME_S);
    assert_int_equal(member->formed_count, 0);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_while_forming),
        cmocka_unit_test(test_messages_once_formed),
        cmocka_unit_test(test_messages_after_leaving),
        cmocka_unit_test(test_what_costs_the_connection),
        cmocka_unit_test(test_refusals_do_not_flood_the_log),
        cmocka_unit_test(test_refusals_with_a_fact),
        cmocka_unit_test(test_refusals_without_a_fact),
        cmocka_unit_test(test_refusals_of_a_node_without_the_user),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
