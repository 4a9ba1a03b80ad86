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
 * Neither side trusts the other. Each side keeps a private copy of its own index, and reads only the other's
 * index from the shared memory. An impossible index or length makes the ring broken. A packet is copied out
 * whole before it is looked at. So a hostile peer can send any packet, as on a socket, but do nothing else.
 *
 * A side that wants to wait says so in the shared memory (ring_consumer_sleep, ring_producer_sleep). It then
 * waits at its doorbell. After it put or took something, the other side rings that doorbell if
 * ring_wake_consumer or ring_wake_producer returns true. Only one thread at a time may use each side of a
 * ring.
 */
#define RING_ALIGN_BYTES 8u
#define RING_LENGTH_BYTES 4u
#define RING_LINE_BYTES 64u

/* The start of the shared memory; the data follow it. */
struct ring_shared {
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t tail; /* bytes put in all, mod 2^32, by the producer */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t head; /* bytes taken, by the consumer */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t consumer_sleeps;
    _Atomic uint32_t producer_sleeps;
};

/* One side of a ring. */
struct ring {
    struct ring_shared *shared; /* null: no ring */
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

/* `memory` must be page-aligned, and zeroed before the first side attaches. */
void ring_attach(struct ring *ring, void *memory, uint32_t capacity_bytes);

/* Returns FULL also for a packet that can never fit; see ring_packet_max_bytes. */
enum ring_result ring_put(struct ring *ring, const void *packet, size_t size_bytes);
/* Copies the next packet out. A packet of 0 bytes, or of more than room_bytes, makes the ring BROKEN. */
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

/* Call it before you wait at the doorbell. Returns false if there already is a packet, or room. */
bool ring_consumer_sleep(struct ring *ring);
bool ring_producer_sleep(struct ring *ring, size_t size_bytes);
/* Call it after waiting. */
void ring_consumer_wakes(struct ring *ring);
void ring_producer_wakes(struct ring *ring);

/* Call it after ring_put, or ring_take. Returns whether the other side sleeps, so that its doorbell must be
 * rung. */
bool ring_wake_consumer(struct ring *ring);
bool ring_wake_producer(struct ring *ring);

#endif
