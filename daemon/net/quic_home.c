#include "daemon/net/quic_internal.h"

#include <string.h>

/*
 * A connection to a peer's spare address (net_set_spare) goes back to the first address when that works
 * again: the node that dialled it dials there now and then. The new connection takes over the streams of the
 * old one, as after a loss; if there is no answer, the old one stays. Each attempt waits twice as long as the
 * last, so a first path that works for a moment only is left alone most of the time.
 */
#define QUIC_HOME_MIN_NS (5 * TIME_S)
#define QUIC_HOME_MAX_NS (60 * TIME_S)

static bool is_at(const struct quic_address *remote, const struct quic_address *address)
{
    struct quic_address_key one, other;
    quic_address_key(remote, &one);
    quic_address_key(address, &other);
    return memcmp(&one, &other, sizeof one) == 0;
}

/* Whether we should bring the connection home. */
static bool is_away(const struct quic_connection *connection)
{
    const struct quic_peer *peer = connection->peer;
    return connection->state == QUIC_STATE_UP && connection->dialled && !connection->failed &&
           peer->has_address && peer->contact->spare.size > 0 &&
           is_at(&connection->remote, &peer->contact->spare);
}

void quic_home_watch(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_peer *peer = connection->peer;
    if (connection->state != QUIC_STATE_UP || peer->up != connection) {
        return;
    }
    if (!is_away(connection)) {
        bool stays = now_ns > time_after(connection->authenticated_ns, QUIC_HOME_MAX_NS);
        peer->contact->home_wait_ns = stays ? 0 : peer->contact->home_wait_ns;
        peer->contact->home_ns = 0;
        return;
    }
    if (peer->contact->home_ns != 0 && now_ns < peer->contact->home_ns) {
        return;
    }
    if (peer->contact->home_ns != 0 && peer->dial == NULL && peer->greeting == NULL) {
        peer->contact->goes_home = true;
        quic_work_dial(connection->endpoint, peer);
    }
    uint64_t wait_ns = peer->contact->home_wait_ns == 0 ? QUIC_HOME_MIN_NS : 2 * peer->contact->home_wait_ns;
    peer->contact->home_wait_ns = time_min(wait_ns, QUIC_HOME_MAX_NS);
    peer->contact->home_ns = time_after(now_ns, peer->contact->home_wait_ns);
}

uint64_t quic_home_deadline_ns(const struct quic_connection *connection)
{
    if (connection->peer == NULL || connection->peer->up != connection || !is_away(connection)) {
        return TIME_NEVER;
    }
    return connection->peer->contact->home_ns; /* 0: at once, which sets it */
}
