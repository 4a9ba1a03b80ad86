#define OPENSSL_SUPPRESS_DEPRECATED 1
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/loop.h"

/*
 * Measures what this machine can do, to compare with commd's figures: copies, two processes that spin on a
 * cache line, AES-128-GCM. Also measures, one way over loopback: TCP, TLS 1.3 over TCP, and UDP with
 * segmentation offload.
 *
 *   limits [SECONDS]
 *   limits ping-pong
 *
 * SECONDS is the time for each measurement. With `ping-pong`, only the two processes that spin are measured.
 * Prints one JSON object a line.
 */

#define COPY_BYTES ((size_t)64 << 20)
#define STREAM_PIECE_BYTES ((size_t)256 << 10)
#define UDP_SEGMENT_BYTES 8952
#define UDP_SEGMENTS 7

static double seconds_each = 1;

static double now_s(void)
{
    return (double)loop_now_ns() * 1e-9;
}

static void print(const char *name, double value, const char *unit)
{
    printf("{\"limit\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}\n", name, value, unit);
    fflush(stdout);
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *map(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        fail("mmap");
    }
    return memory;
}

/* --- Memory --- */

struct copier {
    pthread_t thread;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    double end_s;
    size_t copied;
};

static void *copy(void *context)
{
    struct copier *copier = context;
    while (now_s() < copier->end_s) {
        memcpy(copier->to, copier->from, copier->bytes);
        copier->copied += copier->bytes;
    }
    return NULL;
}

static void measure_memcpy(int threads)
{
    struct copier copiers[2] = {0};
    double began_s = now_s();
    size_t copied = 0;
    char name[32];
    for (int i = 0; i < threads; i++) {
        copiers[i].to = map(COPY_BYTES);
        copiers[i].from = map(COPY_BYTES);
        copiers[i].bytes = COPY_BYTES;
        copiers[i].end_s = began_s + seconds_each;
    }
    began_s = now_s();
    for (int i = 0; i < threads; i++) {
        copiers[i].end_s = began_s + seconds_each;
        pthread_create(&copiers[i].thread, NULL, copy, &copiers[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(copiers[i].thread, NULL);
        copied += copiers[i].copied;
    }
    double took_s = now_s() - began_s;
    snprintf(name, sizeof name, "memcpy, %d thread%s", threads, threads > 1 ? "s" : "");
    print(name, 2 * (double)copied / took_s / 1e9, "GB/s read and written");
    for (int i = 0; i < threads; i++) {
        munmap(copiers[i].to, COPY_BYTES);
        munmap((void *)(uintptr_t)copiers[i].from, COPY_BYTES);
    }
}

/* --- Two processes, one cache line each way --- */

static void measure_ping_pong(void)
{
    struct {
        _Alignas(64) _Atomic uint32_t ping;
        _Alignas(64) _Atomic uint32_t pong;
    } *shared = map(4096);
    enum { ROUNDS = 200000 };
    pid_t child = fork();
    if (child == 0) {
        for (uint32_t i = 1; i <= ROUNDS; i++) {
            while (atomic_load_explicit(&shared->ping, memory_order_acquire) != i) {
            }
            atomic_store_explicit(&shared->pong, i, memory_order_release);
        }
        _exit(0);
    }
    double began_s = 0;
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        if (i == ROUNDS / 10) {
            began_s = now_s();
        }
        atomic_store_explicit(&shared->ping, i, memory_order_release);
        while (atomic_load_explicit(&shared->pong, memory_order_acquire) != i) {
        }
    }
    print("spin ping-pong", (now_s() - began_s) / (ROUNDS - ROUNDS / 10) * 1e6, "us there and back");
    waitpid(child, NULL, 0);
}

/* --- AES-128-GCM --- */

static void measure_aes(int record_bytes)
{
    static unsigned char in[65536], out[65536 + 16];
    unsigned char key[16] = {1}, nonce[12] = {2}, tag[16];
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-GCM", NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    char name[48];
    size_t bytes = 0;
    int length;
    EVP_EncryptInit_ex2(context, cipher, key, nonce, NULL);
    double began_s = now_s(), took_s;
    do {
        for (int i = 0; i < 64; i++) {
            nonce[0]++;
            EVP_EncryptInit_ex2(context, NULL, NULL, nonce, NULL);
            EVP_EncryptUpdate(context, out, &length, in, record_bytes);
            EVP_EncryptFinal_ex(context, out, &length);
            EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof tag, tag);
            bytes += (size_t)record_bytes;
        }
        took_s = now_s() - began_s;
    } while (took_s < seconds_each);
    snprintf(name, sizeof name, "AES-128-GCM, records of %d", record_bytes);
    print(name, (double)bytes / took_s / 1e9, "GB/s, one core");
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
}

