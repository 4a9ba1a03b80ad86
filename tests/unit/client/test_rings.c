#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "tests/lib/fake_rings.h"
#include "tests/lib/send_fds.h"
#include "tests/unit/client/client_pair.h"

/* The library's rings alone, with this thread on the other side. test_rings_client.c has a whole client. */

struct sides {
    struct fake_rings *commd;
    struct client_rings *client;
    int sockets[2]; /* the client's, commd's */
};

static void copy_fds(const struct fake_rings *commd, int fds[CLIENT_RING_FDS])
{
    fake_rings_client_fds(commd, fds);
    for (int i = 0; i < CLIENT_RING_FDS; i++) {
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
    }
}

static struct sides sides_make(void)
{
    int fds[CLIENT_RING_FDS];
    struct sides sides = {.commd = fake_rings_new()};
    copy_fds(sides.commd, fds);
    sides.client = rings_open(fds);
    assert_non_null(sides.client);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sides.sockets), 0);
    return sides;
}

static void sides_free(struct sides *sides)
{
    rings_close(sides->client);
    fake_rings_free(sides->commd);
    close(sides->sockets[0]);
    close(sides->sockets[1]);
}

/* Whether the client's bell has rung; it is quiet afterwards. */
static bool client_hears(const struct sides *sides)
{
    char bytes[64];
    return read(sides->client->bell_fd, bytes, sizeof bytes) > 0;
}

static bool wait_ms(const struct sides *sides, uint64_t ms)
{
    return rings_wait(sides->client, sides->sockets[0], POLLIN, NULL, clock_after_ms(ms));
}

static void assert_closed(int fd)
{
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(errno, EBADF);
}

static void test_descriptors_that_cannot_be_used(void **state)
{
    (void)state;
    struct fake_rings *commd = fake_rings_new();
    int fds[CLIENT_RING_FDS];
    for (int wrong = 0; wrong < 6; wrong++) {
        copy_fds(commd, fds);
        if (wrong == 0) { /* memory that is smaller than the rings: to touch it would end the process */
            close(fds[0]);
            fds[0] = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            assert_true(fds[0] >= 0);
            assert_int_equal(ftruncate(fds[0], 4096), 0);
            assert_int_equal(fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK), 0);
        } else if (wrong == 1) { /* none at all */
            assert_true(dup2(fds[1], fds[0]) >= 0);
        } else if (wrong == 2) { /* memory that commd could shorten: to touch it then would end the process */
            close(fds[0]);
            fds[0] = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            assert_true(fds[0] >= 0);
            assert_int_equal(ftruncate(fds[0], 2 * (off_t)ring_shared_bytes(CLIENT_RING_BYTES)), 0);
        } else if (wrong >= 4) { /* a doorbell that could block */
            int ends[2];
            assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
            int *bell = &fds[wrong == 4 ? 1 : 2];
            close(*bell);
            *bell = ends[wrong == 4 ? 1 : 0];
            close(ends[wrong == 4 ? 0 : 1]);
        } else { /* memory to which nothing can be written */
            char path[64];
            close(fds[0]);
            snprintf(path, sizeof path, "/proc/self/fd/%d", commd->memory_fd);
            fds[0] = open(path, O_RDONLY | O_CLOEXEC);
            assert_true(fds[0] >= 0);
        }
        assert_null(rings_open(fds));
        for (int i = 0; i < CLIENT_RING_FDS; i++) {
            assert_closed(fds[i]);
        }
    }
    fake_rings_free(commd);
}

/* The kernel delivers one descriptor more than CLIENT_HELLO_FDS, because control data are padded. */
static void test_more_descriptors_than_there_is_room_for(void **state)
{
    (void)state;
    int sockets[2], ends[2], fds[CLIENT_HELLO_FDS + 1];
    struct comm_client *client = calloc(1, sizeof *client);
    assert_non_null(client);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    client->fd = sockets[0];
    client->path = (char *)"socket";
    fences_init(&client->fences);
    for (size_t i = 0; i < CLIENT_HELLO_FDS + 1; i++) {
        fds[i] = ends[1];
    }
    /* no event: the connection ends */
    assert_int_equal(send_with_fds(sockets[1], "?", 1, fds, CLIENT_HELLO_FDS + 1, 0), 1);
    client_take_all(client);
    assert_int_equal(client->lost, COMM_PROTOCOL);
    assert_int_equal(client->hello_fd_count, CLIENT_HELLO_FDS);
    for (size_t i = 0; i < CLIENT_HELLO_FDS; i++) {
        assert_int_equal(close(client->hello_fds[i]), 0);
    }
    close(ends[1]);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody can write: the sixth descriptor is closed, too */
    close(ends[0]);
    close(sockets[0]);
    close(sockets[1]);
    free(client);
}

