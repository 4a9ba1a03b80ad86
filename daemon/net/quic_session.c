#include <assert.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

/*
 * A session is what two nodes have in common while they remember the same streams. It outlives the
 * connection: when that is lost, the streams wait (QUIC_STATE_SUSPENDED), and the next connection takes them
 * over. Each side first tells the other how much of each stream it has received; the sender goes on from
 * there. So every byte is handed out once. A sender frees memory when the peer's QUIC has acknowledged it,
 * which is when the peer has received it in order, and handed it out or kept it.
 *
 * Only the peer's new process, a failure that it tells, or the end of the patience ends a session. The old
 * connection is given up before the greeting of the next one is made, so nothing that comes late is counted.
 */

/* --- Greetings --- */

static int compare_receivers(const void *left, const void *right)
{
    uint64_t a = (*(struct quic_receiver *const *)left)->number;
    uint64_t b = (*(struct quic_receiver *const *)right)->number;
    return a < b ? -1 : a > b;
}

/* Lists the receivers, ascending by number. Returns null when out of memory; the caller frees the list. */
static struct quic_receiver **list_receivers(const struct quic_connection *connection, uint32_t *count)
{
    struct quic_receiver *receiver;
    size_t length = 0;
    DL_COUNT(connection->receivers, receiver, length);
    struct quic_receiver **list = calloc(length + 1, sizeof(struct quic_receiver *));
    if (list == NULL) {
        return NULL;
    }
    *count = 0;
    DL_FOREACH(connection->receivers, receiver)
    {
        list[(*count)++] = receiver;
    }
    qsort(list, *count, sizeof(struct quic_receiver *), compare_receivers);
    return list;
}

/* Says what is remembered of the suspended connection. Returns false when out of memory. */
static bool describe(const struct quic_connection *suspended, struct quic_greeting *greeting)
{
    const struct quic_sender *sender;
    struct quic_receiver **receivers = list_receivers(suspended, &greeting->incoming_count);
    greeting->incoming = calloc((size_t)greeting->incoming_count + 1, sizeof *greeting->incoming);
    greeting->outgoing = calloc((size_t)suspended->session.sender_count + 1, sizeof *greeting->outgoing);
    if (receivers == NULL || greeting->incoming == NULL || greeting->outgoing == NULL) {
        free(receivers);
        return false;
    }
    for (uint32_t i = 0; i < greeting->incoming_count; i++) {
        greeting->incoming[i].number = receivers[i]->number;
        greeting->incoming[i].received = receivers[i]->intake.stopped
                                             ? QUIC_GREETING_STOPPED
                                             : stream_intake_received(&receivers[i]->intake);
    }
    free(receivers);
    DL_FOREACH(suspended->senders, sender)
    {
        greeting->outgoing[greeting->outgoing_count++] = sender->number;
    }
    greeting->own_id = suspended->session.own_id;
    greeting->peer_id = suspended->session.peer_id;
    greeting->seen = suspended->session.seen; /* not copied */
    return true;
}

static bool send_greeting(struct quic_connection *connection, const struct quic_greeting *greeting)
{
    size_t size = quic_greeting_size(greeting);
    uint8_t *bytes = malloc(size);
    bool sent = false;
    if (bytes != NULL) {
        quic_greeting_encode(greeting, bytes);
        sent = quic_sender_greet(connection, bytes, size);
    }
    free(bytes);
    return sent;
}

/* The peer's greeting may have come with the end of the handshake. */
static void take_early_greeting(struct quic_connection *connection)
{
    struct quic_receiver *receiver, *next;
    DL_FOREACH_SAFE(connection->receivers, receiver, next)
    {
        if (receiver->early && receiver->intake.buffer_bytes > 0 &&
            receiver->intake.buffer[receiver->intake.buffer_first] == QUIC_KIND_GREETING) {
            quic_receiver_take_early(receiver);
        }
    }
}

void quic_session_greet(struct quic_connection *connection)
{
    const struct quic_connection *up = connection->peer->up;
    struct quic_greeting greeting = {0};
    bool made;
    if (up != NULL && up->state == QUIC_STATE_SUSPENDED && !up->failed) {
        made = describe(up, &greeting);
    } else {
        uint32_t number;
        made = RAND_bytes((uint8_t *)&number, sizeof number) == 1;
        greeting.own_id =
            (uint64_t)(uint64_t)connection->endpoint->process_id << 32 | number | 1; /* never 0 */
    }
    connection->greeting_id = greeting.own_id;
    connection->state = QUIC_STATE_GREETING;
    if (!made || !send_greeting(connection, &greeting)) {
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for a greeting");
    }
    greeting.seen = (struct quic_numbers){0};
    quic_greeting_clear(&greeting);
    take_early_greeting(connection);
}

