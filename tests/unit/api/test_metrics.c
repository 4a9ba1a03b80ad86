#include "tests/unit/api/metrics_node.h"

/* What the metrics show, how long the text is, and what each user gets. */

#define SCRAPE_MAX_BYTES (512u << 10) /* the bar, at 64 peers and 100 communicators */

/* The caller frees it. */
static char *write_text(const struct metrics_node *own, size_t *size_bytes)
{
    struct metrics_text text;
    metrics_text_begin(&text, METRICS_OPENMETRICS, 1 << 20);
    metrics_write(own->node->api, &text, loop_now_ns());
    metrics_text_end(&text);
    assert_false(text.failed);
    char *copy = strndup(text.bytes, text.used_bytes);
    assert_non_null(copy);
    *size_bytes = text.used_bytes;
    metrics_text_free(&text);
    return copy;
}

static unsigned count_lines(const char *text, const char *begin)
{
    unsigned count = 0;
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        count += strncmp(line, begin, strlen(begin)) == 0;
    }
    return count;
}

static void test_size(void **state)
{
    (void)state;
    size_t size_bytes;
    struct metrics_node *own = metrics_node_new(64, 4, NULL);
    metrics_node_fill_ops(own);
    metrics_node_form(own, 100);
    char *text = write_text(own, &size_bytes);
    print_message("%zu bytes, %u lines\n", size_bytes, count_lines(text, ""));
    assert_true(size_bytes <= SCRAPE_MAX_BYTES);
    assert_int_equal(count_lines(text, "commd_link_sent_bytes_total{peer="), 64 * 4);
    assert_int_equal(count_lines(text, "commd_node_up{peer="), 64);
    assert_int_equal(count_lines(text, "commd_certificate_expiry_timestamp_seconds{node="), 65);
    assert_contains(text, "commd_communicators{state=\"formed\"} 100\n");
    assert_contains(text, "commd_clients{socket=\"clients\"} 1\n");
    assert_null(strstr(text, "training")); /* no names of users or communicators */
    free(text);
    client_free(&own->client);
    metrics_node_free(own);
}

/* With more links than METRICS_LINKS_MAX, each node has one row; with more nodes, each rail. */
static void test_many_links(void **state)
{
    (void)state;
    size_t size_bytes;
    struct metrics_node *own = metrics_node_new(65, 4, NULL);
    char *text = write_text(own, &size_bytes);
    char expected[128];
    assert_int_equal(count_lines(text, "commd_link_sent_bytes_total{peer="), 65);
    snprintf(expected, sizeof expected, "commd_link_sent_bytes_total{peer=\"" PEER_NAME_FORMAT "\"} %llu\n",
             64, (unsigned long long)(4 * (MANY + 64)));
    assert_contains(text, expected);
    free(text);
    metrics_node_free(own);
    own = metrics_node_new(257, 4, NULL);
    text = write_text(own, &size_bytes);
    assert_int_equal(count_lines(text, "commd_link_sent_bytes_total{rail="), 4);
    snprintf(expected, sizeof expected, "commd_link_lost_packets_total{rail=\"3\"} %llu\n",
             (unsigned long long)(257 * MANY));
    assert_contains(text, expected);
    assert_int_equal(count_lines(text, "commd_node_up{"), 0);
    assert_contains(text, "commd_nodes_configured 257\n");
    free(text);
    metrics_node_free(own);
}

/* --- The request --- */

static uint64_t send_query(struct client *client, uint64_t offset)
{
    Commd__Client__MetricsQuery query = COMMD__CLIENT__METRICS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.offset = offset;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_METRICS;
    request.metrics = &query;
    return client_send(client, &request, -1);
}

/* The administrators' metrics name users and communicators. All pages together are one text, of one moment.
 */
static void test_administrators_get_names(void **state)
{
    (void)state;
    struct metrics_node *own = metrics_node_new(64, 4, NULL);
    metrics_node_fill_ops(own);
    metrics_node_form(own, 100);
    struct client admin = admin_new(own->node);
    char *all = calloc(1, METRICS_ADMIN_TEXT_MAX_BYTES);
    assert_non_null(all);
    size_t used = 0;
    unsigned pages = 0;
    uint64_t offset = 0;
    do {
        Commd__Client__Event *event =
            client_expect_reply(&admin, send_query(&admin, offset), COMMD__CLIENT__REPLY__BODY_METRICS);
        const Commd__Client__MetricsReply *page = event->reply->metrics;
        memcpy(all + used, page->text.data, page->text.len);
        used += page->text.len;
        offset = page->cursor;
        event_free(event);
        pages++;
    } while (offset != 0);
    assert_true(pages > 4);
    assert_int_equal(count_lines(all, "commd_communicator_operations_total{communicator=\"training-"), 100);
    assert_int_equal(count_lines(all, "commd_user_loop_seconds_total{uid="), 2); /* and the administrators' */
    assert_int_equal(count_lines(all, "# TYPE commd_uptime_seconds gauge"), 1);
    client_expect_error(&admin, send_query(&admin, 100), STATUS_INVALID_ARGUMENT, "no such page");
    free(all);
    client_free(&admin);
    client_free(&own->client);
    metrics_node_free(own);
}

static void test_users_do_not(void **state)
{
    (void)state;
    struct metrics_node *own = metrics_node_new(1, 1, NULL);
    struct client client = client_new(own->node);
    client_expect_error(&client, send_query(&client, 0), STATUS_PERMISSION, "administrators");
    client_check(&client);
    client_free(&client);
    metrics_node_free(own);
}

/* A session that ends between two pages leaves nothing. */
static void test_a_session_that_ends(void **state)
{
    (void)state;
    struct metrics_node *own = metrics_node_new(64, 4, NULL);
    metrics_node_fill_ops(own);
    struct client admin = admin_new(own->node);
    event_free(client_expect_reply(&admin, send_query(&admin, 0), COMMD__CLIENT__REPLY__BODY_METRICS));
    client_free(&admin);
    metrics_node_free(own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_many_links),
        cmocka_unit_test(test_administrators_get_names),
        cmocka_unit_test(test_users_do_not),
        cmocka_unit_test(test_a_session_that_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
