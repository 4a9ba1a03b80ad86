#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/comm/roster_draft.h"

#define SIZE 16u

/* Adds a part with one entry. Returns how many entries the whole roster has, or 0. */
static size_t add_named(struct communicator *comm, uint32_t node, char *name, bool first, bool last)
{
    Commd__Mesh__Roster part = COMMD__MESH__ROSTER__INIT;
    Commd__Mesh__RosterEntry entry = COMMD__MESH__ROSTER_ENTRY__INIT, *entries = &entry;
    Commd__Mesh__Announce report = COMMD__MESH__ANNOUNCE__INIT;
    entry.node = name;
    entry.report = &report;
    part.name = "job";
    part.owner_uid = 7;
    part.entries = &entries;
    part.n_entries = 1;
    part.first = first;
    part.last = last;
    part.complete = true;
    Commd__Mesh__Roster *roster = comms_roster_draft_add(comm, node, &part);
    size_t count = 0;
    if (roster != NULL) {
        count = roster->n_entries;
        assert_string_equal(roster->name, "job");
        assert_string_equal(roster->entries[count - 1]->node, name);
        assert_true(roster->complete && roster->owner_uid == 7);
        commd__mesh__roster__free_unpacked(roster, NULL);
    }
    return count;
}

static size_t add(struct communicator *comm, uint32_t node, bool first, bool last)
{
    return add_named(comm, node, "n001", first, last);
}

static void test_each_sender_has_its_own(void **state)
{
    (void)state;
    struct communicator comm = {.terms.size = SIZE};
    assert_int_equal(add(&comm, 1, true, false), 0);
    assert_int_equal(add(&comm, 2, true, false), 0);
    assert_int_equal(add(&comm, 1, false, false), 0);
    assert_int_equal(add(&comm, 3, false, true), 0); /* without a first part */
    assert_int_equal(add(&comm, 2, true, false), 0); /* it begins again */
    assert_int_equal(add(&comm, 2, false, true), 2);
    assert_int_equal(add(&comm, 1, false, true), 3);
    assert_int_equal(add(&comm, 1, false, true), 0);
    assert_null(comm.roster_drafts);
}

static void test_too_many(void **state)
{
    (void)state;
    struct communicator comm = {.terms.size = SIZE};
    for (uint32_t node = 0; node <= COMMS_ROSTER_DRAFTS_MAX; node++) {
        assert_int_equal(add(&comm, node, true, false), 0);
    }
    assert_int_equal(add(&comm, 0, false, true), 0); /* the oldest */
    for (uint32_t node = 1; node <= COMMS_ROSTER_DRAFTS_MAX; node++) {
        assert_int_equal(add(&comm, node, false, true), 2);
    }
    assert_int_equal(add(&comm, 1, true, false), 0);
    comms_roster_drafts_free(&comm);
    assert_null(comm.roster_drafts);
}

static void test_too_long(void **state)
{
    (void)state;
    static char name[30001];
    struct communicator comm = {.terms.size = SIZE};
    for (size_t i = 0; i + 1 < sizeof name; i++) {
        name[i] = 'x';
    }
    assert_int_equal(add_named(&comm, 1, name, true, false), 0);
    assert_int_equal(add_named(&comm, 1, name, false, false), 0);
    assert_int_equal(add_named(&comm, 1, name, false, false), 0);
    assert_null(comm.roster_drafts);
    assert_int_equal(add(&comm, 1, false, true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_sender_has_its_own),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
