/*
 * What this machine can do at best, to set the benchmark's figures against. Each line of output is one
 * figure, in JSON.
 *
 *   limits [SECONDS]                       in memory: memcpy, AES-128-GCM, a spin ping-pong between two
 * processes limits receive KIND ADDRESS PORT       one way between two processes; KIND: tcp, tls, udp limits
 * send KIND ADDRESS PORT SECONDS DATAGRAM_BYTES
 *
 * The receiver prints. TLS: 1.3, TLS_AES_128_GCM_SHA256, records of 16 KiB in user space. UDP: trains of
 * datagrams by GSO and GRO.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COPY_BYTES ((size_t)128 << 20)
#define PIECE_BYTES ((size_t)256 << 10)
#define UDP_TRAIN_BYTES 65000
#define PINGS 200000
#define THREADS_MAX 64

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static void print(const char *name, double value, const char *unit)
{
    printf("{\"limit\": \"%s\", \"value\": %.4f, \"unit\": \"%s\"}\n", name, value, unit);
    fflush(stdout);
}

/* ---- in memory */

struct copier {
    pthread_t thread;
    double seconds;
    double gigabytes_per_s;
};

static void *copy(void *context)
{
    struct copier *copier = context;
    char *from = aligned_alloc(4096, COPY_BYTES);
    char *to = aligned_alloc(4096, COPY_BYTES);
    if (from == NULL || to == NULL) {
        die("memory");
    }
    memset(from, 1, COPY_BYTES);
    memset(to, 2, COPY_BYTES);
    double start_s = now_s();
    size_t copies = 0;
    do {
        memcpy(to, from, COPY_BYTES);
        __asm__ volatile("" : : "r"(to) : "memory");
        copies++;
    } while (now_s() - start_s < copier->seconds);
    copier->gigabytes_per_s = (double)copies * (double)COPY_BYTES / 1e9 / (now_s() - start_s);
    free(from);
    free(to);
    return NULL;
}

static double copy_rate(unsigned threads, double seconds)
{
    struct copier copiers[THREADS_MAX];
    double sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        copiers[i].seconds = seconds;
        if (pthread_create(&copiers[i].thread, NULL, copy, &copiers[i]) != 0) {
            die("thread");
        }
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(copiers[i].thread, NULL);
        sum += copiers[i].gigabytes_per_s;
    }
    return sum;
}

static double seal_rate(int record_bytes, double seconds)
{
    static const unsigned char key[16] = {1};
    unsigned char nonce[12] = {0};
    unsigned char tag[16];
    int length = 0;
    unsigned char *from = calloc(1, (size_t)record_bytes);
    unsigned char *to = calloc(1, (size_t)record_bytes + sizeof tag);
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, nonce);
    size_t records = 0;
    double start_s = now_s();
    do {
        for (int i = 0; i < 256; i++, records++) {
            memcpy(nonce, &records, sizeof records);
            EVP_EncryptInit_ex(cipher, NULL, NULL, NULL, nonce);
            EVP_EncryptUpdate(cipher, to, &length, from, record_bytes);
            EVP_EncryptFinal_ex(cipher, to + length, &length);
            EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, sizeof tag, tag);
        }
    } while (now_s() - start_s < seconds);
    double rate = (double)records * record_bytes / 1e9 / (now_s() - start_s);
    EVP_CIPHER_CTX_free(cipher);
    free(from);
    free(to);
    return rate;
}

/* Microseconds there and back, between processes on two processors that do nothing else. */
static double ping_pong_us(void)
{
    _Atomic uint32_t *turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turn == MAP_FAILED) {
        die("mmap");
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (uint32_t i = 0; i < PINGS; i++) {
            while (atomic_load_explicit(turn, memory_order_acquire) != 2 * i + 1) {
            }
            atomic_store_explicit(turn, 2 * i + 2, memory_order_release);
        }
        _exit(0);
    }
    double start_s = now_s();
    for (uint32_t i = 0; i < PINGS; i++) {
        atomic_store_explicit(turn, 2 * i + 1, memory_order_release);
        while (atomic_load_explicit(turn, memory_order_acquire) != 2 * i + 2) {
        }
    }
    double elapsed_s = now_s() - start_s;
    waitpid(child, NULL, 0);
    munmap(turn, 4096);
    return elapsed_s * 1e6 / PINGS;
}

static void measure_memory(double seconds)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    print("memcpy, one thread", copy_rate(1, seconds), "GB/s");
    print("memcpy, all processors",
          copy_rate(processors > THREADS_MAX ? THREADS_MAX : (unsigned)processors, seconds), "GB/s");
    print("AES-128-GCM, records of 1350 B", seal_rate(1350, seconds), "GB/s");
    print("AES-128-GCM, records of 8 KiB", seal_rate(8192, seconds), "GB/s");
    print("AES-128-GCM, records of 64 KiB", seal_rate(65536, seconds), "GB/s");
    if (processors > 1) {
        print("spin ping-pong, there and back", ping_pong_us(), "us");
    }
}

/* ---- between two processes */

static struct sockaddr_in address_of(const char *address, const char *port)
{
    struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, address, &result.sin_addr) != 1) {
        fprintf(stderr, "limits: %s is no address\n", address);
        exit(2);
    }
    return result;
}

/* A certificate of its own, that the sender does not check: only the cost of the records counts here. */
static SSL_CTX *server_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    X509 *certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)"limits", -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context, certificate);
    SSL_CTX_use_PrivateKey(context, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return context;
}

