#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/net/quic_internal.h"

/*
 * The peers, found by name and by address. A cluster has thousands of them, and there is a link to a few. So
 * a peer is small, and what a link needs is in its contact.
 */

static uint64_t name_hash(const char *name)
{
    return hash_bytes(0, name, strlen(name));
}

static uint64_t hash_of_name(const void *context, uint32_t index)
{
    return name_hash(quic_peer_of(context, index)->name);
}

static bool has_name(const void *context, uint32_t index, const void *key)
{
    return strcmp(quic_peer_of(context, index)->name, key) == 0;
}

static uint64_t hash_of_address(const void *context, uint32_t index)
{
    struct quic_address_key key;
    quic_address_key(&quic_peer_of(context, index)->address, &key);
    return hash_bytes(0, &key, sizeof key);
}

static bool has_address(const void *context, uint32_t index, const void *key)
{
    struct quic_address_key own;
    quic_address_key(&quic_peer_of(context, index)->address, &own);
    return memcmp(&own, key, sizeof own) == 0;
}

static struct index_table_entries names_of(const struct quic_endpoint *endpoint)
{
    return (struct index_table_entries){hash_of_name, has_name, endpoint};
}

static struct index_table_entries addresses_of(const struct quic_endpoint *endpoint)
{
    return (struct index_table_entries){hash_of_address, has_address, endpoint};
}

struct quic_peer *quic_peer_find(struct quic_endpoint *endpoint, const char *name)
{
    const struct index_table_entries names = names_of(endpoint);
    uint32_t index = index_table_find(&endpoint->peers_by_name, &names, name_hash(name), name);
    return index != INDEX_TABLE_NONE ? quic_peer_of(endpoint, index) : NULL;
}

static uint32_t find_address(const struct quic_endpoint *endpoint, const struct quic_address *address)
{
    const struct index_table_entries addresses = addresses_of(endpoint);
    struct quic_address_key key;
    quic_address_key(address, &key);
    return index_table_find(&endpoint->peers_by_address, &addresses, hash_bytes(0, &key, sizeof key), &key);
}

struct quic_peer *quic_peer_at(struct quic_endpoint *endpoint, const struct quic_address *address)
{
    uint32_t index = find_address(endpoint, address);
    return index != INDEX_TABLE_NONE && !quic_peer_of(endpoint, index)->removed
               ? quic_peer_of(endpoint, index)
               : NULL;
}

/* Several peers may share an address (a relay). What comes from there then counts as the first one's. */
static bool index_address(struct quic_endpoint *endpoint, const struct quic_peer *peer)
{
    const struct index_table_entries addresses = addresses_of(endpoint);
    if (!peer->has_address || find_address(endpoint, &peer->address) != INDEX_TABLE_NONE) {
        return true;
    }
    if (!index_table_reserve(&endpoint->peers_by_address, &addresses)) {
        return false;
    }
    index_table_add(&endpoint->peers_by_address, &addresses, peer->index);
    return true;
}

enum status quic_directory_add(struct quic_endpoint *endpoint, struct quic_peer *peer, struct error *error)
{
    const struct index_table_entries names = names_of(endpoint);
    const struct quic_peer *present = quic_peer_of(endpoint, peer->index);
    if (present != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "peer %s: peer %s has its index", peer->name,
                         present->name);
    }
    if (!index_table_reserve(&endpoint->peers_by_name, &names) ||
        !sparse_set(&endpoint->peers, peer->index, peer)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for peer %s", peer->name);
    }
    if (!index_address(endpoint, peer)) {
        bool cleared = sparse_set(&endpoint->peers, peer->index, NULL);
        (void)cleared; /* its page is there */
        return error_set(error, STATUS_NO_MEMORY, "no memory for peer %s", peer->name);
    }
    index_table_add(&endpoint->peers_by_name, &names, peer->index);
    if (peer->index >= endpoint->peer_count) {
        endpoint->peer_count = peer->index + 1;
    }
    return STATUS_OK;
}

enum status quic_directory_move(struct quic_endpoint *endpoint, struct quic_peer *peer,
                                const struct quic_address *address, struct error *error)
{
    const struct index_table_entries addresses = addresses_of(endpoint);
    if (peer->has_address) {
        index_table_remove(&endpoint->peers_by_address, &addresses, peer->index);
    }
    peer->has_address = address != NULL;
    peer->address = address != NULL ? *address : (struct quic_address){0};
    return index_address(endpoint, peer)
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for peer %s", peer->name);
}

struct quic_contact *quic_contact_of(struct quic_peer *peer)
{
    if (peer != NULL && peer->contact == NULL) {
        peer->contact = calloc(1, sizeof *peer->contact);
    }
    return peer != NULL ? peer->contact : NULL;
}

void quic_directory_free(struct quic_endpoint *endpoint)
{
    struct quic_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        if (peer->contact != NULL) {
            quic_inbox_clear(&peer->contact->line);
            free(peer->contact);
        }
        free(peer);
    }
    sparse_free(&endpoint->peers);
    endpoint->peer_count = 0;
    index_table_free(&endpoint->peers_by_name);
    index_table_free(&endpoint->peers_by_address);
}
