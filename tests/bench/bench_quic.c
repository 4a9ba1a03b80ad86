#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/net/tls.h"
#include "tests/lib/bench_link.h"
#include "tests/lib/quic_node.h"

/*
 * Measures how fast one connection carries data between two processes, on this machine or over a link between
 * two network namespaces. bench_link.h has the command line. Modes:
 *
 *   stream  one way. The receiver reads every byte once (for a sum), as a reduction does
 *   both    both ways at once
 *   ping    64 bytes there and back, one at a time: the round trip in microseconds
 *   bulk, bulk-both    as stream and both, on the bulk link: TLS 1.3 over TCP
 *
 * Prints Gbit/s of acknowledged payload, and the CPU time that each side used in a second.
 */

#define PIECE_BYTES (1u << 20)
#define PIECES_UNDER_WAY 64u
#define STREAMS 4u
#define PING_BYTES 64u
#define PINGS_MAX 4000000u

struct bench {
    struct loop *loop;
    struct quic_node *node;
    struct net_stream *streams[STREAMS];
    uint8_t *data;
    uint64_t sent_bytes;
    unsigned under_way;
    unsigned next;
    bool echoes; /* the child of mode ping */
    bool bulk;
    size_t ping_bytes;
    uint64_t ping_ns; /* when the ping under way was sent */
    uint32_t *pings_ns;
    unsigned ping_count;
};

/* What the child reports at the end. */
struct child_report {
    double cpu_s;
    double elapsed_s;
    uint64_t sent_bytes;
};

static volatile uint64_t checksum;

static void check(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "bench_quic: %s failed\n", what);
        exit(1);
    }
}

static void open_streams(struct bench *bench)
{
    struct error error;
    for (unsigned i = 0; i < STREAMS && bench->streams[i] == NULL; i++) {
        struct net *net = bench->node->net;
        check((bench->bulk
                   ? net_stream_open_bulk(net, 0, NET_STREAM_DATA, 0, NULL, &bench->streams[i], &error)
                   : net_stream_open(net, 0, NET_STREAM_DATA, &bench->streams[i], &error)) == STATUS_OK,
              "opening a stream");
    }
}

static size_t receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns)
{
    (void)context;
    (void)end;
    (void)now_ns;
    net_stream_expect(stream, NET_STREAM_WINDOW_BYTES); /* as a lane does, which has a place for the bytes */
    uint64_t sum = 0;
    if (stream->on_bulk) {
        net_stream_expect(stream, NET_STREAM_WINDOW_BYTES);
    }
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        sum += word;
    }
    checksum += sum;
    return size;
}

static void ping(struct bench *bench)
{
    bench->ping_ns = loop_now_ns();
    check(net_stream_send(bench->streams[0], NULL, 0, bench->data, PING_BYTES, NULL, NULL) == STATUS_OK,
          "send");
}

static size_t receive_ping(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    (void)stream;
    (void)bytes;
    (void)end;
    (void)now_ns;
    struct bench *bench = context;
    bench->ping_bytes += size;
    if (bench->ping_bytes < PING_BYTES) {
        return size;
    }
    bench->ping_bytes = 0;
    if (!bench->echoes && bench->ping_count < PINGS_MAX) {
        bench->pings_ns[bench->ping_count++] = (uint32_t)(loop_now_ns() - bench->ping_ns);
    }
    open_streams(bench);
    ping(bench);
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
        check(net_stream_send(stream, NULL, 0, bench->data, PIECE_BYTES, sent, bench) == STATUS_OK, "send");
        bench->under_way++;
    }
}

static bool is_mode(const struct bench_link *link, const char *mode)
{
    return strcmp(link->mode, mode) == 0;
}

static bool is_both(const struct bench_link *link)
{
    return is_mode(link, "both") || is_mode(link, "bulk-both");
}

static bool is_linked(const void *context)
{
    const struct quic_node *node = context;
    return net_bulk_choose(node->net, 0, loop_now_ns());
}

/* Waits for the bulk link, if the mode is to use it. */
static void await_link(struct bench *bench)
{
    if (bench->bulk) {
        net_bulk_allow(bench->node->net, 0, true);
        check(quic_run_until(bench->loop, is_linked, bench->node, 5000), "the bulk link");
    }
}

