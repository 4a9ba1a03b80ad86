#ifndef DAEMON_EXEC_VECTOR_H
#define DAEMON_EXEC_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A vector of elements that lies in several pieces of memory. Private to daemon/exec. Neighbouring pieces
 * that are also adjacent in memory are merged.
 */
struct exec_vector {
    uint64_t *starts; /* piece_count + 1 of them: the first element of each piece, and the end */
    unsigned char **pieces;
    uint32_t piece_count;
    uint32_t capacity; /* pieces */
    uint32_t element_bytes;
};

/* Size in bytes of the tables of a vector with room for `pieces` pieces; vector_table_bytes is that of a
 * given vector. */
#define VECTOR_TABLE_BYTES(pieces) (((uint64_t)(pieces) + 1) * (sizeof(uint64_t) + sizeof(unsigned char *)))
static inline uint64_t vector_table_bytes(const struct exec_vector *vector)
{
    return vector->starts == NULL ? 0 : VECTOR_TABLE_BYTES(vector->capacity);
}

/* Empties the vector and makes room for `pieces` pieces. Memory from an earlier use is kept. Returns false
 * without memory. */
bool vector_begin(struct exec_vector *vector, uint64_t element_bytes, uint32_t pieces)
    __attribute__((warn_unused_result));
void vector_free(struct exec_vector *vector);

/* Appends a piece; vector_begin must have made room for it. Zero elements add nothing. */
void vector_add(struct exec_vector *vector, const void *at, uint64_t count_elements);

static inline uint64_t vector_count(const struct exec_vector *vector)
{
    return vector->starts == NULL ? 0 : vector->starts[vector->piece_count];
}

/* Whether the vector has all elements of that range. Safe if offset + count overflows 64 bits. */
static inline bool vector_holds(const struct exec_vector *vector, uint64_t offset, uint64_t count)
{
    uint64_t all = vector_count(vector);
    return offset <= all && count <= all - offset;
}

/*
 * Returns where element `offset` lies, and in *together how many elements of the same piece start there,
 * itself included. The end of a vector has an address too, with 0 elements. Beyond the end, and in an empty
 * vector: null, and 0 elements.
 */
unsigned char *vector_at(const struct exec_vector *vector, uint64_t offset, uint64_t *together);

/* Writes to a range that the vector holds. */
void vector_store(const struct exec_vector *vector, uint64_t offset, uint64_t count,
                  const unsigned char *values);

/*
 * The part of a vector whose values still lie elsewhere. Ranges that were not written yet have their initial
 * values in `from`, which is as long as the vector. There are at most VECTOR_LENT_MAX ranges; if one more
 * arises, the shortest is copied into the vector. All zero: nothing is lent.
 */
#define VECTOR_LENT_MAX 16
struct exec_lent {
    struct exec_vector from;
    struct {
        uint64_t begin, end;
    } ranges[VECTOR_LENT_MAX + 1]; /* ascending, disjoint, not empty; one spare for a split */
    uint32_t count;
};

/* Lends all of `from`. */
void vector_lend(struct exec_lent *lent);
/* As vector_at, for the vector's current values, in `from` or in the vector. */
const unsigned char *vector_value_at(const struct exec_vector *vector, const struct exec_lent *lent,
                                     uint64_t offset, uint64_t *together);
/* Call it before a range of the vector is written: the range's values are no longer read from `from`. */
void vector_take_back(const struct exec_vector *vector, struct exec_lent *lent, uint64_t offset,
                      uint64_t count);
/* In how many pieces the values of a range lie; counts at most to `max`. */
uint32_t vector_value_pieces(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                             uint64_t count, uint32_t max);
/* Copies the values of a range into one place. */
void vector_value_gather(const struct exec_vector *vector, const struct exec_lent *lent, uint64_t offset,
                         uint64_t count, unsigned char *out);

#endif
