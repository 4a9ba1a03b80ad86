#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "daemon/net/quic_tls.h"
#include "tests/lib/quic_node.h"

/*
 * The program with which bench_quic is compared: it does the least that ngtcp2 and OpenSSL need for one
 * stream. It has the same certificates, datagrams, windows, and segmentation offload both ways. It uses only
 * the TLS contexts of daemon/net. It has one connection and one stream, no heap of timers, and no queues.
 *
 *   quic_minimal [SECONDS [DATAGRAM_BYTES...]]
 */

#define BATCH_DATAGRAMS 64
#define BATCH_MAX_BYTES 65000
#define WINDOW_BYTES (16u << 20)

struct end {
    int fd;
    ngtcp2_conn *connection;
    ngtcp2_crypto_ossl_ctx *crypto;
    ngtcp2_crypto_conn_ref reference;
    struct sockaddr_in local, remote;
    int64_t stream;
    bool sends;
    bool completed;
    uint64_t bytes; /* sent, or received */
    uint64_t sum;
};

static void fail(const char *what)
{
    fprintf(stderr, "quic_minimal: %s\n", what);
    _exit(1);
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* --- What ngtcp2 calls --- */

static ngtcp2_conn *connection_of(ngtcp2_crypto_conn_ref *reference)
{
    return ((struct end *)reference->user_data)->connection;
}

static void on_random(uint8_t *out, size_t size, const ngtcp2_rand_ctx *context)
{
    (void)context;
    (void)RAND_bytes(out, (int)size);
}

static int on_new_cid(ngtcp2_conn *connection, ngtcp2_cid *cid, ngtcp2_stateless_reset_token *token,
                      size_t size, void *context)
{
    (void)connection;
    (void)context;
    cid->datalen = size;
    return RAND_bytes(cid->data, (int)size) == 1 && RAND_bytes(token->data, sizeof token->data) == 1
               ? 0
               : NGTCP2_ERR_CALLBACK_FAILURE;
}

static int on_completed(ngtcp2_conn *connection, void *context)
{
    (void)connection;
    ((struct end *)context)->completed = true;
    return 0;
}

/* Reads every byte once, as bench_quic does. */
static int on_data(ngtcp2_conn *connection, uint32_t flags, int64_t stream, uint64_t offset,
                   const uint8_t *data, size_t size, void *context, void *stream_context)
{
    struct end *end = context;
    (void)flags;
    (void)offset;
    (void)stream_context;
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        end->sum += word;
    }
    end->bytes += size;
    ngtcp2_conn_extend_max_stream_offset(connection, stream, size);
    ngtcp2_conn_extend_max_offset(connection, size);
    return 0;
}

static const ngtcp2_callbacks callbacks = {
    .client_initial = ngtcp2_crypto_client_initial_cb,
    .recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
    .recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
    .encrypt = ngtcp2_crypto_encrypt_cb,
    .decrypt = ngtcp2_crypto_decrypt_cb,
    .hp_mask = ngtcp2_crypto_hp_mask_cb,
    .recv_retry = ngtcp2_crypto_recv_retry_cb,
    .update_key = ngtcp2_crypto_update_key_cb,
    .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
    .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
    .get_path_challenge_data2 = ngtcp2_crypto_get_path_challenge_data2_cb,
    .version_negotiation = ngtcp2_crypto_version_negotiation_cb,
    .rand = on_random,
    .get_new_connection_id2 = on_new_cid,
    .handshake_completed = on_completed,
    .recv_stream_data = on_data,
};

/* --- Out --- */

static ngtcp2_ssize write_packet(ngtcp2_conn *connection, ngtcp2_path *path, ngtcp2_pkt_info *info,
                                 uint8_t *out, size_t size, ngtcp2_tstamp now_ns, void *context)
{
    static uint8_t data[1 << 16];
    struct end *end = context;
    ngtcp2_vec piece = {.base = data, .len = sizeof data};
    ngtcp2_ssize accepted = 0;
    bool stream = end->sends && end->stream >= 0;
    ngtcp2_ssize written =
        ngtcp2_conn_writev_stream(connection, path, info, out, size, &accepted, NGTCP2_WRITE_STREAM_FLAG_NONE,
                                  stream ? end->stream : -1, &piece, stream ? 1 : 0, now_ns);
    if (written == NGTCP2_ERR_STREAM_DATA_BLOCKED) {
        written = ngtcp2_conn_writev_stream(connection, path, info, out, size, NULL,
                                            NGTCP2_WRITE_STREAM_FLAG_NONE, -1, NULL, 0, now_ns);
    }
    return written;
}

