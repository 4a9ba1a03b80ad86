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

/* Bytes of the tables of a vector with room for so many pieces; and of that vector. */
#define VECTOR_TABLE_BYTES(pieces) (((uint64_t)(pieces) + 1) * (sizeof(uint64_t) + sizeof(unsigned char *)))
static inline uint64_t vector_table_bytes(const struct exec_vector *vector)
{
    return vector->starts == NULL ? 0 : VECTOR_TABLE_BYTES(vector->capacity);
}

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

/* Writes to a range that the vector holds. */
void vector_store(const struct exec_vector *vector, uint64_t offset, uint64_t count,
                  const unsigned char *values);

/*
 * What of a vector lies elsewhere: ranges that were not written yet have their first values in `from`, which
 * is as long as the vector. At most VECTOR_LENT_MAX ranges; beyond, the shortest is copied to where it
 * belongs. Zeros: nothing is lent.
 */
#define VECTOR_LENT_MAX 16
struct exec_lent {
    struct exec_vector from;
    struct {
        uint64_t begin, end;
    } ranges[VECTOR_LENT_MAX + 1]; /* ascending, apart, none empty; one more while some are split */
    uint32_t count;
};

/* All of `from`. */
void vector_lend(struct exec_lent *lent);
/* As vector_at, of the values that the vector has now. */
const unsigned char *vector_value_at(const struct exec_vector *vector, const struct exec_lent *lent,
                                     uint64_t offset, uint64_t *together);
/* Before a range of the vector is written: its values are not in `from` any more. */
void vector_take_back(const struct exec_vector *vector, struct exec_lent *lent, uint64_t offset,
                      uint64_t count);
/* How many pieces the values of a range are in, at most `max`. */
uint32_t vector_value_pieces(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                             uint64_t count, uint32_t max);
/* Copies the values of a range into one place. */
void vector_value_gather(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                         uint64_t count, unsigned char *out);

#endif
