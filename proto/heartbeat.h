#ifndef PROTO_HEARTBEAT_H
#define PROTO_HEARTBEAT_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * What commd shares with clients that ask for CLIENT_FEATURE_HEARTBEAT: a page that they can only read, and a
 * pidfd of commd. Both come with the Hello's reply, after the descriptors of rings.
 */
#define CLIENT_HEARTBEAT_FDS 2   /* the page, the pidfd */
#define CLIENT_HEARTBEAT_MS 250u /* from one beat to the next, while commd's loop runs */

/* At the start of the page. */
struct client_heartbeat {
    _Atomic uint64_t beats;      /* counts up */
    _Atomic uint32_t long_calls; /* above 0: commd may be in a call that takes seconds; it is not stopped */
};

#endif
