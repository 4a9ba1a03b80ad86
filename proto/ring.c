#include "proto/ring.h"

#include <string.h>

static uint32_t entry_bytes(size_t size_bytes)
{
    return (uint32_t)((RING_LENGTH_BYTES + size_bytes + RING_ALIGN_BYTES - 1) &
                      ~(size_t)(RING_ALIGN_BYTES - 1));
}

void ring_attach(struct ring *ring, void *memory, uint32_t capacity_bytes)
{
    ring->shared = memory;
    ring->data = (unsigned char *)memory + sizeof(struct ring_shared);
    ring->capacity_bytes = capacity_bytes;
    ring->own = 0;
}

static void copy_in(const struct ring *ring, uint32_t at, const void *bytes, size_t size)
{
    uint32_t offset = at & (ring->capacity_bytes - 1);
    size_t first = ring->capacity_bytes - offset;
    first = first < size ? first : size;
    memcpy(ring->data + offset, bytes, first);
    memcpy(ring->data, (const unsigned char *)bytes + first, size - first);
}

static void copy_out(const struct ring *ring, uint32_t at, void *bytes, size_t size)
{
    uint32_t offset = at & (ring->capacity_bytes - 1);
    size_t first = ring->capacity_bytes - offset;
    first = first < size ? first : size;
    memcpy(bytes, ring->data + offset, first);
    memcpy((unsigned char *)bytes + first, ring->data, size - first);
}

/* Bytes that the consumer has not taken. More than the capacity: the consumer wrote a wrong index. */
static uint32_t producer_used(const struct ring *ring)
{
    return ring->own - atomic_load_explicit(&ring->shared->head, memory_order_acquire);
}

enum ring_result ring_put(struct ring *ring, const void *packet, size_t size_bytes)
{
    uint32_t used = producer_used(ring);
    if (used > ring->capacity_bytes || used % RING_ALIGN_BYTES != 0) {
        return RING_BROKEN;
    }
    if (size_bytes > ring_packet_max_bytes(ring->capacity_bytes) ||
        entry_bytes(size_bytes) > ring->capacity_bytes - used) {
        return RING_FULL;
    }
    uint32_t length = (uint32_t)size_bytes;
    copy_in(ring, ring->own, &length, sizeof length);
    copy_in(ring, ring->own + RING_LENGTH_BYTES, packet, size_bytes);
    ring->own += entry_bytes(size_bytes);
    atomic_store_explicit(&ring->shared->tail, ring->own, memory_order_release);
    return RING_OK;
}

enum ring_result ring_take(struct ring *ring, void *packet, size_t room_bytes, size_t *size_bytes)
{
    uint32_t available = atomic_load_explicit(&ring->shared->tail, memory_order_acquire) - ring->own;
    uint32_t length;
    if (available == 0) {
        return RING_NOTHING;
    }
    if (available > ring->capacity_bytes || available % RING_ALIGN_BYTES != 0) {
        return RING_BROKEN;
    }
    copy_out(ring, ring->own, &length, sizeof length);
    if (length == 0 || length > room_bytes || length > ring_packet_max_bytes(ring->capacity_bytes) ||
        entry_bytes(length) > available) {
        return RING_BROKEN;
    }
    copy_out(ring, ring->own + RING_LENGTH_BYTES, packet, length);
    *size_bytes = length;
    ring->own += entry_bytes(length);
    atomic_store_explicit(&ring->shared->head, ring->own, memory_order_release);
    return RING_OK;
}

/* Each side first writes (its sleep flag, or the packet) and then looks at the other's word, so at least one
 * sees the other. */
bool ring_consumer_sleep(struct ring *ring)
{
    atomic_store(&ring->shared->consumer_sleeps, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (ring_has_packet(ring)) {
        ring_consumer_wakes(ring);
        return false;
    }
    return true;
}

bool ring_producer_sleep(struct ring *ring, size_t size_bytes)
{
    atomic_store(&ring->shared->producer_sleeps, 1);
    atomic_thread_fence(memory_order_seq_cst);
    uint32_t used = producer_used(ring);
    if (used > ring->capacity_bytes || entry_bytes(size_bytes) <= ring->capacity_bytes - used) {
        ring_producer_wakes(ring);
        return false;
    }
    return true;
}

void ring_consumer_wakes(struct ring *ring)
{
    atomic_store_explicit(&ring->shared->consumer_sleeps, 0, memory_order_relaxed);
}

void ring_producer_wakes(struct ring *ring)
{
    atomic_store_explicit(&ring->shared->producer_sleeps, 0, memory_order_relaxed);
}

static bool take_flag(_Atomic uint32_t *flag)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(flag, memory_order_relaxed) != 0 && atomic_exchange(flag, 0) != 0;
}

bool ring_wake_consumer(struct ring *ring)
{
    return take_flag(&ring->shared->consumer_sleeps);
}

bool ring_wake_producer(struct ring *ring)
{
    return take_flag(&ring->shared->producer_sleeps);
}
