#ifndef PROTO_OP_TERMS_H
#define PROTO_OP_TERMS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * The terms of an operation: what all ranks must agree on. This struct describes an operation everywhere,
 * from the client's submission to the header between nodes. Fields that the kind does not use are zero,
 * except bucket_ops.
 *
 * Its layout is fixed: processes of one node share it as it is. Between nodes it is sent as op_terms_encode
 * writes it: at the same offsets, little-endian.
 */
#define OP_TERMS_BYTES 32
#define OP_TERMS_TEXT_MAX_BYTES 160
#define OP_BUCKET_OPS_MAX 256 /* operations that run as one */
#define OP_TOP_K_MAX_PERMILLE 1000

struct op_terms {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    enum compression compression; /* of an all_reduce */
    uint8_t has_layouts;          /* 0 or 1: a _v operation, even if a rank gives no layout */
    uint8_t has_residual;         /* 0 or 1: compression with error feedback */
    uint16_t top_k_permille;      /* compression by top_k: how many elements of a thousand are kept */
    uint32_t root_rank;
    uint16_t bucket_ops;     /* operations of one kind that run as one: their number; 1: runs alone */
    uint16_t bucket_index;   /* index of this one among them; they are submitted in a row */
    uint64_t count_elements; /* of the vector; for kinds with blocks: of one rank's block; of the message. 0
                                where layouts have the counts */
    uint64_t hash; /* of the counts that all ranks give alike; of the terms of a whole bucket; else 0 */
};

_Static_assert(sizeof(struct op_terms) == OP_TERMS_BYTES, "the layout is fixed, without holes");

/* Compares all fields. Returns the first that differs ("count", "dtype"; static storage), or null. */
const char *op_terms_difference(const struct op_terms *one, const struct op_terms *other);

/* Writes a text like "all_reduce of 5 f32, sum". OP_TERMS_TEXT_MAX_BYTES are enough; a smaller buffer
 * truncates it. Always terminated. */
void op_terms_describe(const struct op_terms *terms, char *out, size_t size);

/* For terms from outside: returns whether each field is in its range. If not, *what names the field (static
 * storage). */
bool op_terms_are_valid(const struct op_terms *terms, const char **what);

/* op_terms_decode accepts any bytes: check the terms with op_terms_are_valid. */
void op_terms_encode(const struct op_terms *terms, uint8_t out[OP_TERMS_BYTES]);
void op_terms_decode(const uint8_t in[OP_TERMS_BYTES], struct op_terms *terms);

#endif
