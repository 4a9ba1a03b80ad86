#ifndef DAEMON_NET_QUIC_ADMISSION_H
#define DAEMON_NET_QUIC_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/table.h"
#include "daemon/net/quic_address.h"

/*
 * Which incoming handshakes may begin. Each that is under way holds a slot until it is done, failed or timed
 * out. A source address is one IPv4 address or one IPv6 network of 64 bits, which is what one site has.
 *
 * An address is validated by Retry (RFC 9000, 8.1.2): whoever answers has it. Addresses that are not may be
 * forged, so they only ever get a few slots, and no slot of somebody else's share. Address and port of a
 * configured peer belong to that peer's commd: other users of its machine cannot send from there, so some of
 * all slots are kept for peers, and no peer takes more than a few.
 */
#define QUIC_HALF_OPEN_MAX 1024u         /* slots; beyond: dropped */
#define QUIC_HALF_OPEN_RETRY 64u         /* slots taken beyond which every address is validated first */
#define QUIC_HALF_OPEN_ADDRESS_RETRY 16u /* likewise, those of one address that it took without */
#define QUIC_HALF_OPEN_ADDRESS_MAX 32u   /* of one validated address that is no peer's; beyond: dropped */
#define QUIC_HALF_OPEN_KEPT 256u         /* of QUIC_HALF_OPEN_MAX: for validated peers alone */
#define QUIC_HALF_OPEN_PEER_MAX 8u       /* of one validated peer; beyond: dropped */

/* An address that holds slots. */
struct quic_origin {
    UT_hash_handle hh;
    uint8_t bytes[16]; /* IPv4 as IPv6-mapped; of other IPv6 addresses the first half */
    uint32_t validated;
    uint32_t others; /* not validated */
};

/* All zero at first. */
struct quic_admission {
    struct quic_origin *origins;
    uint32_t half_open; /* slots taken */
    uint32_t strangers; /* of them, by validated addresses that are no peer's */
};

/* What one handshake holds; all zero: nothing. */
struct quic_slot {
    struct quic_origin *origin; /* null: none, or a peer's */
    uint32_t *peer_slots;
    bool validated;
    bool taken;
};

enum quic_verdict {
    QUIC_VERDICT_ADMIT,
    QUIC_VERDICT_RETRY,        /* the address is to be validated first */
    QUIC_VERDICT_DROP_ALL,     /* all slots are taken, or all that strangers may have */
    QUIC_VERDICT_DROP_ADDRESS, /* all that this address, or this peer, may have */
};

/*
 * peer_slots: the slots of the configured peer with this address and port; null when it is no peer's.
 */
enum quic_verdict quic_admission_ask(const struct quic_admission *admission,
                                     const struct quic_address *remote, const uint32_t *peer_slots,
                                     bool validated);

/*
 * Takes a slot, which quic_admission_ask has allowed. peer_slots outlives it. False without memory, and then
 * *out holds nothing.
 */
bool quic_admission_take(struct quic_admission *admission, const struct quic_address *remote,
                         uint32_t *peer_slots, bool validated, struct quic_slot *out);

/* Does nothing for a slot that holds nothing. */
void quic_admission_give_back(struct quic_admission *admission, struct quic_slot *slot);

#endif
