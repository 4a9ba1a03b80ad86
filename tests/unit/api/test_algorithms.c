#include "tests/unit/api/api_node.h"

/* Which algorithm commd would choose, and what it predicts. Every client may ask. */

/* Asks about two sizes, for 64 nodes. The caller frees the reply. */
static Commd__Client__Event *ask(struct client *client, const char *kind, uint64_t sizes[2])
{
    Commd__Client__AlgorithmsQuery query = COMMD__CLIENT__ALGORITHMS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.kind = (char *)(uintptr_t)kind;
    query.size_bytes = sizes;
    query.n_size_bytes = 2;
    query.node_count = 64;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_ALGORITHMS;
    request.algorithms = &query;
    return client_expect_reply(client, client_send(client, &request, -1),
                               COMMD__CLIENT__REPLY__BODY_ALGORITHMS);
}

/* A number that is too large for its type is shown as the largest one. */
static void test_predictions_for_sizes_without_end(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    uint64_t sizes[] = {UINT64_C(1) << 40, UINT64_MAX};
    Commd__Client__Event *event = ask(&client, "broadcast", sizes);
    const Commd__Client__AlgorithmsReply *reply = event->reply->algorithms;
    size_t half = reply->n_algorithms / 2;
    assert_true(half > 0);
    for (size_t i = 0; i < half; i++) {
        const Commd__Client__AlgorithmInfo *small = reply->algorithms[i];
        const Commd__Client__AlgorithmInfo *large = reply->algorithms[half + i];
        assert_string_equal(small->name, large->name);
        assert_true(!small->serves || small->sent_bytes > 0);
        assert_true(!large->serves || large->predicted_ns > small->predicted_ns);
        assert_true(!large->serves || large->sent_bytes > small->sent_bytes);
    }
    event_free(event);
    client_free(&client);
    node_free(node);
}

/* A barrier has no size: its prediction comes once. */
static void test_a_barrier_has_no_size(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    uint64_t sizes[] = {8, 1u << 20};
    Commd__Client__Event *event = ask(&client, "barrier", sizes);
    const Commd__Client__AlgorithmsReply *reply = event->reply->algorithms;
    uint32_t picked = 0;
    for (size_t i = 0; i < reply->n_algorithms; i++) {
        assert_int_equal(reply->algorithms[i]->size_bytes, 0);
        picked += reply->algorithms[i]->picked ? 1 : 0;
    }
    assert_int_equal(picked, 1);
    event_free(event);
    client_free(&client);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions_for_sizes_without_end),
        cmocka_unit_test(test_a_barrier_has_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
