#include "daemon/mesh/member_rings.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "proto/little_endian.h"
#include "proto/types.h"

#define ID_SEED 0x6d656d62657273u /* so that an id is no other hash of the name */
#define SLOT_EMPTY 0u             /* slots hold index + 1 */
#define SLOTS_MIN 16u

struct member_rings {
    uint64_t *ids;                        /* by index; 0: no node */
    uint16_t *places[MEMBER_RINGS_COUNT]; /* of each ring: indices in its order; valid if `sorted` */
    uint16_t *slots;                      /* open addressing by id, linear probing; at most half full */
    uint32_t slot_count;                  /* a power of two, or 0 */
    uint32_t end;
    uint32_t capacity;
    uint32_t count;
    bool sorted;
};

struct member_rings *member_rings_new(void)
{
    return calloc(1, sizeof(struct member_rings));
}

void member_rings_free(struct member_rings *rings)
{
    if (rings == NULL) {
        return;
    }
    for (uint32_t ring = 0; ring < MEMBER_RINGS_COUNT; ring++) {
        free(rings->places[ring]);
    }
    free(rings->slots);
    free(rings->ids);
    free(rings);
}

uint32_t member_rings_count(const struct member_rings *rings)
{
    return rings->count;
}

uint32_t member_rings_end(const struct member_rings *rings)
{
    return rings->end;
}

uint64_t member_rings_id(const struct member_rings *rings, uint32_t index)
{
    return index < rings->end ? rings->ids[index] : 0;
}

/* --- Look-up by id --- */

/* The slot that holds the id, or the empty one where it would go. */
static uint32_t rings_slot(const struct member_rings *rings, uint64_t id)
{
    uint32_t mask = rings->slot_count - 1;
    uint32_t at = (uint32_t)(id >> 32) & mask;
    while (rings->slots[at] != SLOT_EMPTY && rings->ids[rings->slots[at] - 1] != id) {
        at = (at + 1) & mask;
    }
    return at;
}

uint32_t member_rings_find(const struct member_rings *rings, uint64_t id)
{
    if (rings->slot_count == 0 || id == 0) {
        return MEMBER_RINGS_NONE;
    }
    uint16_t slot = rings->slots[rings_slot(rings, id)];
    return slot == SLOT_EMPTY ? MEMBER_RINGS_NONE : slot - 1u;
}

/* Closes the gap at `at`: moves back each later entry of the run that may stand there. */
static void rings_empty_slot(struct member_rings *rings, uint32_t at)
{
    uint32_t mask = rings->slot_count - 1;
    for (uint32_t next = (at + 1) & mask; rings->slots[next] != SLOT_EMPTY; next = (next + 1) & mask) {
        uint32_t home = (uint32_t)(rings->ids[rings->slots[next] - 1] >> 32) & mask;
        if (((next - home) & mask) >= ((next - at) & mask)) {
            rings->slots[at] = rings->slots[next];
            at = next;
        }
    }
    rings->slots[at] = SLOT_EMPTY;
}

