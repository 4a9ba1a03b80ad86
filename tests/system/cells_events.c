/*
 * One rank of two: a receive waits for an event of another communicator, and its message has come through
 * shared memory. Then commd does not know the receive. Events behind it must still come after it, and it has
 * its deadline.
 */

#include <time.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define TIMEOUT_MS 20000u
#define ROUNDS 40u
#define LONG_ELEMENTS 20000u /* a message that commd reads from the sender's memory */
#define SHORT_TIMEOUT_MS 300u

static comm_t *gate, *other; /* the event is one of `gate` */
static comm_event_t *opened, *received;
static uint32_t gate_word;

static comm_request_t *receive(comm_t *from, uint32_t *data, size_t count, uint32_t tag, uint32_t timeout_ms)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.timeout_ms = timeout_ms;
    must(comm_recv(from, data, count, COMM_U32, 1 - rank, tag, &options), "comm_recv");
    return request;
}

static void send_word(comm_t *to, uint32_t word)
{
    must(comm_send(to, &word, 1, COMM_U32, 1 - rank, 0, NULL), "comm_send");
}

/* Operations of `comm` wait until rank 1 has sent a word on `gate`. */
static comm_request_t *close_gate(void)
{
    comm_request_t *request = receive(gate, &gate_word, 1, 0, 0);
    must(comm_event_record_comm(opened, gate), "comm_event_record_comm");
    must(comm_event_wait_comm(opened, comm), "comm_event_wait_comm");
    return request;
}

static void fail(const char *what, uint32_t round)
{
    fprintf(stderr, "rank %u, round %u: %s\n", rank, round, what);
    exit(EXIT_FAILURE);
}

/* What rank 0 sends on `other` behind the event has what it has received before the event. */
static void check_order(uint32_t *data)
{
    static uint32_t got[LONG_ELEMENTS];
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        if (rank == 1) {
            send_word(comm, round);
            meet_on(other);
            meet_on(other);
            usleep(round % 5 * 700);
            send_word(gate, round);
            comm_request_t *request = receive(other, got, LONG_ELEMENTS, 1, 0);
            must(comm_wait(&request, NULL), "comm_wait");
            if (got[0] != round) {
                fail("an event came before the receive in front of it had ended", round);
            }
            continue;
        }
        meet_on(other);
        data[0] = 0;
        comm_request_t *requests[3] = {close_gate(), receive(comm, data, 1, 0, 0), NULL};
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &requests[2];
        must(comm_event_record_comm(received, comm), "comm_event_record_comm");
        meet_on(other);
        must(comm_event_wait_comm(received, other), "comm_event_wait_comm");
        must(comm_send(other, data, LONG_ELEMENTS, COMM_U32, 1, 1, &options), "comm_send");
        must(comm_wait_all(requests, 3, NULL), "comm_wait_all");
    }
}

/* The event comes too late. */
static void check_deadline(uint32_t *data)
{
    if (rank == 1) {
        send_word(comm, 7);
        meet_on(other);
        meet_on(other);
        send_word(gate, 7);
        return;
    }
    meet_on(other);
    data[0] = 0;
    comm_request_t *late = close_gate(), *request = receive(comm, data, 1, 0, SHORT_TIMEOUT_MS);
    if (comm_wait(&request, NULL) != COMM_TIMED_OUT || data[0] != 0) {
        fail("a receive whose event did not come has no deadline", 0);
    }
    meet_on(other);
    must(comm_wait(&late, NULL), "comm_wait");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: cells_events NAME RANK SIZE\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    gate = join_another(argv[1], "gate");
    other = join_another(argv[1], "other");
    void *memory;
    must(comm_mem_alloc(client, LONG_ELEMENTS * sizeof(uint32_t), COMM_DEVICE_HOST, &memory),
         "comm_mem_alloc");
    must(comm_event_create(client, &opened), "comm_event_create");
    must(comm_event_create(client, &received), "comm_event_create");
    check_order(memory);
    check_deadline(memory);
    meet_on(other);
    comm_event_destroy(opened);
    comm_event_destroy(received);
    comm_destroy(gate);
    comm_destroy(other);
    leave();
    puts("checked");
    return 0;
}
