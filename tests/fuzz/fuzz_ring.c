#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAPACITY = 4096 };

static void require(int truth)
{
    if (!truth) {
        abort();
    }
}

/*
 * The input is what a hostile process writes to the shared memory: this side's own position, the tail, the
 * head, a packet size, then the data. Whatever these are, a side must take packets within bounds, or say that
 * the ring is broken. It must not loop for ever.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t numbers[4] = {0};
    struct ring ring;
    size_t header = size < sizeof numbers ? size : sizeof numbers;
    unsigned char *memory = aligned_alloc(64, (ring_shared_bytes(CAPACITY) + 63) / 64 * 64);
    unsigned char *packet = malloc(CAPACITY);
    require(memory != NULL && packet != NULL);
    memset(memory, 0, ring_shared_bytes(CAPACITY));
    memcpy(numbers, data, header);
    ring_attach(&ring, memory, CAPACITY);
    ring.own = numbers[0] & ~7u; /* any position that a side can have */
    atomic_store(&ring.shared->tail, numbers[1]);
    atomic_store(&ring.shared->head, numbers[2]);
    memcpy(ring.data, data + header, size - header < CAPACITY ? size - header : CAPACITY);

    uint32_t began = ring.own;
    struct ring producer = ring;
    for (int i = 0;; i++) {
        size_t size_bytes = 0;
        enum ring_result result = ring_take(&ring, packet, 1 + numbers[3] % CAPACITY, &size_bytes);
        if (result != RING_OK) {
            require(result == RING_NOTHING || result == RING_BROKEN);
            break;
        }
        require(size_bytes >= 1 && size_bytes <= ring_packet_max_bytes(CAPACITY));
        require(ring.own - began <= CAPACITY && i < CAPACITY / 8);
    }
    enum ring_result put = ring_put(&producer, packet, 1 + numbers[3] % CAPACITY);
    require(put == RING_OK || put == RING_FULL || put == RING_BROKEN);
    (void)ring_producer_sleep(&producer, numbers[3] % CAPACITY);
    free(packet);
    free(memory);
    return 0;
}