/* Sends for duration_s seconds. Returns how long it really took. */
static double send_for(struct bench *bench, double duration_s)
{
    struct error error;
    uint64_t start_ns = loop_now_ns();
    uint64_t end_ns = start_ns + (uint64_t)(duration_s * 1e9);
    open_streams(bench);
    while (loop_now_ns() < end_ns) {
        top_up(bench);
        check(loop_run_once(bench->loop, 10, &error) == STATUS_OK, "loop");
    }
    return (double)(loop_now_ns() - start_ns) / 1e9;
}

static void bench_open(struct bench *bench, const struct bench_link *link, size_t end, struct test_pki *pki,
                       uint32_t datagram_bytes)
{
    struct quic_options options;
    struct error error;
    char bind_address[80];
    const char *name = end == 0 ? "a" : "b";
    bench_link_enter(&link->ends[end]);
    snprintf(bind_address, sizeof bind_address, "%s:0", link->ends[end].address);
    quic_node_options(pki, name, &options);
    options.bind_address = bind_address;
    options.datagram_max_bytes = datagram_bytes;
    check(loop_new(&bench->loop, &error) == STATUS_OK, "loop");
    bench->node = quic_node_new(bench->loop, pki, name, &options);
    bench->bulk = is_mode(link, "bulk") || is_mode(link, "bulk-both");
    if (bench->bulk) {
        struct tls_options tls = {.mode = NET_BULK_TLS, .processors = 2};
        check(net_tls_attach(bench->node->net, bench->loop, &tls, &error) == STATUS_OK, "bulk links");
    }
    bench->echoes = end == 1;
    bench->data = malloc(PIECE_BYTES);
    bench->pings_ns = is_mode(link, "ping") ? malloc(PINGS_MAX * sizeof *bench->pings_ns) : NULL;
    check(bench->data != NULL, "malloc");
    memset(bench->data, 7, PIECE_BYTES);
    net_set_stream_handler(bench->node->net, NET_STREAM_DATA,
                           &(struct net_stream_handler){
                               .context = bench, .receive = is_mode(link, "ping") ? receive_ping : receive});
}

static void add_peer(struct bench *bench, const char *name, const char *host, uint16_t port)
{
    char address[80];
    struct error error;
    uint32_t peer = 0;
    snprintf(address, sizeof address, "%s:%u", host, port);
    check(net_add_peer(bench->node->net, name, address, &peer, &error) == STATUS_OK, "adding the peer");
}

static void bench_close(struct bench *bench)
{
    for (unsigned i = 0; i < STREAMS && bench->streams[i] != NULL; i++) {
        net_stream_reset(bench->streams[i]);
    }
    quic_node_free(bench->node);
    loop_free(bench->loop);
    free(bench->data);
    free(bench->pings_ns);
}

static bool is_up(const void *context)
{
    const struct quic_node *node = context;
    return node->up[0];
}

/* Runs in the child process. It reports its port first. When its peer has gone, it reports what it sent,
 * and the processor time that it used. */
static _Noreturn void run_child(const struct bench_link *link, struct test_pki *pki, uint32_t datagram_bytes,
                                int out)
{
    struct bench bench = {0};
    struct child_report report = {0};
    bench_open(&bench, link, 1, pki, datagram_bytes);
    add_peer(&bench, "a", link->ends[0].address, 9);
    check(write(out, &bench.node->port, sizeof bench.node->port) == sizeof bench.node->port, "pipe");
    check(quic_run_until(bench.loop, is_up, bench.node, 5000), "connecting");
    await_link(&bench);
    double cpu_before_s = bench_cpu_s();
    if (is_both(link)) {
        report.elapsed_s = send_for(&bench, link->duration_s);
        report.sent_bytes = bench.sent_bytes;
    }
    while (bench.node->down_calls[0] == 0) {
        quic_run_for(bench.loop, 20);
    }
    report.cpu_s = bench_cpu_s() - cpu_before_s;
    check(write(out, &report, sizeof report) == sizeof report, "pipe");
    _exit(0);
}

static int compare(const void *left, const void *right)
{
    uint32_t x = *(const uint32_t *)left;
    uint32_t y = *(const uint32_t *)right;
    return x < y ? -1 : x > y;
}

