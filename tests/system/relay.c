/*
 * A bad link between two daemons: a UDP relay that loses and delays datagrams until it is ended.
 *
 *   relay LISTEN TARGET LOSS DELAY_MS SEED
 *
 * The addresses are like "127.0.0.1:port". LOSS and DELAY_MS apply to each direction. On SIGUSR1, TARGET sees
 * the sender at another port. On SIGUSR2, the sender sees TARGET at another port, and LISTEN is dead; on the
 * next SIGUSR2, at LISTEN again.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/loop.h"
#include "tests/lib/udp_relay.h"

struct bad_link {
    struct udp_relay *relay;
    bool moved;
    bool failed;
};

static void check(struct bad_link *link, enum status status, const struct error *error)
{
    if (status != STATUS_OK) {
        fprintf(stderr, "relay: %s\n", error->text);
        link->failed = true;
    }
}

static void rebind_sender(void *context, int signal_number, uint64_t now_ns)
{
    (void)signal_number;
    (void)now_ns;
    struct bad_link *link = context;
    struct error error;
    check(link, udp_relay_rebind(link->relay, &error), &error);
}

static void move_target(void *context, int signal_number, uint64_t now_ns)
{
    (void)signal_number;
    (void)now_ns;
    struct bad_link *link = context;
    struct error error;
    if (link->moved) {
        udp_relay_move_back(link->relay);
    } else {
        check(link, udp_relay_move(link->relay, &error), &error);
    }
    link->moved = !link->moved;
}

static void stop(void *context, int signal_number, uint64_t now_ns)
{
    (void)signal_number;
    (void)now_ns;
    *(bool *)context = true;
}

int main(int argc, char **argv)
{
    struct error error;
    struct loop *loop = NULL;
    struct bad_link link = {.relay = NULL};
    bool stopped = false;
    if (argc != 6) {
        fprintf(stderr, "usage: relay LISTEN TARGET LOSS DELAY_MS SEED\n");
        return 2;
    }
    struct udp_relay_conditions conditions = {.loss = strtod(argv[3], NULL),
                                              .delay_ns = (uint64_t)(strtod(argv[4], NULL) * 1e6)};
    if (loop_new(&loop, &error) != STATUS_OK ||
        udp_relay_new(loop, argv[1], argv[2], strtoull(argv[5], NULL, 10), &link.relay, &error) !=
            STATUS_OK ||
        loop_signal(loop, SIGTERM, stop, &stopped, &error) != STATUS_OK ||
        loop_signal(loop, SIGUSR1, rebind_sender, &link, &error) != STATUS_OK ||
        loop_signal(loop, SIGUSR2, move_target, &link, &error) != STATUS_OK) {
        fprintf(stderr, "relay: %s\n", error.text);
        return 1;
    }
    udp_relay_set(link.relay, &conditions, &conditions);
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !stopped && !link.failed) {
        status = loop_run_once(loop, UINT64_MAX, &error);
    }
    udp_relay_free(link.relay);
    loop_free(loop);
    return status == STATUS_OK && !link.failed ? 0 : 1;
}
