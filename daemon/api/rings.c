#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/api/session.h"
#include "daemon/base/descriptor.h"

/*
 * A session's rings: the same packets as on its socket, without system calls while both sides are awake.
 * commd creates and seals the memory, so no client can truncate it.
 */

#define RING_PACKETS_PER_TELL 16
/* The most packets that can be in the ring of a client that has disconnected. */
#define RING_LAST_PACKETS_MAX (CLIENT_RING_BYTES / RING_ALIGN_BYTES)

#define RINGS_FDS (1 + API_BELL_FDS) /* the memory, and both ends of two doorbells */

static size_t rings_bytes(void)
{
    return 2 * ring_shared_bytes(CLIENT_RING_BYTES);
}

/* --- Rings that are polled --- */

void api_rings_awake(struct api_session *session, uint64_t now_ns)
{
    struct api_rings *rings = session->rings;
    rings->busy_ns = now_ns;
    if (!rings->awake) {
        rings->awake = true;
        ring_consumer_wakes(&rings->in);
        DL_APPEND2(session->api->awake, session, awake_prev, awake_next);
    }
}

static void rings_set_asleep(struct api_session *session)
{
    if (session->rings->awake) {
        session->rings->awake = false;
        DL_DELETE2(session->api->awake, session, awake_prev, awake_next);
    }
}

/* --- Creating and freeing rings --- */

