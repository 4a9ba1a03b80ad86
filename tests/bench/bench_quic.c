#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "tests/lib/quic_node.h"

/*
 * How fast one connection carries data between two processes on this machine: bench_quic [seconds [datagram
 * bytes...]]. Prints Gbit/s of payload, and the CPU time that each side took of a second. The receiver looks
 * at every byte once (a sum), as a reduction would.
 */

#define PIECE_BYTES (1u << 20)
#define PIECES_UNDER_WAY 64u
#define STREAMS 4u

struct bench {
    struct quic_node *node;
    struct net_stream *streams[STREAMS];
    uint8_t *data;
    uint64_t sent_bytes;
    unsigned under_way;
    unsigned next;
};

static volatile uint64_t checksum;

static size_t receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns)
{
    (void)context;
    (void)stream;
    (void)end;
    (void)now_ns;
    uint64_t sum = 0;
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        sum += word;
    }
    checksum += sum;
    return size;
}

static void sent(void *context, enum status result, uint64_t now_ns)
{
    (void)now_ns;
    struct bench *bench = context;
    bench->under_way--;
    bench->sent_bytes += result == STATUS_OK ? PIECE_BYTES : 0;
}

static void top_up(struct bench *bench)
{
    while (bench->under_way < PIECES_UNDER_WAY) {
        struct net_stream *stream = bench->streams[bench->next++ % STREAMS];
        if (net_stream_send(stream, NULL, 0, bench->data, PIECE_BYTES, sent, bench) != STATUS_OK) {
            fprintf(stderr, "bench_quic: send failed\n");
            exit(1);
        }
        bench->under_way++;
    }
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* The receiver: a process that tells its port, and, when it is asked by a closed pipe, its CPU time. */
static _Noreturn void run_receiver(struct test_pki *pki, const struct quic_options *options, int out)
{
    struct loop *loop;
    struct error error;
    if (loop_new(&loop, &error) != STATUS_OK) {
        _exit(1);
    }
    struct quic_node *node = quic_node_new(loop, pki, "b", options);
    net_set_stream_handler(node->net, NET_STREAM_DATA, &(struct net_stream_handler){node, receive, NULL});
    quic_node_add_peer(node, "a", 9);
    if (write(out, &node->port, sizeof node->port) != sizeof node->port) {
        _exit(1);
    }
    double before = 0;
    do {
        quic_run_for(loop, 20);
        before = node->up_calls[0] == 0 ? cpu_s() : before;
    } while (node->down_calls[0] == 0);
    double used = cpu_s() - before;
    if (write(out, &used, sizeof used) != sizeof used) {
        _exit(1);
    }
    _exit(0);
}

static bool is_up(const void *context)
{
    const struct quic_node *node = context;
    return node->up[0];
}

static void run_bench(struct test_pki *pki, double duration_s, uint32_t datagram_bytes)
{
    struct quic_options options;
    struct bench bench = {0};
    struct loop *loop;
    struct error error;
    int ends[2];
    uint16_t port = 0;
    quic_node_options(pki, "b", &options);
    options.datagram_max_bytes = datagram_bytes;
    if (pipe(ends) != 0 || loop_new(&loop, &error) != STATUS_OK) {
        exit(1);
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_receiver(pki, &options, ends[1]);
    }
    if (read(ends[0], &port, sizeof port) != sizeof port) {
        exit(1);
    }
    quic_node_options(pki, "a", &options);
    options.datagram_max_bytes = datagram_bytes;
    bench.node = quic_node_new(loop, pki, "a", &options);
    bench.data = malloc(PIECE_BYTES);
    memset(bench.data, 7, PIECE_BYTES);
    quic_node_add_peer(bench.node, "b", port);
    quic_node_connect(bench.node, 0);
    if (!quic_run_until(loop, is_up, bench.node, 5000)) {
        exit(1);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        if (net_stream_open(bench.node->net, 0, NET_STREAM_DATA, &bench.streams[i], &error) != STATUS_OK) {
            exit(1);
        }
    }
    double cpu_before = cpu_s();
    uint64_t start_ns = loop_now_ns();
    uint64_t end_ns = start_ns + (uint64_t)(duration_s * 1e9);
    while (loop_now_ns() < end_ns) {
        top_up(&bench);
        if (loop_run_once(loop, 10, &error) != STATUS_OK) {
            exit(1);
        }
    }
    double elapsed_s = (double)(loop_now_ns() - start_ns) / 1e9;
    double sender_cpu_s = cpu_s() - cpu_before;
    struct net_peer_statistics statistics;
    net_peer_statistics(bench.node->net, 0, &statistics);
    uint64_t bytes = bench.sent_bytes;
    for (unsigned i = 0; i < STREAMS; i++) {
        net_stream_reset(bench.streams[i]);
    }
    quic_node_free(bench.node);
    double receiver_cpu_s = 0;
    if (read(ends[0], &receiver_cpu_s, sizeof receiver_cpu_s) != sizeof receiver_cpu_s) {
        receiver_cpu_s = 0;
    }
    waitpid(child, NULL, 0);
    printf("datagrams %5u bytes: %6.2f Gbit/s; CPU of a second: sender %.2f, receiver %.2f; round trip %llu "
           "us, lost packets %llu\n",
           statistics.datagram_bytes, (double)bytes * 8 / 1e9 / elapsed_s, sender_cpu_s / elapsed_s,
           receiver_cpu_s / elapsed_s, (unsigned long long)(statistics.round_trip_ns / TIME_US),
           (unsigned long long)statistics.lost_packets);
    close(ends[0]);
    close(ends[1]);
    loop_free(loop);
    free(bench.data);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {1452, 8952, 65000};
    double duration_s = argc > 1 ? strtod(argv[1], NULL) : 3;
    log_set_level(LOG_LEVEL_ERROR);
    struct test_pki *pki = test_pki_new();
    test_pki_issue(pki, "a", &(struct test_certificate){.name = "a"});
    test_pki_issue(pki, "b", &(struct test_certificate){.name = "b"});
    if (argc > 2) {
        for (int i = 2; i < argc; i++) {
            run_bench(pki, duration_s, (uint32_t)strtoul(argv[i], NULL, 10));
        }
    } else {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            run_bench(pki, duration_s, sizes[i]);
        }
    }
    test_pki_free(pki);
    return 0;
}