static SSL *start_tls(int socket, bool server)
{
    SSL_CTX *context = server ? server_context() : SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL *tls = SSL_new(context);
    SSL_CTX_free(context);
    SSL_set_fd(tls, socket);
    if ((server ? SSL_accept(tls) : SSL_connect(tls)) != 1) {
        fprintf(stderr, "limits: no TLS\n");
        exit(1);
    }
    return tls;
}

static void print_one_way(const char *kind, uint64_t bytes, double elapsed_s, double used_s)
{
    char name[64];
    snprintf(name, sizeof name, "%s one way", kind);
    print(name, (double)bytes / 1e9 / elapsed_s, "GB/s");
    snprintf(name, sizeof name, "%s one way, receiver", kind);
    print(name, used_s / elapsed_s, "processors");
}

static void receive_stream(const char *kind, const struct sockaddr_in *address)
{
    int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (const struct sockaddr *)address, sizeof *address) != 0 || listen(listener, 1) != 0) {
        die("listen");
    }
    int connection = accept(listener, NULL, NULL);
    SSL *tls = strcmp(kind, "tls") == 0 ? start_tls(connection, true) : NULL;
    char *piece = malloc(PIECE_BYTES);
    uint64_t bytes = 0;
    double start_s = now_s();
    double used_s = cpu_s();
    for (;;) {
        ssize_t got =
            tls != NULL ? SSL_read(tls, piece, (int)PIECE_BYTES) : read(connection, piece, PIECE_BYTES);
        if (got <= 0) {
            break;
        }
        bytes += (uint64_t)got;
    }
    print_one_way(kind, bytes, now_s() - start_s, cpu_s() - used_s);
    free(piece);
    SSL_free(tls);
    close(connection);
    close(listener);
}

/* A datagram of one byte ends it. */
static void receive_datagrams(const struct sockaddr_in *address)
{
    int on = 1;
    int buffer_bytes = 8 << 20;
    int receiver = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(receiver, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(receiver, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    if (bind(receiver, (const struct sockaddr *)address, sizeof *address) != 0) {
        die("bind");
    }
    char *piece = malloc(PIECE_BYTES);
    uint64_t bytes = 0;
    double start_s = 0;
    double used_s = 0;
    for (;;) {
        ssize_t got = recv(receiver, piece, PIECE_BYTES, 0);
        if (got <= 1) {
            break;
        }
        if (bytes == 0) {
            start_s = now_s();
            used_s = cpu_s();
        }
        bytes += (uint64_t)got;
    }
    print_one_way("udp", bytes, now_s() - start_s, cpu_s() - used_s);
    free(piece);
    close(receiver);
}

static int connect_to(const struct sockaddr_in *address, int type)
{
    int on = 1;
    for (int attempt = 0; attempt < 100; attempt++) {
        int connection = socket(AF_INET, type, 0);
        if (type == SOCK_STREAM) { /* without it, TLS waits for acknowledgements of its cut records: a fifth
                                      of the rate */
            setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
        if (connect(connection, (const struct sockaddr *)address, sizeof *address) == 0) {
            return connection;
        }
        close(connection);
        usleep(20000);
    }
    die("connect");
}

static void send_stream(const char *kind, const struct sockaddr_in *address, double seconds)
{
    int connection = connect_to(address, SOCK_STREAM);
    SSL *tls = strcmp(kind, "tls") == 0 ? start_tls(connection, false) : NULL;
    char *piece = calloc(1, PIECE_BYTES);
    double start_s = now_s();
    while (now_s() - start_s < seconds) {
        ssize_t put =
            tls != NULL ? SSL_write(tls, piece, (int)PIECE_BYTES) : write(connection, piece, PIECE_BYTES);
        if (put <= 0) {
            die("write");
        }
    }
    free(piece);
    if (tls != NULL) {
        SSL_shutdown(tls);
        SSL_free(tls);
    }
    close(connection);
}

static void send_datagrams(const struct sockaddr_in *address, double seconds, int datagram_bytes)
{
    int sender = connect_to(address, SOCK_DGRAM);
    char *train = calloc(1, UDP_TRAIN_BYTES);
    size_t train_bytes = (size_t)(UDP_TRAIN_BYTES / datagram_bytes * datagram_bytes);
    if (setsockopt(sender, IPPROTO_UDP, UDP_SEGMENT, &datagram_bytes, sizeof datagram_bytes) != 0) {
        die("UDP_SEGMENT");
    }
    usleep(300000); /* until the receiver is there: nothing says so */
    double start_s = now_s();
    while (now_s() - start_s < seconds) {
        if (send(sender, train, train_bytes, 0) < 0) {
            sched_yield();
        }
    }
    for (int i = 0; i < 10; i++) {
        usleep(20000);
        if (send(sender, train, 1, 0) < 0) {
            break;
        }
    }
    free(train);
    close(sender);
}

int main(int argc, char **argv)
{
    if (argc <= 2) {
        measure_memory(argc > 1 ? strtod(argv[1], NULL) : 0.5);
        return 0;
    }
    if (argc < 5) {
        fprintf(stderr, "usage: limits [SECONDS] | receive KIND ADDRESS PORT | send KIND ADDRESS PORT "
                        "SECONDS DATAGRAM_BYTES\n");
        return 2;
    }
    struct sockaddr_in address = address_of(argv[3], argv[4]);
    bool datagrams = strcmp(argv[2], "udp") == 0;
    if (strcmp(argv[1], "receive") == 0) {
        if (datagrams) {
            receive_datagrams(&address);
        } else {
            receive_stream(argv[2], &address);
        }
    } else if (argc == 7) {
        if (datagrams) {
            send_datagrams(&address, strtod(argv[5], NULL), atoi(argv[6]));
        } else {
            send_stream(argv[2], &address, strtod(argv[5], NULL));
        }
    }
    return 0;
}
