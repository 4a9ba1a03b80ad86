#ifndef PROTO_OP_TERMS_H
#define PROTO_OP_TERMS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * The terms of an operation: what all ranks must agree on. The one description of an operation, from the
 * client's submission to the header between nodes. What the kind has no use for is zero, but bucket_ops.
 *
 * Its layout is fixed: processes of one node share it as it is. Between nodes it goes as op_terms_encode
 * writes it, in the same places, little-endian.
 */
#define OP_TERMS_BYTES 32
#define OP_TERMS_TEXT_MAX_BYTES 160
#define OP_BUCKET_OPS_MAX 256 /* all_reduces that run as one */
#define OP_TOP_K_MAX_PERMILLE 1000

struct op_terms {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    enum compression compression; /* of an all_reduce */
    uint8_t has_layouts;          /* 0 or 1: a _v operation, also where a rank gives no layout */
    uint8_t has_residual;         /* 0 or 1: compression with error feedback */
    uint16_t top_k_permille;      /* compression by top_k: how many elements of a thousand are kept */
    uint32_t root_rank;
    uint16_t bucket_ops;     /* all_reduces that run as one: how many; 1: alone */
    uint16_t bucket_index;   /* which of them this one is; they follow each other */
    uint64_t count_elements; /* of the vector; of one rank's block where there are blocks; of the message.
                                0 where layouts say it */
    uint64_t hash;           /* of counts that all ranks give alike; of the terms of a whole bucket; else 0 */
};

_Static_assert(sizeof(struct op_terms) == OP_TERMS_BYTES, "the layout is fixed, without holes");

/* Compares all of them. The first field that differs ("count", "dtype"; static storage); null: none. */
const char *op_terms_difference(const struct op_terms *one, const struct op_terms *other);

/* "all_reduce of 5 f32, sum". OP_TERMS_TEXT_MAX_BYTES are enough; less cuts it. Terminated. */
void op_terms_describe(const struct op_terms *terms, char *out, size_t size);

/* What came from outside: whether each field is in its range. False: *what names the field (static). */
bool op_terms_are_valid(const struct op_terms *terms, const char **what);

/* The terms need not be valid after a decode. */
void op_terms_encode(const struct op_terms *terms, uint8_t out[OP_TERMS_BYTES]);
void op_terms_decode(const uint8_t in[OP_TERMS_BYTES], struct op_terms *terms);

#endif