/* --- TCP, with and without TLS --- */

static void tcp_pair(int pair[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
        fail("TCP");
    }
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(pair[0], (struct sockaddr *)&address, sizeof address) != 0) {
        fail("connect");
    }
    pair[1] = accept(listener, NULL, NULL);
    close(listener);
}

/* Makes a key and a self-signed certificate for this run. */
static SSL_CTX *tls_server(void)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    if (SSL_CTX_use_certificate(context, certificate) != 1 || SSL_CTX_use_PrivateKey(context, key) != 1) {
        fail("certificate");
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    return context;
}

static void tcp_receive(int fd, SSL *tls)
{
    static unsigned char buffer[STREAM_PIECE_BYTES];
    for (;;) {
        ssize_t got = tls != NULL ? SSL_read(tls, buffer, sizeof buffer) : read(fd, buffer, sizeof buffer);
        if (got <= 0) {
            _exit(0);
        }
    }
}

static void measure_tcp(bool with_tls)
{
    static unsigned char piece[STREAM_PIECE_BYTES];
    int pair[2];
    SSL *tls = NULL;
    tcp_pair(pair);
    SSL_CTX *server = with_tls ? tls_server() : NULL;
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        if (with_tls) {
            tls = SSL_new(server);
            SSL_set_fd(tls, pair[1]);
            if (SSL_accept(tls) != 1) {
                _exit(1);
            }
        }
        tcp_receive(pair[1], tls);
    }
    close(pair[1]);
    SSL_CTX *context = NULL;
    if (with_tls) {
        context = SSL_CTX_new(TLS_client_method());
        tls = SSL_new(context);
        SSL_set_fd(tls, pair[0]);
        if (SSL_connect(tls) != 1) {
            fail("TLS");
        }
    }
    double began_s = now_s(), took_s;
    size_t bytes = 0;
    do {
        ssize_t sent = with_tls ? SSL_write(tls, piece, sizeof piece) : write(pair[0], piece, sizeof piece);
        if (sent <= 0) {
            fail("send");
        }
        bytes += (size_t)sent;
        took_s = now_s() - began_s;
    } while (took_s < seconds_each);
    print(with_tls ? "TLS 1.3 over TCP, one way" : "TCP, one way", (double)bytes * 8 / took_s / 1e9,
          "Gbit/s");
    close(pair[0]);
    SSL_free(tls);
    SSL_CTX_free(context);
    SSL_CTX_free(server);
    waitpid(child, NULL, 0);
}

/* --- UDP --- */

static void udp_receive(int fd, _Atomic uint64_t *received)
{
    static unsigned char buffer[65536];
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got > 0) {
            atomic_fetch_add_explicit(received, (uint64_t)got, memory_order_relaxed);
        }
    }
}

static void measure_udp(void)
{
    static unsigned char batch[UDP_SEGMENT_BYTES * UDP_SEGMENTS];
    _Atomic uint64_t *received = map(4096);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
    int segment = UDP_SEGMENT_BYTES, on = 1, room = 4 << 20;
    setsockopt(in, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (bind(in, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(in, (struct sockaddr *)&address, &size) != 0 ||
        connect(out, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(out, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) != 0 ||
        setsockopt(in, IPPROTO_UDP, UDP_GRO, &on, sizeof on) != 0) {
        perror("UDP with segmentation offload: left out");
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        udp_receive(in, received);
    }
    double began_s = now_s(), took_s;
    do {
        (void)!send(out, batch, sizeof batch, 0);
        took_s = now_s() - began_s;
    } while (took_s < seconds_each);
    print("UDP with GSO, datagrams of 8952, received", (double)atomic_load(received) * 8 / took_s / 1e9,
          "Gbit/s");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(in);
    close(out);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "ping-pong") == 0) {
        measure_ping_pong();
        return 0;
    }
    seconds_each = argc > 1 ? strtod(argv[1], NULL) : 1;
    signal(SIGPIPE, SIG_IGN);
    measure_memcpy(1);
    measure_memcpy(2);
    measure_ping_pong();
    measure_aes(1350);
    measure_aes(8192);
    measure_aes(65536);
    measure_tcp(false);
    measure_tcp(true);
    measure_udp();
    return 0;
}
