#include "tests/unit/mesh/members_node.h"

/* Who is a member: states, our votes, and what is said of us. */

/* --- States --- */

static void test_a_link_makes_a_node_up(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 2);
    assert_int_equal(state_of(&fixture, 0), MEMBER_UNKNOWN);
    linked(&fixture, 0, 17);
    assert_int_equal(state_of(&fixture, 0), MEMBER_UP);
    assert_int_equal(members_incarnation(fixture.members, 0), 17);
    end(&fixture);
}

/* Who is linked hears of us at once, and of who else is there. */
static void test_a_new_link_hears_what_we_know(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 3);
    linked(&fixture, 0, 17);
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 0, own_id(&fixture), &record));
    assert_int_equal(record.incarnation, OWN_INCARNATION);
    assert_non_null(fixture.last[0].digest);
    linked(&fixture, 1, 18);
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 0, id_of(&fixture, 1), &record));
    assert_int_equal(record.incarnation, 18);
    assert_false(was_told(&fixture, 1, id_of(&fixture, 0), &record)); /* that is what the digest is for */
    end(&fixture);
}

static void test_digests_that_differ_are_answered(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_message message;
    struct member_record_wire record;
    uint32_t buckets[MEMBER_DIGEST_BUCKETS] = {0};
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    forget_sent(&fixture);
    member_message_begin(&message);
    member_message_add_digest(&message, fixture.members->buckets, true);
    assert_true(members_receive(fixture.members, 0, message.bytes, message.size, fixture.now_ns, NULL));
    run(&fixture, TIME_S + TIME_MS);
    assert_int_equal(fixture.sent[0], 0);
    member_message_begin(&message);
    member_message_add_digest(&message, buckets, true);
    assert_true(members_receive(fixture.members, 0, message.bytes, message.size, fixture.now_ns, NULL));
    assert_true(members_receive(fixture.members, 0, message.bytes, message.size, fixture.now_ns, NULL));
    run(&fixture, TIME_S);
    assert_int_equal(fixture.sent[0], 1);
    assert_int_equal(fixture.last[0].count, 9);
    assert_non_null(fixture.last[0].digest);
    assert_false(fixture.last[0].wants_digest);
    assert_true(was_told(&fixture, 0, id_of(&fixture, 7), &record));
    end(&fixture);
}

static void test_news_goes_once_to_all_but_its_sender(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    members_unlinked(fixture.members, 7, fixture.now_ns);
    run(&fixture, TIME_S);
    forget_sent(&fixture);
    struct member_record_wire news = {.id = id_of(&fixture, 7), .incarnation = 200};
    hear(&fixture, 2, &news);
    hear(&fixture, 3, &news);
    run(&fixture, 200 * TIME_MS);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(fixture.sent[i], i != 2 && i != 3);
        assert_int_equal(was_told(&fixture, i, id_of(&fixture, 7), &record), i != 2 && i != 3);
    }
    hear(&fixture, 4, &news);
    news.incarnation = 107; /* what was */
    hear(&fixture, 5, &news);
    run(&fixture, TIME_S);
    assert_int_equal(fixture.sent[0], 1);
    assert_int_equal(members_incarnation(fixture.members, 7), 200);
    end(&fixture);
}

static void test_a_lost_neighbour_gets_our_vote_at_once(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    members_unlinked(fixture.members, 7, fixture.now_ns);
    assert_int_equal(state_of(&fixture, 7), MEMBER_UP);
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 0, id_of(&fixture, 7), &record));
    assert_int_equal(__builtin_popcount(record.votes), 1);
    end(&fixture);
}

/* A node that is lost to one neighbour comes back. It hears of the vote from us. */
static void test_a_node_hears_of_the_votes_against_it(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    members_unlinked(fixture.members, 7, fixture.now_ns);
    run(&fixture, TIME_S);
    linked(&fixture, 7, 107);
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 7, id_of(&fixture, 7), &record));
    assert_int_not_equal(record.votes, 0);
    hear(&fixture, 7, &(struct member_record_wire){.id = id_of(&fixture, 7), .incarnation = 107, .epoch = 1});
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 0, id_of(&fixture, 7), &record));
    assert_int_equal(record.votes, 0);
    assert_int_equal(record.epoch, 1);
    assert_int_equal(fixture.changes[7], 1);
    end(&fixture);
}

