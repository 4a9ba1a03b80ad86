#include "daemon/base/trace.h"
#include "tests/unit/api/api_node.h"

/* What commctl trace gets: while tracing is on, the records that the user may see, in pages. */
#define OTHER_UID 4242

static struct client client_new_as(struct node *node, uid_t uid)
{
    struct client client = client_new(node);
    struct api_session *newest = NULL;
    for (struct api_session *each = node->api->sessions; each != NULL; each = each->hh.next) {
        newest = each;
    }
    newest->client.uid = uid;
    return client;
}

static uint64_t send_query(struct client *client, uint64_t next, uint64_t end, bool record)
{
    Commd__Client__TraceQuery query = COMMD__CLIENT__TRACE_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.next = next;
    query.end = end;
    query.record = record;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_TRACE;
    request.trace = &query;
    return client_send(client, &request, -1);
}

static Commd__Client__Event *ask(struct client *client, uint64_t next, uint64_t end, bool record)
{
    return client_expect_reply(client, send_query(client, next, end, record),
                               COMMD__CLIENT__REPLY__BODY_TRACE);
}

static struct trace_record record_at(const Commd__Client__Event *event, size_t index)
{
    struct trace_record record;
    assert_true(event->reply->trace->records.len >= (index + 1) * sizeof record);
    memcpy(&record, event->reply->trace->records.data + index * sizeof record, sizeof record);
    return record;
}

static size_t record_count(const Commd__Client__Event *event)
{
    assert_int_equal(event->reply->trace->records.len % sizeof(struct trace_record), 0);
    return event->reply->trace->records.len / sizeof(struct trace_record);
}