bool quic_session_same_process(const struct quic_connection *connection,
                               const struct quic_connection *suspended)
{
    return connection->greeting.own_id >> 32 == suspended->session.peer_id >> 32;
}

bool quic_session_matches(const struct quic_connection *connection, const struct quic_connection *suspended)
{
    const struct quic_session *session = &suspended->session;
    return connection->greeting.own_id == session->peer_id &&
           connection->greeting.peer_id == session->own_id && connection->greeting_id == session->own_id;
}

/* --- Taking over --- */

static void lie(struct quic_connection *connection, uint64_t number)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 96];
    snprintf(reason, sizeof reason, "%s sent a greeting that is wrong about stream %llu",
             quic_connection_text(connection, who), (unsigned long long)number);
    quic_connection_abort(connection, STATUS_PROTOCOL, reason);
}

/* The peer does not list the stream: it has all of it, wants no more of it, or has nothing of it. Returns
 * whether the stream goes on, from its beginning. */
static bool unlisted_goes_on(struct quic_connection *connection, struct quic_sender *sender)
{
    if (!quic_numbers_have(&connection->greeting.seen, sender->number)) {
        if (sender->queue.received_end > 0) {
            lie(connection, sender->number);
        }
        return true;
    }
    if (sender->shut) {
        quic_sender_lose(sender, STATUS_ABORTED);
    } else if (sender->finishing) {
        quic_sender_complete(sender);
    } else {
        lie(connection, sender->number);
    }
    return false;
}

static void resume_sender(struct quic_connection *connection, struct quic_sender *sender)
{
    const struct quic_greeting_stream *listed = quic_greeting_find(&connection->greeting, sender->number);
    uint64_t offset = 0;
    if (listed != NULL && listed->received == QUIC_GREETING_STOPPED) {
        quic_sender_lose(sender, STATUS_ABORTED);
        return;
    }
    if (listed != NULL) {
        offset = listed->received;
        if (offset < sender->queue.received_end || offset > sender->queue.sent_end ||
            offset < QUIC_BEGINNING_BYTES) {
            lie(connection, sender->number);
            return;
        }
    } else if (!unlisted_goes_on(connection, sender) || connection->failed) {
        return;
    }
    struct quic_connection *old = sender->connection;
    DL_DELETE(old->senders, sender);
    old->session.sender_count--;
    if (!quic_sender_resume(sender, connection, offset)) {
        DL_APPEND(old->senders, sender);
        old->session.sender_count++;
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for the streams of a session");
        return;
    }
    DL_APPEND(connection->senders, sender);
    connection->session.sender_count++;
}

/* A stream that the sender does not have any more was reset, unless all of it has come. */
static void resume_receiver(struct quic_connection *connection, struct quic_receiver *receiver)
{
    struct quic_connection *old = receiver->connection;
    DL_DELETE(old->receivers, receiver);
    DL_APPEND(connection->receivers, receiver);
    receiver->connection = connection;
    receiver->id = -1;
    receiver->transport_over = false;
    if (quic_greeting_sends(&connection->greeting, receiver->number)) {
        return;
    }
    if (receiver->over) {
        quic_receiver_close(receiver, NULL, true, connection->endpoint->now_ns);
    } else if (!receiver->intake.ended && !receiver->intake.stopped) {
        receiver->intake.reset = true;
        quic_work_receiver(receiver);
    }
}

static bool resume_receivers(struct quic_connection *connection, struct quic_connection *suspended)
{
    uint32_t count = 0;
    struct quic_receiver **list = list_receivers(suspended, &count);
    connection->unresumed = calloc((size_t)count + 1, sizeof *connection->unresumed);
    if (list == NULL || connection->unresumed == NULL) {
        free(list);
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for the streams of a session");
        return false;
    }
    connection->unresumed_count = count;
    for (uint32_t i = 0; i < count; i++) {
        connection->unresumed[i] = (struct quic_unresumed){list[i]->number, list[i]};
    }
    for (uint32_t i = 0; i < count; i++) {
        resume_receiver(connection, list[i]);
    }
    free(list);
    return true;
}