/* How many votes make a node down at once, in clusters of each size. */
static void test_few_observers_need_a_majority(void **state)
{
    static const uint32_t enough[] = {0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3}; /* by the count of nodes */
    (void)state;
    for (uint32_t nodes = 2; nodes < 12; nodes++) {
        for (uint32_t votes = 1; votes <= 3; votes++) {
            struct fixture fixture;
            begin(&fixture, nodes - 1);
            linked(&fixture, 0, 100);
            hear_votes(&fixture, 0, nodes - 2, 0);
            members_unlinked(fixture.members, 0, fixture.now_ns);
            hear_votes(&fixture, 0, nodes - 2, (uint8_t)(0xe0u << (3 - votes)));
            if (nodes > 2) {
                assert_int_equal(state_of(&fixture, nodes - 2),
                                 votes >= enough[nodes] ? MEMBER_DOWN : MEMBER_UP);
            } else {
                assert_int_equal(state_of(&fixture, 0), MEMBER_DOWN);
            }
            end(&fixture);
        }
    }
}

static void test_too_few_votes_count_after_the_suspicion_time(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 20);
    linked(&fixture, 0, 100);
    hear_votes(&fixture, 0, 5, 0);
    run(&fixture, TIME_S);
    hear_votes(&fixture, 0, 5, 1);
    run(&fixture, 2 * TIME_S);
    hear_votes(&fixture, 0, 5, 2); /* another one does not start it again */
    run(&fixture, 2 * TIME_S - 10 * TIME_MS);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    run(&fixture, 20 * TIME_MS);
    assert_int_equal(state_of(&fixture, 5), MEMBER_DOWN);
    assert_int_equal(fixture.changes[5], 2);
    end(&fixture);
}

static void test_a_refutation_ends_suspicion_and_loss(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 20);
    linked(&fixture, 0, 100);
    hear_votes(&fixture, 0, 5, 1);
    struct member_record_wire refuted = {.id = id_of(&fixture, 5), .incarnation = 105, .epoch = 1};
    hear(&fixture, 0, &refuted);
    run(&fixture, 10 * TIME_S);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    hear_votes(&fixture, 0, 5, 7); /* of the earlier epoch */
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    refuted.votes = 7;
    hear(&fixture, 0, &refuted);
    assert_int_equal(state_of(&fixture, 5), MEMBER_DOWN);
    refuted = (struct member_record_wire){.id = refuted.id, .incarnation = 106};
    hear(&fixture, 0, &refuted);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    end(&fixture);
}

static void test_votes_beyond_enough_are_no_news(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 20);
    linked(&fixture, 0, 100);
    hear_votes(&fixture, 0, 5, 7);
    assert_int_equal(fixture.members->records[6].votes, 7);
    hear_votes(&fixture, 0, 5, 8);
    assert_int_equal(fixture.members->records[6].votes, 7);
    end(&fixture);
}

static void test_a_link_of_ours_counts_more_than_votes(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    hear_votes(&fixture, 0, 5, 0xff);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    members_unlinked(fixture.members, 5, fixture.now_ns);
    assert_int_equal(state_of(&fixture, 5), MEMBER_DOWN);
    linked(&fixture, 5, 105);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    end(&fixture);
}

static void test_a_goodbye_counts_at_once(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    hear(&fixture, 5,
         &(struct member_record_wire){.id = id_of(&fixture, 5), .incarnation = 105, .left = true});
    assert_false(members_has_left(fixture.members, 5));
    members_unlinked(fixture.members, 5, fixture.now_ns);
    assert_int_equal(state_of(&fixture, 5), MEMBER_DOWN);
    assert_true(members_has_left(fixture.members, 5));
    assert_int_equal(statistics_of(&fixture).votes_cast, 0);
    forget_sent(&fixture);
    members_leave(fixture.members, fixture.now_ns);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(was_told(&fixture, i, own_id(&fixture), &record), i != 5);
        assert_true(i == 5 || record.left);
    }
    members_leave(fixture.members, fixture.now_ns);
    assert_int_equal(fixture.sent[0], 1);
    end(&fixture);
}

/* --- Our votes --- */

/* An observer whose link stays lost votes again, but each time after twice the wait. */
static void test_each_refuted_vote_doubles_the_wait(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    members_unlinked(fixture.members, 7, fixture.now_ns);
    for (uint32_t turn = 1; turn <= 8; turn++) {
        assert_int_equal(statistics_of(&fixture).votes_cast, turn);
        hear(&fixture, 0,
             &(struct member_record_wire){.id = id_of(&fixture, 7), .incarnation = 107, .epoch = turn});
        run(&fixture, (4 * TIME_S << (turn < 6 ? turn : 6)) - TIME_S);
        assert_int_equal(statistics_of(&fixture).votes_cast, turn);
        run(&fixture, TIME_S);
    }
    end(&fixture);
}