static bool rings_reserve_slots(struct member_rings *rings, uint32_t nodes)
{
    uint32_t wanted = SLOTS_MIN;
    while (wanted < 2 * nodes) {
        wanted *= 2;
    }
    if (wanted <= rings->slot_count) {
        return true;
    }
    uint16_t *slots = calloc(wanted, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    free(rings->slots);
    rings->slots = slots;
    rings->slot_count = wanted;
    for (uint32_t i = 0; i < rings->end; i++) {
        if (rings->ids[i] != 0) {
            rings->slots[rings_slot(rings, rings->ids[i])] = (uint16_t)(i + 1);
        }
    }
    return true;
}

/* --- Nodes --- */

static bool rings_reserve(struct member_rings *rings, uint32_t count)
{
    if (count <= rings->capacity) {
        return true;
    }
    uint32_t room = count + count / 8 + 8;
    uint64_t *ids = realloc(rings->ids, room * sizeof *ids);
    if (ids == NULL) {
        return false;
    }
    rings->ids = ids;
    for (uint32_t ring = 0; ring < MEMBER_RINGS_COUNT; ring++) {
        uint16_t *places = realloc(rings->places[ring], room * sizeof *places);
        if (places == NULL) {
            return false;
        }
        rings->places[ring] = places;
    }
    memset(ids + rings->capacity, 0, (room - rings->capacity) * sizeof *ids);
    rings->capacity = room;
    return true;
}

enum status member_rings_add(struct member_rings *rings, uint32_t index, const char *name,
                             struct error *error)
{
    size_t length = strlen(name);
    assert(length >= 1 && length <= NODE_NAME_MAX_BYTES);
    if (index >= MEMBER_RINGS_NODES_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s is one more than %d nodes", name,
                         MEMBER_RINGS_NODES_MAX);
    }
    assert(member_rings_id(rings, index) == 0);
    uint64_t id = hash_bytes(ID_SEED, name, length);
    id += id == 0;
    if (member_rings_find(rings, id) != MEMBER_RINGS_NONE) {
        return error_set(error, STATUS_ALREADY_EXISTS,
                         "the name of node %s, or the hash of its name, is that of another node: give it "
                         "another name",
                         name);
    }
    if (!rings_reserve(rings, index + 1) || !rings_reserve_slots(rings, rings->count + 1)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    rings->ids[index] = id;
    rings->slots[rings_slot(rings, id)] = (uint16_t)(index + 1);
    rings->end = index >= rings->end ? index + 1 : rings->end;
    rings->count++;
    rings->sorted = false;
    return STATUS_OK;
}

void member_rings_remove(struct member_rings *rings, uint32_t index)
{
    uint64_t id = member_rings_id(rings, index);
    if (id == 0) {
        return;
    }
    rings_empty_slot(rings, rings_slot(rings, id));
    rings->ids[index] = 0;
    rings->count--;
    rings->sorted = false;
}

/* --- Order --- */

static uint64_t ring_key(uint32_t ring, uint64_t id)
{
    uint8_t bytes[8];
    put_u64_le(bytes, id);
    return hash_bytes(ring + 1, bytes, sizeof bytes);
}

struct ring_sorting {
    const uint64_t *ids;
    uint32_t ring;
};

static int ring_compare_ids(uint32_t ring, uint64_t left, uint64_t right)
{
    uint64_t a = ring_key(ring, left);
    uint64_t b = ring_key(ring, right);
    return a != b ? (a > b) - (a < b) : (left > right) - (left < right);
}

static int ring_compare(const void *left, const void *right, void *context)
{
    const struct ring_sorting *sorting = context;
    const uint16_t *a = left;
    const uint16_t *b = right;
    return ring_compare_ids(sorting->ring, sorting->ids[*a], sorting->ids[*b]);
}

static void rings_sort(struct member_rings *rings)
{
    if (rings->sorted) {
        return;
    }
    for (uint32_t ring = 0; ring < MEMBER_RINGS_COUNT; ring++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < rings->end; i++) {
            if (rings->ids[i] != 0) {
                rings->places[ring][count++] = (uint16_t)i;
            }
        }
        assert(count == rings->count);
        struct ring_sorting sorting = {rings->ids, ring};
        qsort_r(rings->places[ring], count, sizeof rings->places[ring][0], ring_compare, &sorting);
    }
    rings->sorted = true;
}

uint32_t member_rings_place(struct member_rings *rings, uint32_t ring, uint32_t index)
{
    uint64_t id = member_rings_id(rings, index);
    assert(id != 0 && ring < MEMBER_RINGS_COUNT);
    rings_sort(rings);
    uint32_t low = 0;
    uint32_t high = rings->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (ring_compare_ids(ring, rings->ids[rings->places[ring][middle]], id) <= 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    assert(rings->places[ring][low] == index);
    return low;
}

uint32_t member_rings_at(struct member_rings *rings, uint32_t ring, uint32_t place)
{
    assert(ring < MEMBER_RINGS_COUNT && place < rings->count);
    rings_sort(rings);
    return rings->places[ring][place];
}
