#ifndef PROTO_RING_H
#define PROTO_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Packets from one process to another through shared memory: one producer, one consumer. An entry is a u32
 * length and the packet, padded to RING_ALIGN_BYTES; it may wrap.
 *
 * Neither side trusts the other. Each keeps its own index for itself and reads only the other's from the
 * shared memory; an index, or a length, that cannot be makes the ring broken. A packet is copied out whole
 * before anybody looks at it. So a hostile peer can send any packet, as on a socket, and nothing else.
 *
 * A side that wants to wait says so in the shared memory (ring_consumer_sleep, ring_producer_sleep) and then
 * waits at its doorbell, which the other side rings when it put or took something (ring_wake_consumer,
 * ring_wake_producer say whether to). Each side of a ring is used by one thread at a time.
 */
#define RING_ALIGN_BYTES 8u
#define RING_LENGTH_BYTES 4u
#define RING_LINE_BYTES 64u

/* What lies in the shared memory; the data follow it. */
struct ring_shared {
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t tail; /* bytes put, ever, modulo 2^32: the producer's */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t head; /* bytes taken: the consumer's */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t consumer_sleeps;
    _Atomic uint32_t producer_sleeps;
};

/* One side of a ring. */
struct ring {
    struct ring_shared *shared; /* null: there is none */
    unsigned char *data;
    uint32_t capacity_bytes;
    uint32_t own; /* the producer's tail, or the consumer's head */
};

enum ring_result { RING_OK, RING_NOTHING, RING_FULL, RING_BROKEN };

/* Shared memory for a ring of that capacity, a power of two from 4096 to 2^30. */
static inline size_t ring_shared_bytes(uint32_t capacity_bytes)
{
    return sizeof(struct ring_shared) + capacity_bytes;
}

/* The memory is at the alignment of a page, zeroed before the first side attaches. */
void ring_attach(struct ring *ring, void *memory, uint32_t capacity_bytes);

/* FULL also for a packet that never fits; see ring_packet_max_bytes. */
enum ring_result ring_put(struct ring *ring, const void *packet, size_t size_bytes);
/* Copies the next packet out; one of 0 bytes, or more than room_bytes, makes the ring BROKEN. */
enum ring_result ring_take(struct ring *ring, void *packet, size_t room_bytes, size_t *size_bytes);
static inline size_t ring_packet_max_bytes(uint32_t capacity_bytes)
{
    return capacity_bytes / 2 - RING_LENGTH_BYTES;
}

/* Consumer: whether there is a packet. Cheap, for spinning. */
static inline bool ring_has_packet(const struct ring *ring)
{
    return atomic_load_explicit(&ring->shared->tail, memory_order_acquire) != ring->own;
}

/* Before waiting at the doorbell. False: there is a packet, or room, already. */
bool ring_consumer_sleep(struct ring *ring);
bool ring_producer_sleep(struct ring *ring, size_t size_bytes);
/* After waiting. */
void ring_consumer_wakes(struct ring *ring);
void ring_producer_wakes(struct ring *ring);

/* After ring_put, or ring_take: whether the other side sleeps, and its doorbell is to be rung. */
bool ring_wake_consumer(struct ring *ring);
bool ring_wake_producer(struct ring *ring);

#endif