static void test_a_neighbour_that_never_came_gets_a_vote(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 8);
    linked(&fixture, 0, 100);
    run(&fixture, 30 * TIME_S);
    assert_int_equal(statistics_of(&fixture).votes_cast, 0); /* of none of them an UP is known */
    hear_votes(&fixture, 0, 7, 0);
    run(&fixture, 8 * TIME_S - TIME_MS);
    assert_int_equal(statistics_of(&fixture).votes_cast, 0);
    run(&fixture, 2 * TIME_MS);
    assert_int_equal(statistics_of(&fixture).votes_cast, 1);
    end(&fixture);
}

/* The node is back with a new life before its old link is lost. */
static void test_a_lost_link_to_an_earlier_life_gets_no_vote(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    hear(&fixture, 0, &(struct member_record_wire){.id = id_of(&fixture, 7), .incarnation = 900});
    members_unlinked(fixture.members, 7, fixture.now_ns);
    run(&fixture, 3 * TIME_S);
    linked(&fixture, 7, 900);
    run(&fixture, 10 * TIME_S);
    assert_int_equal(statistics_of(&fixture).votes_cast, 0);
    end(&fixture);
}

static void test_links_lost_in_a_stall_get_a_further_patience(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    fixture.now_ns += 5 * TIME_S; /* no tick */
    members_unlinked(fixture.members, 6, fixture.now_ns);
    members_unlinked(fixture.members, 7, fixture.now_ns);
    members_tick(fixture.members, fixture.now_ns);
    assert_int_equal(statistics_of(&fixture).stalls, 1);
    run(&fixture, 3 * TIME_S);
    linked(&fixture, 6, 106);
    run(&fixture, TIME_S - TIME_MS);
    assert_int_equal(statistics_of(&fixture).votes_cast, 0);
    run(&fixture, 2 * TIME_MS);
    assert_int_equal(statistics_of(&fixture).votes_cast, 1);
    assert_int_equal(state_of(&fixture, 6), MEMBER_UP);
    end(&fixture);
}

static void test_a_stall_prolongs_suspicions(void **state)
{
    (void)state;
    struct fixture fixture;
    begin(&fixture, 20);
    linked(&fixture, 0, 100);
    run(&fixture, TIME_S);
    hear_votes(&fixture, 0, 5, 1);
    fixture.now_ns += 10 * TIME_S;
    members_tick(fixture.members, fixture.now_ns);
    assert_int_equal(state_of(&fixture, 5), MEMBER_UP);
    run(&fixture, 4 * TIME_S + TIME_MS);
    assert_int_equal(state_of(&fixture, 5), MEMBER_DOWN);
    end(&fixture);
}

/* If the node after us on a ring is down, the next one is a neighbour, too. */
static void test_gone_neighbours_are_replaced(void **state)
{
    (void)state;
    struct fixture fixture;
    uint32_t before = 0, after = 0;
    begin(&fixture, 40);
    for (uint32_t i = 0; i < 40; i++) {
        before += fixture.wanted[i];
        hear_votes(&fixture, 0, i, 0);
    }
    members_tick(fixture.members, fixture.now_ns);
    bool first[40];
    memcpy(first, fixture.wanted, sizeof first);
    for (uint32_t i = 0; i < 40; i++) {
        if (first[i]) {
            hear_votes(&fixture, 0, i, 7);
        }
    }
    members_tick(fixture.members, fixture.now_ns);
    for (uint32_t i = 0; i < 40; i++) {
        assert_true(fixture.wanted[i] || !first[i]); /* they are still dialled */
        after += fixture.wanted[i];
    }
    assert_in_range(after, before + 4, 16);
    for (uint32_t i = 0; i < 40; i++) {
        if (first[i]) {
            linked(&fixture, i, 100 + i);
        }
    }
    assert_memory_equal(first, fixture.wanted, sizeof first);
    end(&fixture);
}

/* --- Ourselves --- */

