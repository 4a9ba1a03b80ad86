#ifndef DAEMON_EXEC_VECTOR_H
#define DAEMON_EXEC_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A vector of elements that lies in pieces of memory. Private to daemon/exec. Pieces that follow each other
 * in memory as they do in the vector become one.
 */
struct exec_vector {
    uint64_t *starts; /* piece_count + 1 of them: the first element of each piece, and the end */
    unsigned char **pieces;
    uint32_t piece_count;
    uint32_t capacity; /* pieces */
    uint32_t element_bytes;
};

/* Empty, with room for so many pieces; keeps its memory for the next time. False without memory. */
bool vector_begin(struct exec_vector *vector, uint64_t element_bytes, uint32_t pieces)
    __attribute__((warn_unused_result));
void vector_free(struct exec_vector *vector);

/* Appends; the room was asked for. Zero elements add nothing. */
void vector_add(struct exec_vector *vector, const void *at, uint64_t count_elements);

static inline uint64_t vector_count(const struct exec_vector *vector)
{
    return vector->starts == NULL ? 0 : vector->starts[vector->piece_count];
}

/* Whether the vector has all elements of that range; offset + count may not fit 64 bits. */
static inline bool vector_holds(const struct exec_vector *vector, uint64_t offset, uint64_t count)
{
    uint64_t all = vector_count(vector);
    return offset <= all && count <= all - offset;
}

/*
 * Where element `offset` lies, and how many follow it in the same piece, it included. The end of the vector
 * has a place too, with no element behind it. Null, and 0 elements, beyond the end and in an empty vector.
 */
unsigned char *vector_at(const struct exec_vector *vector, uint64_t offset, uint64_t *together);

/* How many pieces a range has, at most `max`. */
uint32_t vector_pieces(const struct exec_vector *vector, uint64_t offset, uint64_t count, uint32_t max);

/* Copies a range into one place. */
void vector_gather(const struct exec_vector *vector, uint64_t offset, uint64_t count, unsigned char *out);

#endif