bool quic_session_resume(struct quic_connection *connection, struct quic_connection *suspended)
{
    struct quic_sender *sender, *next;
    connection->session = suspended->session;
    suspended->session.seen = (struct quic_numbers){0};
    connection->session.sender_count = 0;
    connection->peer->contact->past.resumed_count++;
    DL_FOREACH_SAFE(suspended->senders, sender, next)
    {
        if (!connection->failed) {
            resume_sender(connection, sender);
        }
    }
    return !connection->failed && resume_receivers(connection, suspended);
}

static int compare_unresumed(const void *key, const void *entry)
{
    uint64_t number = *(const uint64_t *)key, its = ((const struct quic_unresumed *)entry)->number;
    return number < its ? -1 : number > its;
}

struct quic_receiver *quic_session_take_unresumed(struct quic_connection *connection, uint64_t number)
{
    struct quic_unresumed *found = connection->unresumed_count == 0
                                       ? NULL
                                       : bsearch(&number, connection->unresumed, connection->unresumed_count,
                                                 sizeof *connection->unresumed, compare_unresumed);
    struct quic_receiver *receiver = found != NULL ? found->receiver : NULL;
    if (found != NULL) {
        found->receiver = NULL;
    }
    return receiver;
}

void quic_session_clear(struct quic_connection *connection)
{
    quic_numbers_clear(&connection->session.seen);
    quic_greeting_clear(&connection->greeting);
    free(connection->unresumed);
    connection->unresumed = NULL;
    connection->unresumed_count = 0;
}

/* --- Suspended --- */

static void suspend_streams(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_receiver *receiver, *next_receiver;
    struct quic_sender *sender, *next_sender;
    DL_FOREACH_SAFE(connection->receivers, receiver, next_receiver)
    {
        if (!receiver->kind_known || receiver->greeting) {
            quic_receiver_close(receiver, NULL, true, now_ns);
        }
    }
    DL_FOREACH_SAFE(connection->senders, sender, next_sender)
    {
        if (sender->number == QUIC_NO_NUMBER) {
            quic_sender_free(sender);
        } else {
            quic_sender_suspend(sender);
        }
    }
}

/* Whether our side dials at once, and the other one a little later. */
static bool dials_first(const struct quic_connection *connection)
{
    return strcmp(connection->endpoint->node_name, connection->peer->name) < 0;
}

static void arm_suspended(struct quic_connection *connection)
{
    connection->armed_ns = time_min(connection->session.attempt_ns, connection->session.give_up_ns);
    loop_timer_set(connection->timer, connection->armed_ns);
}

void quic_session_suspend(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_session *session = &connection->session;
    const struct quic_endpoint *endpoint = connection->endpoint;
    struct quic_numbers seen = session->seen;
    struct quic_receiver *receiver;
    if (log_limit_pass(&connection->endpoint->loss_limit, now_ns, NULL)) {
        log_info("network: %s%s%s; its streams wait for another connection",
                 connection->failed ? "" : "node ",
                 connection->failed ? connection->cause.text : connection->peer->name,
                 connection->failed ? "" : " connects anew");
    }
    bool has_moved = quic_watch_has_moved(connection);
    const ngtcp2_path *path = ngtcp2_conn_get_path2(connection->transport);
    if (has_moved) {
        connection->peer->contact->seen = connection->elsewhere;
    } else {
        (void)quic_address_set(&connection->peer->contact->seen, path->remote.addr, path->remote.addrlen);
    }
    suspend_streams(connection, now_ns);
    quic_connection_account(connection, &connection->peer->contact->past);
    quic_work_forget_connection(connection);
    quic_connection_dissolve(connection);
    while (connection->cids != NULL) {
        quic_cid_drop(connection, connection->cids);
    }
    DL_FOREACH(connection->receivers, receiver)
    {
        receiver->id = -1;
    }
    session->seen = (struct quic_numbers){0};
    quic_session_clear(connection);
    session->seen = seen;
    connection->state = QUIC_STATE_SUSPENDED;
    connection->failed = connection->silent = connection->resumable = connection->suspected = false;
    session->suspended_ns = now_ns;
    session->heard_ns = connection->unanswered_ns == 0                       ? now_ns
                        : connection->unanswered_ns > connection->excused_ns ? connection->unanswered_ns
                                                                             : connection->excused_ns;
    session->give_up_ns = time_after(session->heard_ns, endpoint->patience_ns);
    session->attempt_ns =
        dials_first(connection) || has_moved ? now_ns : time_after(now_ns, QUIC_OTHER_SIDE_NS);
    session->attempt_length_ns = QUIC_ATTEMPT_MIN_NS;
    session->attempts = 0;
    session->asked_ns = 0;
    session->waits_left = QUIC_GIVE_WAY_MAX;
    arm_suspended(connection);
}

