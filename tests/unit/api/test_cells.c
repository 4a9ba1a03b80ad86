#include <dirent.h>

#include "daemon/base/budget.h"
#include "tests/unit/api/api_node.h"

/* The descriptors of cells, which commd sends to ranks. */

#define COMMS 400 /* more answers than a socket holds */

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static uint64_t charged_descriptors(const struct node *node)
{
    struct budget_totals totals;
    budget_totals(node->api->budget, &totals);
    return totals.used[BUDGET_DESCRIPTORS];
}

static void join(struct client *client, uint32_t number, uint32_t rank)
{
    char name[16];
    Commd__Client__CommInit init = COMMD__CLIENT__COMM_INIT__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    (void)snprintf(name, sizeof name, "many%u", number);
    init.handle = number;
    init.name = name;
    init.size = 2;
    init.rank = rank;
    init.device = -1;
    init.takes_cells = true;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &init;
    (void)client_send(client, &request, -1);
}

static void read_all(struct client *client)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    while (recv(client->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
}

/* A rank that does not read its answers holds descriptors of cells open in commd. Its user pays for them. */
static void test_unread_descriptors_are_charged(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client unread = client_new(node), reads = client_new(node);
    unsigned before = open_descriptors();
    uint64_t charged_before = charged_descriptors(node);
    for (uint32_t i = 1; i <= COMMS; i++) {
        join(&unread, i, 0);
    }
    node_turns(node, 100);
    for (uint32_t i = 1; i <= COMMS; i++) {
        join(&reads, i, 1);
        read_all(&reads);
    }
    for (unsigned i = 0; i < 100; i++) {
        node_turn(node);
        read_all(&reads);
    }
    unsigned held = open_descriptors() - before;
    assert_true(held > COMMS / 4);
    assert_true(charged_descriptors(node) - charged_before >= held);
    client_free(&unread);
    client_free(&reads);
    node_turns(node, 10 * COMMS);
    assert_int_equal(sessions(node), 0);
    assert_int_equal(charged_descriptors(node), 0);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unread_descriptors_are_charged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