static void send_batch(const struct end *end, const uint8_t *bytes, size_t size, size_t datagram_bytes)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(uint16_t))];
    } control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct sockaddr_in remote = end->remote;
    struct msghdr message = {
        .msg_name = &remote, .msg_namelen = sizeof remote, .msg_iov = &part, .msg_iovlen = 1};
    uint16_t segment = (uint16_t)datagram_bytes;
    if (size > datagram_bytes) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header.cmsg_level = SOL_UDP;
        control.header.cmsg_type = UDP_SEGMENT;
        control.header.cmsg_len = CMSG_LEN(sizeof segment);
        memcpy(CMSG_DATA(&control.header), &segment, sizeof segment);
    }
    while (sendmsg(end->fd, &message, 0) < 0 && (errno == EAGAIN || errno == EINTR)) {
        struct pollfd ready = {.fd = end->fd, .events = POLLOUT};
        (void)poll(&ready, 1, 10);
    }
}

static void write_all(struct end *end)
{
    static uint8_t buffer[BATCH_MAX_BYTES];
    for (int batches = 0; batches < 32; batches++) {
        ngtcp2_path_storage path;
        ngtcp2_pkt_info info;
        size_t datagram_bytes = 0;
        ngtcp2_path_storage_zero(&path);
        ngtcp2_ssize size =
            ngtcp2_conn_write_aggregate_pkt2(end->connection, &path.path, &info, buffer, sizeof buffer,
                                             &datagram_bytes, write_packet, BATCH_DATAGRAMS, loop_now_ns());
        if (size < 0) {
            fail(ngtcp2_strerror((int)size));
        }
        if (size == 0) {
            break;
        }
        send_batch(end, buffer, (size_t)size, datagram_bytes);
    }
    ngtcp2_conn_update_pkt_tx_time(end->connection, loop_now_ns());
}

/* --- In --- */

static void path_of(const struct end *end, ngtcp2_path *path)
{
    *path = (ngtcp2_path){
        .local = {.addr = (ngtcp2_sockaddr *)(uintptr_t)&end->local, .addrlen = sizeof end->local},
        .remote = {.addr = (ngtcp2_sockaddr *)(uintptr_t)&end->remote, .addrlen = sizeof end->remote}};
}

static ssize_t receive_batch(struct end *end, uint8_t *buffer, size_t room, size_t *datagram_bytes)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = buffer, .iov_len = room};
    struct msghdr message = {.msg_name = &end->remote,
                             .msg_namelen = sizeof end->remote,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t size = recvmsg(end->fd, &message, MSG_DONTWAIT);
    *datagram_bytes = size > 0 ? (size_t)size : 0;
    for (struct cmsghdr *item = size > 0 ? CMSG_FIRSTHDR(&message) : NULL; item != NULL;
         item = CMSG_NXTHDR(&message, item)) {
        if (item->cmsg_level == SOL_UDP && item->cmsg_type == UDP_GRO) {
            int segment;
            memcpy(&segment, CMSG_DATA(item), sizeof segment);
            *datagram_bytes = (size_t)segment;
        }
    }
    return size;
}

static void accept_first(struct end *end, const uint8_t *datagram, size_t size);

