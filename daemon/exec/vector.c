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

uint32_t vector_pieces(const struct exec_vector *vector, uint64_t offset, uint64_t count, uint32_t max)
{
    uint32_t pieces = 0;
    if (count == 0) {
        return 0;
    }
    for (uint32_t i = vector_find(vector, offset);
         i < vector->piece_count && vector->starts[i] < offset + count && pieces < max; i++) {
        pieces++;
    }
    return pieces;
}

void vector_gather(const struct exec_vector *vector, uint64_t offset, uint64_t count, unsigned char *out)
{
    assert(vector_holds(vector, offset, count));
    while (count > 0) {
        uint64_t together;
        const unsigned char *from = vector_at(vector, offset, &together);
        together = together < count ? together : count;
        memcpy(out, from, together * vector->element_bytes);
        out += together * vector->element_bytes;
        offset += together;
        count -= together;
    }
}