/* A packet's number, and bytes that differ by it. */
static void make_packet(unsigned char *packet, size_t size, unsigned number)
{
    fill_bytes(packet, size, number);
    memcpy(packet, &number, sizeof number);
}

static void take_packet(const struct sides *sides, size_t size, unsigned number)
{
    unsigned char got[4096], expected[4096];
    assert_int_equal(fake_rings_take(sides->commd, got, sizeof got), size);
    make_packet(expected, size, number);
    assert_memory_equal(got, expected, size);
}

/* The packets go round many times, so that entries lie over the end of the data. */
static void test_packets_wrap(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    unsigned char packet[4096];
    uint64_t bytes = 0;
    unsigned put = 0, taken = 0;
    for (; bytes < 8 * (uint64_t)CLIENT_RING_BYTES; put++) {
        size_t size = 4 + put * 37 % 4000;
        make_packet(packet, size, put);
        assert_int_equal(rings_send(sides.client, packet, size), RING_OK);
        bytes += size;
        for (; put - taken >= 12; taken++) {
            take_packet(&sides, 4 + taken * 37 % 4000, taken);
        }
    }
    for (; taken < put; taken++) {
        take_packet(&sides, 4 + taken * 37 % 4000, taken);
    }
    assert_int_equal(fake_rings_take(sides.commd, packet, sizeof packet), 0);
    sides_free(&sides);
}

static void test_quiet_packets_wait_for_the_next_bell(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    unsigned char got[64];
    assert_true(ring_consumer_sleep(&sides.commd->in));
    assert_int_equal(rings_send_quietly(sides.client, "one", 3), RING_OK);
    assert_int_equal(fake_rings_heard(sides.commd), 0);
    assert_int_equal(rings_send(sides.client, "three", 5), RING_OK);
    assert_int_equal(fake_rings_heard(sides.commd), 1);
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 3);
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 5);
    sides_free(&sides);
}

static void test_bell_rings_for_who_sleeps(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    unsigned char got[64];
    assert_int_equal(rings_send(sides.client, "one", 3), RING_OK);
    assert_int_equal(fake_rings_heard(sides.commd), 0); /* commd is awake */
    assert_false(ring_consumer_sleep(&sides.commd->in));
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 3);
    assert_true(ring_consumer_sleep(&sides.commd->in));
    assert_int_equal(rings_send(sides.client, "two", 3), RING_OK);
    assert_int_equal(rings_send(sides.client, "three", 5), RING_OK);
    assert_int_equal(fake_rings_heard(sides.commd), 1); /* once */
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 3);
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 5);
    /* The other direction: what the client took makes room. commd is told only if it waits for that. */
    assert_true(fake_rings_put(sides.commd, "answer", 6));
    assert_false(client_hears(&sides));
    rings_taken(sides.client);
    assert_int_equal(fake_rings_heard(sides.commd), 0);
    static unsigned char most[CLIENT_RING_BYTES / 2 - RING_LENGTH_BYTES];
    assert_true(fake_rings_put(sides.commd, most, sizeof most));
    assert_false(fake_rings_put(sides.commd, most, sizeof most));
    assert_true(ring_producer_sleep(&sides.commd->out, sizeof most));
    size_t size_bytes;
    assert_int_equal(ring_take(&sides.client->in, got, sizeof got, &size_bytes), RING_OK);
    rings_taken(sides.client);
    rings_taken(sides.client);
    assert_int_equal(fake_rings_heard(sides.commd), 1);
    sides_free(&sides);
}

static void test_full(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    unsigned char packet[1000], got[1000];
    unsigned put = 0, taken = 0;
    for (make_packet(packet, sizeof packet, put);
         rings_send(sides.client, packet, sizeof packet) == RING_OK;) {
        make_packet(packet, sizeof packet, ++put);
    }
    assert_int_equal(put, CLIENT_RING_BYTES / 1008);
    assert_false(client_hears(&sides));
    for (int again = 0; again < 3; again++) {
        take_packet(&sides, sizeof packet, taken++);
        assert_true(client_hears(&sides)); /* there is room */
        assert_int_equal(rings_send(sides.client, packet, sizeof packet), RING_OK);
        make_packet(packet, sizeof packet, ++put);
        assert_int_equal(rings_send(sides.client, packet, sizeof packet), RING_FULL);
    }
    /* A commd that sleeps is told that the ring is full: otherwise both sides would wait. */
    (void)fake_rings_heard(sides.commd);
    atomic_store(&sides.commd->in.shared->consumer_sleeps, 1);
    assert_int_equal(rings_send(sides.client, packet, sizeof packet), RING_FULL);
    assert_int_equal(fake_rings_heard(sides.commd), 1);
    for (; taken < put; taken++) {
        take_packet(&sides, sizeof packet, taken);
    }
    assert_int_equal(fake_rings_take(sides.commd, got, sizeof got), 0);
    sides_free(&sides);
}