static void read_all(struct end *end)
{
    static uint8_t buffer[65536];
    for (int batches = 0; batches < 32; batches++) {
        size_t datagram_bytes;
        ssize_t size = receive_batch(end, buffer, sizeof buffer, &datagram_bytes);
        if (size <= 0) {
            return;
        }
        if (end->connection == NULL) {
            accept_first(end, buffer, datagram_bytes);
        }
        ngtcp2_path path;
        path_of(end, &path);
        uint64_t now_ns = loop_now_ns();
        for (size_t at = 0; at < (size_t)size; at += datagram_bytes) {
            size_t length = (size_t)size - at < datagram_bytes ? (size_t)size - at : datagram_bytes;
            int result = ngtcp2_conn_read_pkt(end->connection, &path, NULL, buffer + at, length, now_ns);
            if (result == NGTCP2_ERR_DRAINING) {
                return;
            }
            if (result != 0) {
                fail(ngtcp2_strerror(result));
            }
        }
    }
}

/* --- Connections --- */

static struct quic_tls *tls;
static uint16_t probes[1];

static void settings_of(ngtcp2_settings *settings, ngtcp2_transport_params *parameters)
{
    ngtcp2_settings_default(settings);
    settings->initial_ts = loop_now_ns();
    settings->initial_rtt = 1 * TIME_MS;
    settings->ack_thresh = 8;
    settings->cc_algo = NGTCP2_CC_ALGO_CUBIC;
    settings->pmtud_probes = probes;
    settings->pmtud_probeslen = 1;
    settings->max_tx_udp_payload_size = probes[0];
    ngtcp2_transport_params_default(parameters);
    parameters->initial_max_stream_data_uni = WINDOW_BYTES;
    parameters->initial_max_data = WINDOW_BYTES;
    parameters->initial_max_streams_uni = 4;
    parameters->max_idle_timeout = 5 * TIME_S;
}

static void secure(struct end *end, SSL *ssl)
{
    if (ssl == NULL || ngtcp2_crypto_ossl_ctx_new(&end->crypto, ssl) != 0) {
        fail("TLS");
    }
    end->reference = (ngtcp2_crypto_conn_ref){.get_conn = connection_of, .user_data = end};
    SSL_set_app_data(ssl, &end->reference);
    ngtcp2_conn_set_tls_native_handle(end->connection, end->crypto);
}

static void accept_first(struct end *end, const uint8_t *datagram, size_t size)
{
    static struct error refusal;
    ngtcp2_pkt_hd header;
    ngtcp2_settings settings;
    ngtcp2_transport_params parameters;
    ngtcp2_path path;
    ngtcp2_cid source = {.datalen = 8};
    if (ngtcp2_accept(&header, datagram, size) != 0) {
        fail("no Initial");
    }
    settings_of(&settings, &parameters);
    parameters.original_dcid = header.dcid;
    parameters.original_dcid_present = 1;
    (void)RAND_bytes(source.data, 8);
    path_of(end, &path);
    if (ngtcp2_conn_server_new(&end->connection, &header.scid, &source, &path, header.version, &callbacks,
                               &settings, &parameters, NULL, end) != 0) {
        fail("no memory");
    }
    secure(end, quic_tls_accept(tls, &refusal));
}

static void dial(struct end *end)
{
    static struct error refusal;
    ngtcp2_settings settings;
    ngtcp2_transport_params parameters;
    ngtcp2_path path;
    ngtcp2_cid destination = {.datalen = 18}, source = {.datalen = 8};
    (void)RAND_bytes(destination.data, 18);
    (void)RAND_bytes(source.data, 8);
    settings_of(&settings, &parameters);
    path_of(end, &path);
    if (ngtcp2_conn_client_new(&end->connection, &destination, &source, &path, NGTCP2_PROTO_VER_V1,
                               &callbacks, &settings, &parameters, NULL, end) != 0) {
        fail("no memory");
    }
    secure(end, quic_tls_dial(tls, "b", &refusal));
}