static enum status rings_map(struct api_rings *rings, struct error *error)
{
    rings->memory_fd = memfd_create("commd-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (rings->memory_fd < 0 || ftruncate(rings->memory_fd, (off_t)rings_bytes()) != 0 ||
        fcntl(rings->memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return error_set_errno(error, errno, "memory for rings");
    }
    void *memory = mmap(NULL, rings_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, rings->memory_fd, 0);
    if (memory == MAP_FAILED) {
        return error_set_errno(error, errno, "memory for rings");
    }
    rings->memory = memory;
    (void)madvise(memory, rings_bytes(), MADV_DONTDUMP); /* clients' data do not belong in a core dump */
    ring_attach(&rings->in, memory, CLIENT_RING_BYTES);
    ring_attach(&rings->out, rings->memory + ring_shared_bytes(CLIENT_RING_BYTES), CLIENT_RING_BYTES);
    return STATUS_OK;
}

static enum status rings_charge(struct api_session *session, struct error *error)
{
    enum status status = budget_charge(session->account, BUDGET_RINGS, rings_bytes(), error);
    if (status != STATUS_OK) {
        return status;
    }
    status = budget_charge(session->account, BUDGET_DESCRIPTORS, RINGS_FDS, error);
    if (status != STATUS_OK) {
        budget_release(session->account, BUDGET_RINGS, rings_bytes());
    }
    session->rings->charged = status == STATUS_OK;
    return status;
}

enum status api_rings_new(struct api_session *session, struct error *error)
{
    struct api_rings *rings = calloc(1, sizeof *rings);
    if (rings == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for rings");
    }
    rings->memory_fd = -1;
    rings->bell[0] = rings->bell[1] = rings->client_bell[0] = rings->client_bell[1] = -1;
    session->rings = rings;
    enum status status = rings_charge(session, error);
    if (status == STATUS_OK) {
        status = rings_map(rings, error);
    }
    if (status == STATUS_OK) {
        status = api_bells_new(session, error);
    }
    if (status != STATUS_OK) {
        api_rings_free(session);
        return status;
    }
    (void)ring_consumer_sleep(&rings->in);
    return STATUS_OK;
}

void api_rings_fds(const struct api_session *session, int fds[CLIENT_RING_FDS])
{
    const struct api_rings *rings = session->rings;
    fds[0] = rings->memory_fd;
    fds[1] = rings->bell[1];
    fds[2] = rings->client_bell[0];
}

void api_rings_sent(struct api_session *session)
{
    (void)close(session->rings->memory_fd); /* it is mapped */
    session->rings->memory_fd = -1;
}

void api_rings_free(struct api_session *session)
{
    struct api_rings *rings = session->rings;
    if (rings == NULL) {
        return;
    }
    rings_set_asleep(session);
    if (rings->rings_bell) {
        DL_DELETE2(session->api->bells, session, bell_prev, bell_next);
    }
    api_bells_free(session);
    if (rings->memory != NULL) {
        (void)munmap(rings->memory, rings_bytes());
    }
    descriptor_close(rings->memory_fd);
    if (rings->charged) {
        budget_release(session->account, BUDGET_RINGS, rings_bytes());
        budget_release(session->account, BUDGET_DESCRIPTORS, RINGS_FDS);
    }
    free(rings);
    session->rings = NULL;
}

/* --- Packets --- */

enum ring_result api_rings_put(struct api_session *session, const void *packet, size_t size_bytes)
{
    struct api_rings *rings = session->rings;
    enum ring_result result = ring_put(&rings->out, packet, size_bytes);
    while (result == RING_FULL && !ring_producer_sleep(&rings->out, size_bytes)) {
        result = ring_put(&rings->out, packet, size_bytes);
    }
    if (result == RING_OK && !rings->rings_bell) {
        rings->rings_bell = true;
        DL_APPEND2(session->api->bells, session, bell_prev, bell_next);
    }
    return result;
}

void api_ring_bells(struct api *api)
{
    while (api->bells != NULL) {
        struct api_session *session = api->bells;
        DL_DELETE2(api->bells, session, bell_prev, bell_next);
        session->rings->rings_bell = false;
        if (ring_wake_consumer(&session->rings->out)) {
            api_bell_ring(session->rings);
        }
    }
}

bool api_rings_take(struct api_session *session, uint8_t *bytes, size_t room_bytes, size_t *size_bytes,
                    uint64_t now_ns)
{
    struct api_rings *rings = session->rings;
    enum ring_result result = ring_take(&rings->in, bytes, room_bytes, size_bytes);
    if (result == RING_NOTHING || (session->ending && ++rings->last_taken > RING_LAST_PACKETS_MAX)) {
        return false; /* of a session that is ending: another process has the ring, and still writes */
    }
    rings->busy_ns = now_ns;
    rings->bells_for_nothing = 0;
    session->api->took_requests = true;
    if (result != RING_OK) {
        *size_bytes = 0;
        api_session_reply_end(session, 0, STATUS_PROTOCOL, "its ring holds invalid data");
    }
    return true;
}

void api_rings_taken(struct api_session *session)
{
    struct api_rings *rings = session->rings;
    if (++rings->taken < RING_PACKETS_PER_TELL && api_session_reads(session) && ring_has_packet(&rings->in)) {
        return; /* a check costs about as much as a packet */
    }
    rings->taken = 0;
    if (ring_wake_producer(&rings->in)) {
        api_bell_ring(rings);
    }
}

bool api_poll(struct api *api, uint64_t now_ns)
{
    struct api_session *session, *next;
    api->now_ns = now_ns;
    api->sends_left = API_SENDS_MAX;
    api_accept_again(api);
    api_reloads_poll(api);
    DL_FOREACH_SAFE2(api->awake, session, next, awake_next)
    {
        struct api_rings *rings = session->rings;
        bool is_read = !session->broken && !session->closing; /* otherwise it is never read again */
        if (is_read && (!api_session_reads(session) || session->turn.queued)) {
            continue;
        }
        if (is_read && ring_has_packet(&rings->in)) {
            turn_queue(&api->turns, &session->turn);
        } else if (!is_read ||
                   (now_ns - rings->busy_ns > API_RING_AWAKE_NS && ring_consumer_sleep(&rings->in))) {
            rings_set_asleep(session);
        }
    }
    api->took_requests = api->graphs.all != NULL && api_graphs_poll(api, now_ns);
    (void)turns_serve(&api->turns, now_ns);
    api_sessions_free_gone(api);
    return api->took_requests;
}

bool api_is_awake(const struct api *api)
{
    return api->awake != NULL;
}

bool api_sleep(struct api *api)
{
    struct api_session *session, *next;
    if (turns_wait(&api->turns) || api->graphs.polls) {
        return false;
    }
    DL_FOREACH_SAFE2(api->awake, session, next, awake_next)
    {
        if (api_session_reads(session) && !ring_consumer_sleep(&session->rings->in)) {
            return false;
        }
        rings_set_asleep(session); /* a paused one goes on when its client takes answers and rings */
    }
    return true;
}