static void test_what_ends_a_wait(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    char byte;
    uint64_t began_ns = clock_ns();
    assert_true(wait_ms(&sides, 30)); /* the time is over */
    assert_true(clock_ns() - began_ns >= 30000000u);
    assert_true(fake_rings_put(sides.commd, "x", 1));
    assert_false(wait_ms(&sides, 60000)); /* a packet is there already: nobody slept */
    assert_false(client_hears(&sides));
    size_t size_bytes;
    assert_int_equal(ring_take(&sides.client->in, &byte, 1, &size_bytes), RING_OK);
    /* The bell ends the wait, and is quiet afterwards. Nobody sleeps any more. */
    assert_int_equal(write(sides.commd->client_bell[1], "x", 1), 1);
    assert_true(wait_ms(&sides, 60000));
    assert_false(client_hears(&sides));
    assert_true(fake_rings_put(sides.commd, "x", 1));
    assert_false(client_hears(&sides));
    assert_int_equal(ring_take(&sides.client->in, &byte, 1, &size_bytes), RING_OK);
    assert_int_equal(send(sides.sockets[1], "x", 1, 0), 1); /* the socket */
    assert_true(wait_ms(&sides, 60000));
    assert_int_equal(recv(sides.sockets[0], &byte, 1, 0), 1);
    assert_int_equal(shutdown(sides.sockets[1], SHUT_RDWR), 0); /* its end */
    assert_true(wait_ms(&sides, 60000));
    sides_free(&sides);
}

static void *put_when_asleep(void *context)
{
    const struct sides *sides = context;
    for (unsigned i = 0; i < 200; i++) {
        while (atomic_load(&sides->commd->out.shared->consumer_sleeps) == 0) {
            sched_yield();
        }
        assert_true(fake_rings_put(sides->commd, &i, sizeof i));
    }
    return NULL;
}

/* A sleeper is woken, every time. */
static void test_woken(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, put_when_asleep, &sides), 0);
    for (unsigned i = 0; i < 200; i++) {
        unsigned got = UINT32_MAX;
        size_t size_bytes;
        uint64_t deadline_ns = clock_after_ms(60000);
        while (!ring_has_packet(&sides.client->in)) {
            assert_true(clock_ns() < deadline_ns);
            (void)rings_wait(sides.client, sides.sockets[0], POLLIN, NULL, deadline_ns);
        }
        assert_int_equal(ring_take(&sides.client->in, &got, sizeof got, &size_bytes), RING_OK);
        assert_int_equal(got, i);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    sides_free(&sides);
}

static void test_a_hostile_head(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    static const uint32_t heads[] = {8, 1, CLIENT_RING_BYTES, UINT32_MAX, 0x80000000u};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        atomic_store(&sides.commd->in.shared->head, heads[i]);
        assert_int_equal(rings_send(sides.client, "x", 1), RING_BROKEN);
    }
    sides_free(&sides);
}

/* commd fills the bell and makes calls on it block. The library's calls return all the same. */
static void test_a_bell_that_is_full(void **state)
{
    (void)state;
    struct sides sides = sides_make();
    while (write(sides.commd->bell[1], "x", 1) == 1) {
    }
    assert_int_equal(fcntl(sides.commd->bell[1], F_SETFL, 0), 0);
    assert_int_equal(fcntl(sides.commd->client_bell[0], F_SETFL, 0), 0);
    alarm(60); /* ends the test */
    assert_true(ring_consumer_sleep(&sides.commd->in));
    assert_int_equal(rings_send(sides.client, "one", 3), RING_OK);
    assert_true(wait_ms(&sides, 1));
    alarm(0);
    sides_free(&sides);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors_that_cannot_be_used),
        cmocka_unit_test(test_more_descriptors_than_there_is_room_for),
        cmocka_unit_test(test_packets_wrap),
        cmocka_unit_test(test_quiet_packets_wait_for_the_next_bell),
        cmocka_unit_test(test_bell_rings_for_who_sleeps),
        cmocka_unit_test(test_a_bell_that_is_full),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_what_ends_a_wait),
        cmocka_unit_test(test_woken),
        cmocka_unit_test(test_a_hostile_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