static void open_socket(struct end *end)
{
    socklen_t size = sizeof end->local;
    int on = 1, room = 4 << 20, probe = IP_PMTUDISC_PROBE;
    end->stream = -1;
    end->local = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    end->fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(end->fd, (struct sockaddr *)&end->local, sizeof end->local) != 0 ||
        getsockname(end->fd, (struct sockaddr *)&end->local, &size) != 0 ||
        setsockopt(end->fd, SOL_UDP, UDP_GRO, &on, sizeof on) != 0) {
        fail("socket");
    }
    (void)setsockopt(end->fd, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof probe);
    (void)setsockopt(end->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    (void)setsockopt(end->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
}

static void turn(struct end *end, uint64_t end_ns)
{
    uint64_t now_ns = loop_now_ns();
    uint64_t expiry_ns = end->connection == NULL ? UINT64_MAX : ngtcp2_conn_get_expiry(end->connection);
    uint64_t until_ns = expiry_ns < end_ns ? expiry_ns : end_ns;
    uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait_ns / TIME_S), .tv_nsec = (long)(wait_ns % TIME_S)};
    struct pollfd ready = {.fd = end->fd, .events = POLLIN};
    (void)ppoll(&ready, 1, &timeout, NULL);
    read_all(end);
    if (end->connection == NULL) {
        return;
    }
    now_ns = loop_now_ns();
    if (ngtcp2_conn_get_expiry(end->connection) <= now_ns &&
        ngtcp2_conn_handle_expiry(end->connection, now_ns) != 0) {
        fail("expired");
    }
    if (end->sends && end->completed && end->stream < 0) {
        if (ngtcp2_conn_open_uni_stream(end->connection, &end->stream, NULL) != 0) {
            end->stream = -1;
        }
    }
    write_all(end);
}

struct report {
    uint64_t bytes;
    double cpu_s;
};

static void run(struct test_pki *pki, double seconds, uint32_t datagram_bytes)
{
    struct end sender = {.sends = true}, receiver = {0};
    struct quic_options options;
    struct report report;
    struct error error;
    int ends[2];
    probes[0] = (uint16_t)datagram_bytes;
    open_socket(&sender);
    open_socket(&receiver);
    sender.remote = receiver.local;
    fflush(NULL);
    if (pipe(ends) != 0) {
        fail("pipe");
    }
    double warm_s = 0.3;
    pid_t child = fork();
    quic_node_options(pki, child == 0 ? "b" : "a", &options);
    if (quic_tls_new(&options, &tls, &error) != STATUS_OK) {
        fail(error.text);
    }
    uint64_t start_ns = loop_now_ns();
    uint64_t warm_ns = start_ns + (uint64_t)(warm_s * 1e9), end_ns = warm_ns + (uint64_t)(seconds * 1e9);
    struct end *end = child == 0 ? &receiver : &sender;
    if (child != 0) {
        dial(end);
        write_all(end);
    }
    double before_s = 0;
    uint64_t before_bytes = 0;
    bool warm = false;
    while (loop_now_ns() < end_ns) {
        if (!warm && loop_now_ns() >= warm_ns) {
            warm = true;
            before_s = cpu_s();
            before_bytes = end->bytes;
        }
        turn(end, warm ? end_ns : warm_ns);
    }
    report = (struct report){.bytes = end->bytes - before_bytes, .cpu_s = cpu_s() - before_s};
    if (child == 0) {
        (void)!write(ends[1], &report, sizeof report);
        _exit(0);
    }
    double sender_cpu_s = report.cpu_s;
    if (read(ends[0], &report, sizeof report) != sizeof report) {
        fail("the receiver ended");
    }
    waitpid(child, NULL, 0);
    printf("datagrams %5u bytes: %6.2f Gbit/s; CPU of a second: sender %.2f, receiver %.2f\n", datagram_bytes,
           (double)report.bytes * 8 / 1e9 / seconds, sender_cpu_s / seconds, report.cpu_s / seconds);
    close(sender.fd);
    close(receiver.fd);
    close(ends[0]);
    close(ends[1]);
    quic_tls_free(tls);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {1452, 8952, 65000};
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 3;
    (void)ngtcp2_crypto_ossl_init();
    struct test_pki *pki = test_pki_new();
    test_pki_issue(pki, "a", &(struct test_certificate){.name = "a"});
    test_pki_issue(pki, "b", &(struct test_certificate){.name = "b"});
    for (int i = 2; i < argc; i++) {
        run(pki, seconds, (uint32_t)strtoul(argv[i], NULL, 10));
    }
    for (size_t i = 0; argc <= 2 && i < sizeof sizes / sizeof sizes[0]; i++) {
        run(pki, seconds, sizes[i]);
    }
    test_pki_free(pki);
    return 0;
}