static double run_pings(struct bench *bench, double duration_s)
{
    struct error error;
    uint64_t start_ns = loop_now_ns();
    uint64_t end_ns = start_ns + (uint64_t)(duration_s * 1e9);
    open_streams(bench);
    ping(bench);
    while (loop_now_ns() < end_ns) {
        check(loop_run_once(bench->loop, 10, &error) == STATUS_OK, "loop");
    }
    return (double)(loop_now_ns() - start_ns) / 1e9;
}

static void print_pings(struct bench *bench, double elapsed_s, double cpu_s, double child_cpu_s)
{
    unsigned count = bench->ping_count;
    check(count > 0, "ping");
    qsort(bench->pings_ns, count, sizeof *bench->pings_ns, compare);
    printf("ping of %u bytes: round trip median %.1f us, 99 %% below %.1f us, %u of them; CPU of a second: "
           "%.2f and %.2f\n",
           PING_BYTES, bench->pings_ns[count / 2] / 1e3, bench->pings_ns[(uint64_t)count * 99 / 100] / 1e3,
           count, cpu_s / elapsed_s, child_cpu_s / elapsed_s);
}

static void run_bench(const struct bench_link *link, struct test_pki *pki, uint32_t datagram_bytes)
{
    struct bench bench = {0};
    int pipe_ends[2];
    uint16_t port = 0;
    check(pipe(pipe_ends) == 0, "pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_child(link, pki, datagram_bytes, pipe_ends[1]);
    }
    close(pipe_ends[1]);
    check(child > 0 && read(pipe_ends[0], &port, sizeof port) == sizeof port, "starting the other end");
    bench_open(&bench, link, 0, pki, datagram_bytes);
    add_peer(&bench, "b", link->ends[1].address, port);
    quic_node_connect(bench.node, 0);
    check(quic_run_until(bench.loop, is_up, bench.node, 5000), "connecting");
    bool pings = is_mode(link, "ping");
    await_link(&bench);
    double cpu_before_s = bench_cpu_s();
    double elapsed_s = pings ? run_pings(&bench, link->duration_s) : send_for(&bench, link->duration_s);
    uint64_t bytes = bench.sent_bytes;
    double cpu_s = bench_cpu_s() - cpu_before_s;
    struct net_peer_statistics statistics;
    net_peer_statistics(bench.node->net, 0, &statistics);
    if (is_both(link)) {
        quic_run_for(bench.loop, 200); /* the other end began a little later, so it also goes on later */
    }
    net_disconnect(bench.node->net, 0, &(struct error){.status = STATUS_SHUTTING_DOWN, .text = "done"});
    quic_run_for(bench.loop, 20);
    struct child_report report;
    check(read(pipe_ends[0], &report, sizeof report) == sizeof report, "the other end");
    waitpid(child, NULL, 0);
    if (pings) {
        print_pings(&bench, elapsed_s, cpu_s, report.cpu_s);
    } else {
        printf("datagrams %5u bytes: %6.3f Gbit/s; CPU of a second: sender %.2f, receiver %.2f; round trip "
               "%llu us, lost packets %llu",
               statistics.datagram_bytes, (double)bytes * 8 / 1e9 / elapsed_s, cpu_s / elapsed_s,
               report.cpu_s / elapsed_s, (unsigned long long)(statistics.round_trip_ns / TIME_US),
               (unsigned long long)statistics.lost_packets);
        if (is_both(link)) {
            printf("; the other way %.3f Gbit/s", (double)report.sent_bytes * 8 / 1e9 / report.elapsed_s);
        }
        printf("\n");
    }
    close(pipe_ends[0]);
    bench_close(&bench);
}

int main(int argc, char **argv)
{
    struct bench_link link;
    bench_link_parse(&link, argc, argv, "stream both ping bulk bulk-both");
    log_set_level(LOG_LEVEL_ERROR);
    (void)signal(SIGPIPE, SIG_IGN); /* as commd does */
    struct test_pki *pki = test_pki_new();
    test_pki_issue(pki, "a", &(struct test_certificate){.name = "a"});
    test_pki_issue(pki, "b", &(struct test_certificate){.name = "b"});
    for (size_t i = 0; i < link.datagram_count; i++) {
        run_bench(&link, pki, link.datagram_bytes[i]);
    }
    test_pki_free(pki);
    return 0;
}