/* Runs a barrier of two ranks of one client, from its posts to its completions. */
static void run_barrier(struct client *client, const char *name)
{
    client_send_init(client, 1, name, 0, 2);
    uint64_t id = client_send_init(client, 2, name, 1, 2);
    event_free(client_expect_reply(client, id - 1, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    event_free(client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    for (uint32_t handle = 1; handle <= 2; handle++) {
        struct submit_record submit = submit_of(handle, 5, OP_KIND_BARRIER);
        client_submit(client, &submit);
    }
    client_expect_complete(client, 1, 5, STATUS_OK, NULL);
    client_expect_complete(client, 2, 5, STATUS_OK, NULL);
}

static void test_an_operation(void **state)
{
    static const enum trace_event expected[] = {
        TRACE_COMM_FORMED, TRACE_OP_TAKEN,   TRACE_OP_POSTED,  TRACE_OP_TAKEN,
        TRACE_OP_POSTED,   TRACE_OP_MATCHED, TRACE_OP_STARTED, TRACE_SLICE_STARTED,
        TRACE_SLICE_DONE,  TRACE_OP_DONE,    TRACE_OP_TOLD,    TRACE_OP_TOLD,
    };
    (void)state;
    struct node *node = node_new();
    struct client client = client_new_as(node, 1000), admin = admin_new(node);
    Commd__Client__Event *event = ask(&admin, 0, 0, true);
    uint64_t begin = event->reply->trace->end;
    assert_int_equal(event->reply->trace->areas, 0);
    event_free(event);
    run_barrier(&client, "train");
    event = ask(&admin, begin, 0, false);
    assert_int_equal(event->reply->trace->areas, TRACE_AREAS_ALL);
    assert_int_equal(event->reply->trace->cursor, 0);
    assert_int_equal(record_count(event), sizeof expected / sizeof *expected);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(record_at(event, i).event, expected[i]);
        assert_true(i == 0 || record_at(event, i).seq == 1);
    }
    assert_int_equal(record_at(event, 3).row, 1); /* the second rank */
    assert_int_equal(event->reply->trace->n_comms, 1);
    assert_string_equal(event->reply->trace->comms[0]->name, "train");
    assert_int_equal(event->reply->trace->comms[0]->comm_id, record_at(event, 0).comm_id);
    event_free(event);
    client_free(&client);
    client_free(&admin);
    node_free(node);
}

static void test_only_administrators_turn_it_on(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client user = client_new_as(node, 1000), admins[2] = {admin_new(node), admin_new(node)};
    client_expect_error(&user, send_query(&user, 0, 0, true), STATUS_PERMISSION, "administrators");
    assert_int_equal(trace_areas, 0);
    struct error none;
    assert_int_equal(trace_begin(TRACE_AREA_COMM, &none), STATUS_OK); /* as COMMD_TRACE sets it */
    for (int i = 0; i < 2; i++) {
        event_free(ask(&admins[i], 0, 0, true));
        event_free(ask(&admins[i], 0, 0, true)); /* a second time changes nothing */
    }
    assert_int_equal(trace_areas, TRACE_AREAS_ALL);
    client_free(&admins[0]);
    assert_int_equal(trace_areas, TRACE_AREAS_ALL);
    client_free(&admins[1]);
    assert_int_equal(trace_areas, TRACE_AREA_COMM);
    assert_int_equal(trace_begin(0, &none), STATUS_OK);
    client_free(&user);
    node_free(node);
}

static void test_records_of_other_users(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client own = client_new_as(node, 1000), other = client_new_as(node, OTHER_UID);
    struct client admin = admin_new(node);
    Commd__Client__Event *event = ask(&admin, 0, 0, true);
    uint64_t begin = event->reply->trace->end;
    event_free(event);
    run_barrier(&own, "train");
    run_barrier(&other, "secret");
    trace_op_done(UINT64_MAX, 1, 0, 0, 0, 1); /* of a communicator that commd does not know */
    event = ask(&own, begin, 0, false);
    assert_int_equal(record_count(event), 12);
    assert_int_equal(event->reply->trace->others, 13);
    assert_int_equal(event->reply->trace->n_comms, 1);
    assert_string_equal(event->reply->trace->comms[0]->name, "train");
    event_free(event);
    event = ask(&admin, begin, 0, false);
    assert_int_equal(record_count(event), 25);
    assert_int_equal(event->reply->trace->others, 0);
    assert_int_equal(event->reply->trace->n_comms, 2);
    event_free(event);
    client_free(&own);
    client_free(&other);
    client_free(&admin);
    node_free(node);
}

/* There are more records than a page holds, of more communicators than a page holds, with the
 * longest names. */
static void test_pages(void **state)
{
    enum { COMMS = CLIENT_LIST_PAGE_MAX + 5, RECORDS = 5000 };
    (void)state;
    struct node *node = node_new();
    struct client admin = admin_new(node);
    Commd__Client__Event *event = ask(&admin, 0, 0, true);
    uint64_t next = event->reply->trace->end, end = 0, seq = 0;
    event_free(event);
    struct error none;
    assert_int_equal(trace_begin(TRACE_AREAS_ALL, &none), STATUS_OK); /* as COMMD_TRACE sets it */
    for (uint64_t id = 0; id < COMMS; id++) {
        char name[COMM_NAME_MAX_BYTES + 1];
        (void)snprintf(name, sizeof name, "%0127llu", (unsigned long long)id);
        trace_comm(UINT64_MAX - id, 1000, name);
    }
    for (uint64_t i = 0; i < RECORDS; i++) {
        trace_slice_done(UINT64_MAX - i % COMMS, i, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX);
    }
    unsigned pages = 0;
    do {
        event = ask(&admin, next, end, false);
        for (size_t i = 0; i < record_count(event); i++) {
            assert_int_equal(record_at(event, i).seq, seq++);
        }
        next = event->reply->trace->cursor;
        end = event->reply->trace->end;
        event_free(event);
        pages++;
        trace_op_done(1, 0, 0, 0, 0, 1); /* what is recorded meanwhile is not part of this list */
    } while (next != 0);
    assert_int_equal(seq, RECORDS);
    assert_in_range(pages, 5, RECORDS / CLIENT_LIST_PAGE_MAX + 1);
    assert_int_equal(trace_begin(0, &none), STATUS_OK);
    client_free(&admin);
    node_free(node);
}

/* A session's own recording ends when it reads, so that nothing overwrites what it reads. */
static void test_reading_ends_the_recording(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client admin = admin_new(node);
    Commd__Client__Event *event = ask(&admin, 0, 0, true);
    uint64_t begin = event->reply->trace->end;
    event_free(event);
    assert_int_equal(trace_areas, TRACE_AREAS_ALL);
    trace_op_done(1, 7, 0, 0, 0, 1);
    event = ask(&admin, begin, 0, false);
    assert_int_equal(trace_areas, 0);
    assert_int_equal(record_count(event), 1);
    assert_false(event->reply->trace->cut);
    event_free(event);
    client_free(&admin);
    node_free(node);
}

static void record(uint64_t *seq, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        trace_op_done(1, (*seq)++, 0, 0, 0, 1);
    }
}

/* Recording goes on, and overwrites some of the records between two pages. Both sides of a gap never stand in
 * one trace: an operation that ended in the gap would look unfinished. */
static void test_overwritten_between_pages(void **state)
{
    enum { RECORDS = 4000, OVERWRITTEN = 3100 };
    (void)state;
    struct node *node = node_new();
    struct client admin = admin_new(node);
    struct error none;
    assert_int_equal(trace_begin(TRACE_AREAS_ALL, &none), STATUS_OK); /* as COMMD_TRACE sets it */
    uint64_t seq = 0, begin = trace_end();
    record(&seq, RECORDS);
    Commd__Client__Event *event = ask(&admin, begin, 0, false);
    uint64_t next = event->reply->trace->cursor, end = event->reply->trace->end;
    size_t first_page = record_count(event);
    assert_false(event->reply->trace->cut);
    assert_in_range(first_page, 1, OVERWRITTEN - 1);
    event_free(event);
    record(&seq, TRACE_RECORDS_MAX - RECORDS + OVERWRITTEN);
    event = ask(&admin, next, end, false);
    assert_true(event->reply->trace->cut);
    assert_int_equal(record_count(event), RECORDS - OVERWRITTEN);
    for (size_t i = 0; i < record_count(event); i++) {
        assert_int_equal(record_at(event, i).seq, OVERWRITTEN + i);
    }
    event_free(event);
    record(&seq, TRACE_RECORDS_MAX);
    event = ask(&admin, next, end, false); /* now all are overwritten */
    assert_true(event->reply->trace->cut);
    assert_int_equal(record_count(event), 0);
    assert_int_equal(event->reply->trace->cursor, 0);
    event_free(event);
    event = ask(&admin, begin, 0, false); /* the first page has the oldest that are left */
    assert_true(event->reply->trace->cut);
    assert_int_equal(record_at(event, 0).seq, seq - TRACE_RECORDS_MAX);
    event_free(event);
    assert_int_equal(trace_begin(0, &none), STATUS_OK);
    client_free(&admin);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_operation),
        cmocka_unit_test(test_only_administrators_turn_it_on),
        cmocka_unit_test(test_records_of_other_users),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_reading_ends_the_recording),
        cmocka_unit_test(test_overwritten_between_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
