#include "daemon/exec/vector.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool vector_begin(struct exec_vector *vector, uint64_t element_bytes, uint32_t pieces)
{
    vector->element_bytes = (uint32_t)element_bytes;
    vector->piece_count = 0;
    if (vector->starts == NULL || vector->capacity < pieces) {
        uint64_t *starts = realloc(vector->starts, ((size_t)pieces + 1) * sizeof *starts);
        if (starts == NULL) {
            return false;
        }
        vector->starts = starts;
        unsigned char **list = realloc(vector->pieces, ((size_t)pieces + 1) * sizeof *list);
        if (list == NULL) {
            return false;
        }
        vector->pieces = list;
        vector->capacity = pieces;
    }
    vector->starts[0] = 0;
    return true;
}

void vector_free(struct exec_vector *vector)
{
    free(vector->starts);
    free(vector->pieces);
    *vector = (struct exec_vector){0};
}

void vector_add(struct exec_vector *vector, const void *at, uint64_t count_elements)
{
    unsigned char *piece = (unsigned char *)(uintptr_t)at;
    if (count_elements == 0) {
        return;
    }
    uint32_t last = vector->piece_count;
    uint64_t end = vector->starts[last];
    if (last > 0 &&
        vector->pieces[last - 1] + (end - vector->starts[last - 1]) * vector->element_bytes == piece) {
        vector->starts[last] = end + count_elements;
        return;
    }
    vector->pieces[last] = piece;
    vector->starts[last + 1] = end + count_elements;
    vector->piece_count = last + 1;
}

/* The last piece that begins at or before the offset. */
static uint32_t vector_find(const struct exec_vector *vector, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = vector->piece_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (vector->starts[middle] <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

unsigned char *vector_at(const struct exec_vector *vector, uint64_t offset, uint64_t *together)
{
    *together = 0;
    if (offset > vector_count(vector) || vector->piece_count == 0) {
        return NULL;
    }
    uint32_t piece = vector_find(vector, offset);
    *together = vector->starts[piece + 1] - offset;
    return vector->pieces[piece] + (offset - vector->starts[piece]) * vector->element_bytes;
}

/* --- Values that lie elsewhere --- */

void vector_lend(struct exec_lent *lent)
{
    lent->ranges[0].begin = 0;
    lent->ranges[0].end = vector_count(&lent->from);
    lent->count = lent->ranges[0].end > 0 ? 1 : 0;
}

const unsigned char *vector_value_at(const struct exec_vector *vector, const struct exec_lent *lent,
                                     uint64_t offset, uint64_t *together)
{
    uint64_t end = UINT64_MAX;
    bool is_lent = false;
    for (uint32_t i = 0; i < lent->count && end == UINT64_MAX; i++) {
        is_lent = offset >= lent->ranges[i].begin && offset < lent->ranges[i].end;
        if (is_lent || offset < lent->ranges[i].begin) {
            end = is_lent ? lent->ranges[i].end : lent->ranges[i].begin;
        }
    }
    const unsigned char *at = vector_at(is_lent ? &lent->from : vector, offset, together);
    *together = *together < end - offset ? *together : end - offset;
    return at;
}

static void remove_range(struct exec_lent *lent, uint32_t index)
{
    lent->count--;
    memmove(&lent->ranges[index], &lent->ranges[index + 1], (lent->count - index) * sizeof lent->ranges[0]);
}

static void return_shortest(const struct exec_vector *vector, struct exec_lent *lent)
{
    uint32_t shortest = 0;
    for (uint32_t i = 1; i < lent->count; i++) {
        uint64_t least = lent->ranges[shortest].end - lent->ranges[shortest].begin;
        shortest = lent->ranges[i].end - lent->ranges[i].begin < least ? i : shortest;
    }
    for (uint64_t at = lent->ranges[shortest].begin; at < lent->ranges[shortest].end;) {
        uint64_t there, here, left = lent->ranges[shortest].end - at;
        const unsigned char *from = vector_at(&lent->from, at, &there);
        unsigned char *to = vector_at(vector, at, &here);
        uint64_t count = there < here ? there : here;
        count = count < left ? count : left;
        memmove(to, from, count * vector->element_bytes);
        at += count;
    }
    remove_range(lent, shortest);
}

void vector_take_back(const struct exec_vector *vector, struct exec_lent *lent, uint64_t offset,
                      uint64_t count)
{
    uint64_t end = offset + count;
    for (uint32_t i = 0; i < lent->count;) {
        uint64_t begin = lent->ranges[i].begin, behind = lent->ranges[i].end;
        if (behind <= offset || begin >= end) {
            i++;
        } else if (begin < offset && behind > end) {
            memmove(&lent->ranges[i + 1], &lent->ranges[i], (lent->count - i) * sizeof lent->ranges[0]);
            lent->count++;
            lent->ranges[i].end = offset;
            lent->ranges[i + 1].begin = end;
            i += 2;
        } else if (begin < offset) {
            lent->ranges[i++].end = offset;
        } else if (behind > end) {
            lent->ranges[i++].begin = end;
        } else {
            remove_range(lent, i);
        }
    }
    if (lent->count > VECTOR_LENT_MAX) {
        return_shortest(vector, lent);
    }
}

uint32_t vector_value_pieces(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                             uint64_t count, uint32_t max)
{
    uint32_t pieces = 0;
    for (uint64_t together; count > 0 && pieces < max; pieces++, offset += together, count -= together) {
        (void)vector_value_at(vector, lent, offset, &together);
        together = together < count ? together : count;
    }
    return pieces;
}

/* A walk over the pieces of a range, of which there may be many. walk_next returns false at the end. */
struct walk {
    const struct exec_vector *vector;
    uint32_t piece;
    uint64_t offset, left;
};

static bool walk_next(struct walk *walk, unsigned char **at, size_t *bytes)
{
    const struct exec_vector *vector = walk->vector;
    if (walk->left == 0) {
        return false;
    }
    uint64_t count = vector->starts[walk->piece + 1] - walk->offset;
    count = count < walk->left ? count : walk->left;
    *at = vector->pieces[walk->piece] + (walk->offset - vector->starts[walk->piece]) * vector->element_bytes;
    *bytes = (size_t)(count * vector->element_bytes);
    walk->piece++;
    walk->offset += count;
    walk->left -= count;
    return true;
}

void vector_store(const struct exec_vector *vector, uint64_t offset, uint64_t count,
                  const unsigned char *values)
{
    assert(vector_holds(vector, offset, count));
    struct walk walk = {
        .vector = vector, .piece = vector_find(vector, offset), .offset = offset, .left = count};
    unsigned char *at;
    for (size_t bytes; walk_next(&walk, &at, &bytes); values += bytes) {
        memcpy(at, values, bytes);
    }
}

static void gather(const struct exec_vector *vector, uint64_t offset, uint64_t count, unsigned char *out)
{
    struct walk walk = {
        .vector = vector, .piece = vector_find(vector, offset), .offset = offset, .left = count};
    unsigned char *at;
    for (size_t bytes; walk_next(&walk, &at, &bytes); out += bytes) {
        memcpy(out, at, bytes);
    }
}

void vector_value_gather(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                         uint64_t count, unsigned char *out)
{
    assert(vector_holds(vector, offset, count));
    if (lent->count == 0) {
        gather(vector, offset, count, out);
        return;
    }
    while (count > 0) {
        uint64_t together;
        const unsigned char *from = vector_value_at(vector, lent, offset, &together);
        together = together < count ? together : count;
        memcpy(out, from, together * vector->element_bytes);
        out += together * vector->element_bytes;
        offset += together;
        count -= together;
    }
}