/* Where the peer may be: returns how many addresses are known. */
static unsigned addresses_of(const struct quic_peer *peer, const struct quic_address *out[3])
{
    const struct quic_address *known[] = {&peer->contact->seen, &peer->contact->spare, &peer->address};
    unsigned count = 0;
    for (unsigned i = 0; i < 3; i++) {
        struct quic_address_key key, other;
        bool is_new = known[i]->size > 0;
        for (unsigned j = 0; is_new && j < count; j++) {
            quic_address_key(known[i], &key);
            quic_address_key(out[j], &other);
            is_new = memcmp(&key, &other, sizeof key) != 0;
        }
        if (is_new) {
            out[count++] = known[i];
        }
    }
    return count;
}

const struct quic_address *quic_session_address(const struct quic_connection *suspended)
{
    const struct quic_address *different[3];
    unsigned count = addresses_of(suspended->peer, different);
    return count == 0 ? &suspended->peer->contact->seen
                      : different[(suspended->session.attempts - 1) % count];
}

void quic_session_attempt_failed(struct quic_connection *suspended, uint64_t now_ns)
{
    struct quic_session *session = &suspended->session;
    uint64_t wait_ns = dials_first(suspended) ? QUIC_ATTEMPT_AGAIN_NS : QUIC_OTHER_SIDE_NS;
    session->attempt_ns = time_min(session->attempt_ns, time_after(now_ns, wait_ns));
    arm_suspended(suspended);
}

static bool has_answers(const struct quic_peer *peer, uint64_t now_ns)
{
    return quic_watch_has_answers(peer->dial, now_ns) || quic_watch_has_answers(peer->greeting, now_ns);
}

/* An attempt that has no answer yet goes on: it asks again and again. But another address may be right. */
static void dial_again(struct quic_peer *peer, uint64_t now_ns)
{
    struct quic_session *session = &peer->up->session;
    const struct quic_address *different[3];
    bool goes_on = peer->dial != NULL && !peer->dial->failed && addresses_of(peer, different) == 1 &&
                   peer->dial->answered_ns == 0 &&
                   now_ns < time_after(peer->dial->created_ns, QUIC_ATTEMPT_LAST_NS);
    if (!goes_on) {
        session->attempts++;
        quic_peer_drop_attempt(&peer->dial, "it takes too long", now_ns);
        quic_work_dial(peer->up->endpoint, peer);
    }
}

void quic_session_asked(const struct quic_peer *peer, uint64_t now_ns)
{
    if (peer != NULL && peer->up != NULL && peer->up->state == QUIC_STATE_SUSPENDED) {
        peer->up->session.asked_ns = now_ns;
    }
}

/* Whether our side waits for the handshake that the peer has begun. */
static bool gives_way(struct quic_connection *suspended, uint64_t now_ns)
{
    struct quic_session *session = &suspended->session;
    if (dials_first(suspended) || session->waits_left == 0 || session->asked_ns == 0 ||
        now_ns >= time_after(session->asked_ns, QUIC_GIVE_WAY_NS)) {
        return false;
    }
    session->waits_left--;
    return true;
}

void quic_session_tick(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_session *session = &connection->session;
    struct quic_peer *peer = connection->peer;
    uint64_t late_ns = now_ns > connection->armed_ns ? now_ns - connection->armed_ns : 0;
    if (late_ns > QUIC_LATE_NS) { /* our machine or process stood still: that time is not the peer's */
        session->heard_ns += late_ns;
        session->give_up_ns = time_after(session->give_up_ns, late_ns);
    }
    if (now_ns >= session->give_up_ns) {
        char reason[NODE_NAME_MAX_BYTES + 64];
        snprintf(reason, sizeof reason, "node %s: nothing was heard of it for %llu ms", peer->name,
                 (unsigned long long)((now_ns - session->heard_ns) / TIME_MS));
        quic_connection_abort(connection, STATUS_NODE_LOST, reason);
        return;
    }
    if (now_ns >= session->attempt_ns &&
        (peer->removed || has_answers(peer, now_ns) || gives_way(connection, now_ns))) {
        session->attempt_ns = time_after(now_ns, QUIC_ATTEMPT_AGAIN_NS);
    } else if (now_ns >= session->attempt_ns) {
        dial_again(peer, now_ns);
        session->attempt_ns = time_after(now_ns, session->attempt_length_ns);
        session->attempt_length_ns =
            time_min(session->attempt_length_ns + session->attempt_length_ns / 2, QUIC_ATTEMPT_MAX_NS);
    }
    arm_suspended(connection);
}
