#ifndef DAEMON_NET_QUIC_ADMISSION_H
#define DAEMON_NET_QUIC_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/table.h"
#include "daemon/net/quic_address.h"

/*
 * Decides which incoming handshakes may begin. Each handshake under way holds a slot until it is done, failed
 * or timed out. A source address is one IPv4 address or one IPv6 network of 64 bits, which is what one site
 * has.
 *
 * Retry validates an address (RFC 9000, 8.1.2): a client that answers it really has the address. Addresses
 * that are not validated may be forged. So they get only a few slots, and none from the shares of others. The
 * address and port of a configured peer belong to that peer's commd; other users of its machine cannot send
 * from there. So some slots are kept for peers, and no peer takes more than a few.
 */
#define QUIC_HALF_OPEN_MAX 1024u         /* slots; further handshakes are dropped */
#define QUIC_HALF_OPEN_RETRY 64u         /* taken slots from which on every address is validated first */
#define QUIC_HALF_OPEN_ADDRESS_RETRY 16u /* likewise, taken by one address without validation */
#define QUIC_HALF_OPEN_ADDRESS_MAX 32u   /* of one validated address, not a peer's; then dropped */
#define QUIC_HALF_OPEN_KEPT 256u         /* of QUIC_HALF_OPEN_MAX: for validated peers only */
#define QUIC_HALF_OPEN_PEER_MAX 8u       /* of one validated peer; then dropped */

/* An address that holds slots. */
struct quic_origin {
    UT_hash_handle hh;
    uint8_t bytes[16]; /* IPv4 as IPv6-mapped; other IPv6: the first half */
    uint32_t validated;
    uint32_t others; /* not validated */
};

/* All zero at first. */
struct quic_admission {
    struct quic_origin *origins;
    uint32_t half_open; /* slots taken */
    uint32_t strangers; /* taken by validated addresses that are no peer's */
};

/* The slot that one handshake holds; all zero: none. */
struct quic_slot {
    struct quic_origin *origin; /* null: no slot, or a peer's */
    uint32_t *peer_slots;
    bool validated;
    bool taken;
};

enum quic_verdict {
    QUIC_VERDICT_ADMIT,
    QUIC_VERDICT_RETRY,        /* validate the address first */
    QUIC_VERDICT_DROP_ALL,     /* all slots are taken, or all that non-peers may have */
    QUIC_VERDICT_DROP_ADDRESS, /* this address, or this peer, holds all it may have */
};

/*
 * peer_slots: the slots of the configured peer with this address and port; null when it is no peer's.
 */
enum quic_verdict quic_admission_ask(const struct quic_admission *admission,
                                     const struct quic_address *remote, const uint32_t *peer_slots,
                                     bool validated);

/*
 * Takes a slot that quic_admission_ask has allowed. peer_slots outlives the slot. Returns false when out of
 * memory; *out then holds nothing.
 */
bool quic_admission_take(struct quic_admission *admission, const struct quic_address *remote,
                         uint32_t *peer_slots, bool validated, struct quic_slot *out);

/* Does nothing for a slot that holds nothing. */
void quic_admission_give_back(struct quic_admission *admission, struct quic_slot *slot);

#endif
