/*
 * A bad link between two daemons: a UDP relay that loses and delays datagrams until it is ended.
 *
 *   relay LISTEN TARGET LOSS DELAY_MS SEED
 *
 * The addresses are like "127.0.0.1:port". LOSS and DELAY_MS apply to each direction.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/loop.h"
#include "tests/lib/udp_relay.h"

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
    struct udp_relay *relay = NULL;
    bool stopped = false;
    if (argc != 6) {
        fprintf(stderr, "usage: relay LISTEN TARGET LOSS DELAY_MS SEED\n");
        return 2;
    }
    struct udp_relay_conditions conditions = {.loss = strtod(argv[3], NULL),
                                              .delay_ns = (uint64_t)(strtod(argv[4], NULL) * 1e6)};
    if (loop_new(&loop, &error) != STATUS_OK ||
        udp_relay_new(loop, argv[1], argv[2], strtoull(argv[5], NULL, 10), &relay, &error) != STATUS_OK ||
        loop_signal(loop, SIGTERM, stop, &stopped, &error) != STATUS_OK) {
        fprintf(stderr, "relay: %s\n", error.text);
        return 1;
    }
    udp_relay_set(relay, &conditions, &conditions);
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !stopped) {
        status = loop_run_once(loop, UINT64_MAX, &error);
    }
    udp_relay_free(relay);
    loop_free(loop);
    return status == STATUS_OK ? 0 : 1;
}
