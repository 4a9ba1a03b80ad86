#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <commclient.h>

/*
 * Sends COUNT messages of BYTES bytes from rank 0 to rank 1.
 *
 *   messages NAME RANK COUNT BYTES BESIDE
 *
 * BESIDE is one of:
 *   - 0: only the messages
 *   - 1: meanwhile another thread broadcasts SIDE_BYTES bytes again and again, on another communicator
 *   - 2: no messages, but COUNT broadcasts of BYTES bytes
 *
 * The messages use buffers of WINDOW_BYTES bytes together, at most WINDOW_MAX buffers. A broadcast uses one
 * buffer again and again. So it is fair that large messages use few buffers. Each rank checks what it
 * receives. It prints JSON: the seconds in all, and the longest time between two receives.
 */
enum { WINDOW_MAX = 256, WINDOW_MIN = 2, WINDOW_BYTES = 4 << 20, SIDE_BYTES = 1 << 20 };

struct rank {
    const char *name;
    unsigned rank;
    size_t count, bytes;
};

static void check(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "messages: %s: %s: %s\n", what, comm_result_text(result), comm_last_error());
        exit(1);
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static comm_t *join(const struct rank *me, const char *suffix, comm_client_t **client)
{
    char name[128];
    comm_t *comm;
    (void)snprintf(name, sizeof name, "%s%s", me->name, suffix);
    check(comm_client_open(NULL, client), "comm_client_open");
    check(comm_init(*client, name, me->rank, 2, COMM_DEVICE_HOST, NULL, &comm), "comm_init");
    check(comm_barrier(comm, NULL), "comm_barrier");
    return comm;
}

/* Writes the message's number into its first and last words. */
static void mark(unsigned char *buffer, size_t bytes, uint64_t number)
{
    memcpy(buffer, &number, sizeof number);
    memcpy(buffer + bytes - sizeof number, &number, sizeof number);
}

static void expect(const unsigned char *buffer, size_t bytes, uint64_t number)
{
    if (memcmp(buffer, &number, sizeof number) != 0 ||
        memcmp(buffer + bytes - sizeof number, &number, sizeof number) != 0) {
        fprintf(stderr, "messages: message %llu is wrong\n", (unsigned long long)number);
        exit(1);
    }
}

/* --- Messages --- */

struct window {
    comm_t *comm;
    unsigned char *buffers;
    size_t count;
    comm_request_t *requests[WINDOW_MAX];
};

static void post(struct window *window, const struct rank *me, uint64_t number)
{
    unsigned char *buffer = window->buffers + number % window->count * me->bytes;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &window->requests[number % window->count];
    if (me->rank == 0) {
        mark(buffer, me->bytes, number);
        check(comm_send(window->comm, buffer, me->bytes, COMM_U8, 1, 0, &options), "comm_send");
    } else {
        check(comm_recv(window->comm, buffer, me->bytes, COMM_U8, 0, 0, &options), "comm_recv");
    }
}

static void run_messages(const struct rank *me, struct window *window)
{
    double began_s = now_s(), last_s = began_s, longest_s = 0;
    for (uint64_t number = 0; number < me->count + window->count; number++) {
        if (number >= window->count) {
            uint64_t done = number - window->count;
            check(comm_wait(&window->requests[done % window->count], NULL), "comm_wait");
            double here_s = now_s();
            longest_s = here_s - last_s > longest_s ? here_s - last_s : longest_s;
            last_s = here_s;
            if (me->rank == 1) {
                expect(window->buffers + done % window->count * me->bytes, me->bytes, done);
            }
        }
        if (number < me->count) {
            post(window, me, number);
        }
    }
    printf("{\"rank\": %u, \"seconds\": %.6f, \"longest_ms\": %.3f}\n", me->rank, now_s() - began_s,
           1e3 * longest_s);
}

/* --- Broadcasts --- */

/* Broadcasts. The first byte of the root's buffer says whether this broadcast is the last. */
static void broadcast(const struct rank *me, comm_t *comm, unsigned char *buffer, size_t bytes, bool last)
{
    if (me->rank == 0) {
        buffer[0] = last;
    }
    check(comm_broadcast(comm, buffer, bytes, COMM_U8, 0, NULL), "comm_broadcast");
    check(comm_sync(comm, 0), "comm_sync");
}

static atomic_bool is_over;

static void *broadcast_beside(void *context)
{
    const struct rank *me = context;
    comm_client_t *client;
    comm_t *comm = join(me, "-beside", &client);
    void *buffer;
    bool last = false;
    check(comm_mem_alloc(client, SIDE_BYTES, COMM_DEVICE_HOST, &buffer), "comm_mem_alloc");
    while (!last) {
        broadcast(me, comm, buffer, SIDE_BYTES, atomic_load(&is_over));
        last = *(unsigned char *)buffer != 0;
    }
    comm_destroy(comm);
    comm_client_close(client);
    return NULL;
}

static void run_broadcasts(const struct rank *me, comm_t *comm, unsigned char *buffer)
{
    double began_s = now_s();
    for (size_t i = 0; i < me->count; i++) {
        broadcast(me, comm, buffer, me->bytes, false);
    }
    printf("{\"rank\": %u, \"seconds\": %.6f, \"longest_ms\": 0}\n", me->rank, now_s() - began_s);
}

int main(int argc, char **argv)
{
    if (argc != 6 || strtoull(argv[4], NULL, 10) < sizeof(uint64_t)) {
        fprintf(stderr, "usage: messages NAME RANK COUNT BYTES 0|1|2\n");
        return 2;
    }
    struct rank me = {.name = argv[1],
                      .rank = (unsigned)strtoul(argv[2], NULL, 10),
                      .count = (size_t)strtoull(argv[3], NULL, 10),
                      .bytes = (size_t)strtoull(argv[4], NULL, 10)};
    unsigned long beside = strtoul(argv[5], NULL, 10);
    struct window window;
    comm_client_t *client;
    pthread_t other;
    void *memory;
    window.count = WINDOW_BYTES / me.bytes < WINDOW_MAX ? WINDOW_BYTES / me.bytes : WINDOW_MAX;
    window.count = window.count > WINDOW_MIN ? window.count : WINDOW_MIN;
    window.comm = join(&me, "", &client);
    check(comm_mem_alloc(client, me.bytes * window.count, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    window.buffers = memory;
    if (beside == 1 && pthread_create(&other, NULL, broadcast_beside, &me) != 0) {
        perror("messages: pthread_create");
        return 1;
    }
    check(comm_barrier(window.comm, NULL), "comm_barrier");
    check(comm_sync(window.comm, 0), "comm_sync");
    if (beside == 2) {
        run_broadcasts(&me, window.comm, window.buffers);
    } else {
        run_messages(&me, &window);
    }
    if (beside == 1) {
        atomic_store(&is_over, true);
        (void)pthread_join(other, NULL);
    }
    check(comm_barrier(window.comm, NULL), "comm_barrier");
    check(comm_sync(window.comm, 0), "comm_sync");
    comm_destroy(window.comm);
    comm_client_close(client);
    return 0;
}
