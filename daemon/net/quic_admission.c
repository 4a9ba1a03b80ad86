#include "daemon/net/quic_admission.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void origin_bytes(const struct quic_address *remote, uint8_t out[16])
{
    struct quic_address_key key;
    quic_address_key(remote, &key);
    memcpy(out, key.bytes, sizeof key.bytes);
    if (!quic_address_is_v4(remote)) {
        memset(out + 8, 0, 8);
    }
}

static struct quic_origin *origin_find(const struct quic_admission *admission,
                                       const struct quic_address *remote)
{
    uint8_t bytes[16];
    struct quic_origin *origin = NULL;
    origin_bytes(remote, bytes);
    HASH_FIND(hh, admission->origins, bytes, sizeof bytes, origin);
    return origin;
}

enum quic_verdict quic_admission_ask(const struct quic_admission *admission,
                                     const struct quic_address *remote, const uint32_t *peer_slots,
                                     bool validated)
{
    const struct quic_origin *origin = origin_find(admission, remote);
    if (!validated) {
        bool few = admission->half_open < QUIC_HALF_OPEN_RETRY &&
                   (origin == NULL || origin->others < QUIC_HALF_OPEN_ADDRESS_RETRY);
        return few ? QUIC_VERDICT_ADMIT : QUIC_VERDICT_RETRY;
    }
    if (admission->half_open >= QUIC_HALF_OPEN_MAX) {
        return QUIC_VERDICT_DROP_ALL;
    }
    if (peer_slots != NULL) {
        return *peer_slots < QUIC_HALF_OPEN_PEER_MAX ? QUIC_VERDICT_ADMIT : QUIC_VERDICT_DROP_ADDRESS;
    }
    if (origin != NULL && origin->validated >= QUIC_HALF_OPEN_ADDRESS_MAX) {
        return QUIC_VERDICT_DROP_ADDRESS;
    }
    return admission->strangers < QUIC_HALF_OPEN_MAX - QUIC_HALF_OPEN_KEPT ? QUIC_VERDICT_ADMIT
                                                                           : QUIC_VERDICT_DROP_ALL;
}

static struct quic_origin *origin_make(struct quic_admission *admission, const struct quic_address *remote)
{
    struct quic_origin *origin = origin_find(admission, remote);
    if (origin != NULL) {
        return origin;
    }
    origin = calloc(1, sizeof *origin);
    if (origin == NULL) {
        return NULL;
    }
    origin_bytes(remote, origin->bytes);
    HASH_ADD(hh, admission->origins, bytes, sizeof origin->bytes, origin);
    if (!table_has(origin, hh)) {
        free(origin);
        return NULL;
    }
    return origin;
}

bool quic_admission_take(struct quic_admission *admission, const struct quic_address *remote,
                         uint32_t *peer_slots, bool validated, struct quic_slot *out)
{
    *out = (struct quic_slot){.validated = validated};
    if (validated && peer_slots != NULL) {
        out->peer_slots = peer_slots;
        ++*peer_slots;
    } else {
        out->origin = origin_make(admission, remote);
        if (out->origin == NULL) {
            return false;
        }
        *(validated ? &out->origin->validated : &out->origin->others) += 1;
        admission->strangers += validated;
    }
    out->taken = true;
    admission->half_open++;
    return true;
}

void quic_admission_give_back(struct quic_admission *admission, struct quic_slot *slot)
{
    if (!slot->taken) {
        return;
    }
    assert(admission->half_open > 0);
    admission->half_open--;
    if (slot->peer_slots != NULL) {
        --*slot->peer_slots;
    } else {
        struct quic_origin *origin = slot->origin;
        *(slot->validated ? &origin->validated : &origin->others) -= 1;
        admission->strangers -= slot->validated;
        if (origin->validated == 0 && origin->others == 0) {
            HASH_DEL(admission->origins, origin);
            free(origin);
        }
    }
    *slot = (struct quic_slot){0};
}