static void test_what_is_said_of_us_is_refuted(void **state)
{
    (void)state;
    struct fixture fixture;
    struct member_record_wire record;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    struct member_record_wire said = {.id = own_id(&fixture), .incarnation = OWN_INCARNATION};
    hear(&fixture, 0, &said);
    said.incarnation--; /* an earlier life */
    said.votes = 0xff;
    hear(&fixture, 0, &said);
    assert_int_equal(statistics_of(&fixture).refutations, 0);
    said.incarnation++;
    hear(&fixture, 0, &said);
    run(&fixture, 200 * TIME_MS);
    assert_true(was_told(&fixture, 0, own_id(&fixture), &record));
    assert_true(record.epoch == 1 && record.votes == 0 && record.incarnation == OWN_INCARNATION);
    said = (struct member_record_wire){.id = said.id, .incarnation = OWN_INCARNATION, .epoch = 5};
    hear(&fixture, 0, &said);
    assert_int_equal(statistics_of(&fixture).refutations, 1); /* at most one a second */
    run(&fixture, TIME_S);
    assert_int_equal(members_own_epoch(fixture.members), 6);
    said = (struct member_record_wire){.id = said.id, .incarnation = OWN_INCARNATION + 50, .epoch = 3};
    hear(&fixture, 0, &said);
    run(&fixture, 2 * TIME_S);
    assert_int_equal(members_own_incarnation(fixture.members), OWN_INCARNATION + 51);
    assert_int_equal(members_own_epoch(fixture.members), 0);
    said = (struct member_record_wire){
        .id = said.id, .incarnation = OWN_INCARNATION + 51, .epoch = UINT32_MAX, .left = true};
    hear(&fixture, 0, &said);
    run(&fixture, 2 * TIME_S);
    assert_int_equal(members_own_incarnation(fixture.members), OWN_INCARNATION + 52);
    end(&fixture);
}

/* A clock may be a day ahead of ours. No forged incarnation lasts longer than that. */
static void test_incarnations_far_ahead_are_refused(void **state)
{
    (void)state;
    struct fixture fixture;
    const uint64_t clock_us = OWN_INCARNATION + 1000000;
    begin(&fixture, 8);
    all_linked(&fixture, 8);
    struct member_record_wire said = {.id = id_of(&fixture, 5)};
    said.incarnation = clock_us + 86400000000u + 1;
    hear(&fixture, 0, &said);
    assert_false(members_accepts(fixture.members, said.incarnation, fixture.now_ns));
    assert_true(members_accepts(fixture.members, said.incarnation - 1, fixture.now_ns));
    assert_false(members_accepts(fixture.members, 0, fixture.now_ns));
    assert_int_equal(members_incarnation(fixture.members, 5), 105);
    assert_int_equal(statistics_of(&fixture).records_ahead, 1);
    said.incarnation--;
    hear(&fixture, 0, &said);
    assert_int_equal(members_incarnation(fixture.members, 5), said.incarnation);
    said.id = own_id(&fixture);
    said.incarnation = MEMBER_INCARNATION_MAX;
    hear(&fixture, 0, &said);
    run(&fixture, 2 * TIME_S);
    assert_int_equal(members_own_incarnation(fixture.members), OWN_INCARNATION);
    end(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_link_makes_a_node_up),
        cmocka_unit_test(test_a_new_link_hears_what_we_know),
        cmocka_unit_test(test_digests_that_differ_are_answered),
        cmocka_unit_test(test_news_goes_once_to_all_but_its_sender),
        cmocka_unit_test(test_a_lost_neighbour_gets_our_vote_at_once),
        cmocka_unit_test(test_a_node_hears_of_the_votes_against_it),
        cmocka_unit_test(test_few_observers_need_a_majority),
        cmocka_unit_test(test_too_few_votes_count_after_the_suspicion_time),
        cmocka_unit_test(test_a_refutation_ends_suspicion_and_loss),
        cmocka_unit_test(test_votes_beyond_enough_are_no_news),
        cmocka_unit_test(test_a_link_of_ours_counts_more_than_votes),
        cmocka_unit_test(test_a_goodbye_counts_at_once),
        cmocka_unit_test(test_each_refuted_vote_doubles_the_wait),
        cmocka_unit_test(test_a_neighbour_that_never_came_gets_a_vote),
        cmocka_unit_test(test_a_lost_link_to_an_earlier_life_gets_no_vote),
        cmocka_unit_test(test_links_lost_in_a_stall_get_a_further_patience),
        cmocka_unit_test(test_a_stall_prolongs_suspicions),
        cmocka_unit_test(test_gone_neighbours_are_replaced),
        cmocka_unit_test(test_what_is_said_of_us_is_refuted),
        cmocka_unit_test(test_incarnations_far_ahead_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
