#include "tests/lib/latest_event.h"
#include "tests/unit/api/api_node.h"

/* Which users see which events, and the pages in which the events come. The process has one list of events,
 * so each test looks only at the events that it adds. */
#define OTHER_UID 4242

static Commd__Client__Event *ask(struct client *client, uint64_t after)
{
    Commd__Client__EventsQuery query = COMMD__CLIENT__EVENTS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.after = after;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_EVENTS;
    request.events = &query;
    return client_expect_reply(client, client_send(client, &request, -1), COMMD__CLIENT__REPLY__BODY_EVENTS);
}

static void add(enum history_audience audience, uint32_t uid, const char *text)
{
    struct history_about about = {.kind = HISTORY_COMMUNICATOR_FORMED,
                                  .audience = audience,
                                  .uid = uid,
                                  .subject = "train",
                                  .now_ns = loop_now_ns()};
    history_add(&about, "%s", text);
}

/* All texts after that event, with commas between. */
static void expect(struct client *client, uint64_t after, const char *expected)
{
    char texts[256] = "";
    Commd__Client__Event *event = ask(client, after);
    const Commd__Client__EventsReply *page = event->reply->events;
    for (size_t i = 0; i < page->n_events; i++) {
        snprintf(texts + strlen(texts), sizeof texts - strlen(texts), "%s%s", i > 0 ? "," : "",
                 page->events[i]->text);
    }
    assert_string_equal(texts, expected);
    assert_false(page->more);
    assert_int_equal(page->cursor, latest_event());
    event_free(event);
}

static void test_who_sees_what(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client user = client_new(node), admin = admin_new(node);
    uint64_t before = latest_event();
    add(HISTORY_FOR_ALL, 0, "all");
    add(HISTORY_FOR_ADMINISTRATORS, 0, "secret");
    add(HISTORY_FOR_USER, geteuid(), "own");
    add(HISTORY_FOR_USER, OTHER_UID, "other");
    expect(&user, before, "all,own");
    expect(&admin, before, "all,secret,own,other");
    expect(&user, latest_event(), "");
    expect(&user, before + 2, "own");
    client_free(&user);
    client_free(&admin);
    node_free(node);
}

static void test_fields(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client user = client_new(node);
    uint64_t before = latest_event();
    add(HISTORY_FOR_USER, geteuid(), "2 ranks");
    Commd__Client__Event *event = ask(&user, before);
    const Commd__Client__EventInfo *row = event->reply->events->events[0];
    assert_int_equal(row->sequence, before + 1);
    assert_string_equal(row->kind, "communicator_formed");
    assert_string_equal(row->subject_kind, "communicator");
    assert_string_equal(row->subject, "train");
    assert_true(row->has_uid);
    assert_int_equal(row->uid, geteuid());
    assert_int_equal(row->left_out, 0);
    event_free(event);
    client_free(&user);
    node_free(node);
}

/* The list is longer than a page, and the user may see few of its events. He gets all of these, page by page.
 */
static void test_pages(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client user = client_new(node);
    uint64_t after = latest_event();
    unsigned seen = 0, pages = 0;
    bool more = true;
    for (unsigned i = 0; i < HISTORY_EVENTS_MAX; i++) {
        add(i % 8 == 0 ? HISTORY_FOR_ALL : HISTORY_FOR_ADMINISTRATORS, 0, "one of many");
    }
    while (more) {
        Commd__Client__Event *event = ask(&user, after);
        seen += (unsigned)event->reply->events->n_events;
        assert_true(event->reply->events->cursor > after);
        assert_int_equal(event->reply->events->missed, 0);
        after = event->reply->events->cursor;
        more = event->reply->events->more;
        event_free(event);
        pages++;
    }
    assert_int_equal(seen, HISTORY_EVENTS_MAX / 8);
    assert_true(pages >= 2);
    add(HISTORY_FOR_ALL, 0, "overwrites one");
    Commd__Client__Event *event = ask(&user, latest_event() - 1 - HISTORY_EVENTS_MAX);
    assert_int_equal(event->reply->events->missed, 1);
    event_free(event);
    client_free(&user);
    node_free(node);
}

/* --- Health --- */

static uint64_t send_health(struct client *client, const char *name)
{
    Commd__Client__HealthQuery query = COMMD__CLIENT__HEALTH_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.name = (char *)(uintptr_t)name;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HEALTH;
    request.health = &query;
    return client_send(client, &request, -1);
}

static void expect_health(struct client *client, const char *name, bool fine, const char *text)
{
    Commd__Client__Event *event =
        client_expect_reply(client, send_health(client, name), COMMD__CLIENT__REPLY__BODY_HEALTH);
    assert_int_equal(event->reply->health->n_checks, 1);
    assert_string_equal(event->reply->health->checks[0]->name, name);
    assert_int_equal(event->reply->health->checks[0]->fine, fine);
    assert_contains(event->reply->health->checks[0]->text, text);
    event_free(event);
}

static void test_health(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client user = client_new(node);
    Commd__Client__Event *event =
        client_expect_reply(&user, send_health(&user, ""), COMMD__CLIENT__REPLY__BODY_HEALTH);
    assert_true(event->reply->health->n_checks >= 8);
    event_free(event);
    client_expect_error(&user, send_health(&user, "luck"), STATUS_NOT_FOUND, "luck");
    expect_health(&user, "mesh", true, "alone");
    expect_health(&user, "gpus", true, "none");
    expect_health(&user, "certificates", true, "needs none");
    expect_health(&user, "memory", true, " % of ");
    expect_health(&user, "descriptors", true, "");
    expect_health(&user, "drain", true, "takes new communicators");
    struct api_drain drain = {.draining = true, .deadline_ns = TIME_NEVER};
    api_set_drain(node->api, &drain, loop_now_ns());
    expect_health(&user, "drain", false, "drains");
    client_free(&user);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_sees_what),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
