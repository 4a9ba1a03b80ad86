#ifndef PROTO_TYPES_H
#define PROTO_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Element types, reduction operators and operation kinds: one list each, used by both wire protocols, the
 * daemon and the library. Numbers never change. client/include/commclient.h repeats them as COMM_<NAME>.
 */

/* An enum that takes one byte, as on the wire. */
#define WIRE_BYTE __attribute__((packed))

/* X(name, number, text, size_bytes) */
#define DTYPE_LIST(X)                                                                                        \
    X(F64, 0, "f64", 8)                                                                                      \
    X(F32, 1, "f32", 4)                                                                                      \
    X(F16, 2, "f16", 2)                                                                                      \
    X(BF16, 3, "bf16", 2)                                                                                    \
    X(F8E4M3, 4, "f8e4m3", 1)                                                                                \
    X(F8E5M2, 5, "f8e5m2", 1)                                                                                \
    X(I64, 6, "i64", 8)                                                                                      \
    X(I32, 7, "i32", 4)                                                                                      \
    X(I16, 8, "i16", 2)                                                                                      \
    X(I8, 9, "i8", 1)                                                                                        \
    X(U64, 10, "u64", 8)                                                                                     \
    X(U32, 11, "u32", 4)                                                                                     \
    X(U16, 12, "u16", 2)                                                                                     \
    X(U8, 13, "u8", 1)                                                                                       \
    X(BOOL, 14, "bool", 1)                                                                                   \
    X(C64, 15, "complex64", 8)                                                                               \
    X(C128, 16, "complex128", 16)

enum dtype {
#define X(name, number, text, size_bytes) DTYPE_##name = number,
    DTYPE_LIST(X)
#undef X
} WIRE_BYTE;
#define DTYPE_COUNT 17
#define DTYPE_SIZE_MAX_BYTES 16

/* X(name, number, text) */
#define REDUCE_LIST(X)                                                                                       \
    X(SUM, 0, "sum")                                                                                         \
    X(PROD, 1, "prod")                                                                                       \
    X(MIN, 2, "min")                                                                                         \
    X(MAX, 3, "max")                                                                                         \
    X(AVG, 4, "avg")                                                                                         \
    X(PREMUL_SUM, 5, "premul_sum")                                                                           \
    X(BAND, 6, "band")                                                                                       \
    X(BOR, 7, "bor")                                                                                         \
    X(BXOR, 8, "bxor")                                                                                       \
    X(LAND, 9, "land")                                                                                       \
    X(LOR, 10, "lor")

enum reduce {
#define X(name, number, text) REDUCE_##name = number,
    REDUCE_LIST(X)
#undef X
} WIRE_BYTE;
#define REDUCE_COUNT 11

/* X(name, number, text) */
#define OP_KIND_LIST(X)                                                                                      \
    X(ALL_REDUCE, 0, "all_reduce")                                                                           \
    X(BROADCAST, 1, "broadcast")                                                                             \
    X(BARRIER, 2, "barrier")                                                                                 \
    X(REDUCE, 3, "reduce")                                                                                   \
    X(ALL_GATHER, 4, "all_gather")                                                                           \
    X(REDUCE_SCATTER, 5, "reduce_scatter")                                                                   \
    X(GATHER, 6, "gather")                                                                                   \
    X(SCATTER, 7, "scatter")                                                                                 \
    X(ALL_TO_ALL, 8, "all_to_all")                                                                           \
    X(SCAN, 9, "scan")                                                                                       \
    X(EXCLUSIVE_SCAN, 10, "exclusive_scan")                                                                  \
    X(SEND, 11, "send")                                                                                      \
    X(RECEIVE, 12, "recv")

/* send and receive go from rank to rank. They have no schedule, and no place in the order of a communicator's
 * operations. */
enum op_kind {
#define X(name, number, text) OP_KIND_##name = number,
    OP_KIND_LIST(X)
#undef X
} WIRE_BYTE;
#define OP_KIND_COUNT 13

/* X(name, number, text): what a compressed all-reduce puts on the wire. */
#define COMPRESSION_LIST(X)                                                                                  \
    X(NONE, 0, "none")                                                                                       \
    X(BF16, 1, "bf16")                                                                                       \
    X(F8, 2, "f8")                                                                                           \
    X(TOP_K, 3, "top_k")

enum compression {
#define X(name, number, text) COMPRESSION_##name = number,
    COMPRESSION_LIST(X)
#undef X
} WIRE_BYTE;
#define COMPRESSION_COUNT 4

#define COMM_NAME_MAX_BYTES 127 /* length of a communicator's name, without the terminator */
#define NODE_NAME_MAX_BYTES 63  /* a DNS label: it also is the certificate's subject alternative name */
#define COMM_SIZE_MAX 65536     /* ranks in one communicator */
#define COMM_ANY_SOURCE_RANK UINT32_MAX

/* Which parts of a call are used, checked and compared, by the operation's kind. */
#define OP_KIND_BIT(name) (1u << OP_KIND_##name)
#define OP_KINDS_WITH_OPERATOR                                                                               \
    (OP_KIND_BIT(ALL_REDUCE) | OP_KIND_BIT(REDUCE) | OP_KIND_BIT(REDUCE_SCATTER) | OP_KIND_BIT(SCAN) |       \
     OP_KIND_BIT(EXCLUSIVE_SCAN))
#define OP_KINDS_WITH_ROOT                                                                                   \
    (OP_KIND_BIT(BROADCAST) | OP_KIND_BIT(REDUCE) | OP_KIND_BIT(GATHER) | OP_KIND_BIT(SCATTER))
#define OP_KINDS_WITH_INPUT_BLOCKS                                                                           \
    (OP_KIND_BIT(REDUCE_SCATTER) | OP_KIND_BIT(SCATTER) | OP_KIND_BIT(ALL_TO_ALL))
#define OP_KINDS_WITH_OUTPUT_BLOCKS (OP_KIND_BIT(ALL_GATHER) | OP_KIND_BIT(GATHER) | OP_KIND_BIT(ALL_TO_ALL))
#define OP_KINDS_WITH_BLOCKS (OP_KINDS_WITH_INPUT_BLOCKS | OP_KINDS_WITH_OUTPUT_BLOCKS)
/* With layouts, a rank has counts that not all other ranks have. */
#define OP_KINDS_WITH_PRIVATE_COUNTS (OP_KIND_BIT(GATHER) | OP_KIND_BIT(SCATTER) | OP_KIND_BIT(ALL_TO_ALL))
#define OP_KINDS_OF_SCANS (OP_KIND_BIT(SCAN) | OP_KIND_BIT(EXCLUSIVE_SCAN))
/* Only the root reads its input; only the root writes its output; no rank does. */
#define OP_KINDS_ROOT_READS (OP_KIND_BIT(BROADCAST) | OP_KIND_BIT(SCATTER))
#define OP_KINDS_ROOT_WRITES (OP_KIND_BIT(REDUCE) | OP_KIND_BIT(GATHER))
#define OP_KINDS_NOBODY_READS (OP_KIND_BIT(BARRIER) | OP_KIND_BIT(RECEIVE))
#define OP_KINDS_NOBODY_WRITES (OP_KIND_BIT(BARRIER) | OP_KIND_BIT(SEND))
/* Successive operations of these kinds, in a group, run as one; with blocks, only without layouts. */
#define OP_KINDS_IN_BUCKETS (OP_KIND_BIT(ALL_REDUCE) | OP_KIND_BIT(ALL_GATHER) | OP_KIND_BIT(REDUCE_SCATTER))
#define OP_KINDS_OF_MESSAGES (OP_KIND_BIT(SEND) | OP_KIND_BIT(RECEIVE))

/* The kind may be any number that came from outside. */
static inline bool op_kind_is_among(uint32_t kind, uint32_t kinds)
{
    return kind < 32 && (kinds >> kind & 1u) != 0;
}
static inline bool op_kind_reduces(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_OPERATOR);
}
static inline bool op_kind_has_root(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_ROOT);
}
/* Whether the count is that of one rank's block, or layouts have the counts. */
static inline bool op_kind_has_blocks(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_BLOCKS);
}
/* Whether the input, or the output, has a block for each rank. */
static inline bool op_kind_has_input_blocks(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_INPUT_BLOCKS);
}
static inline bool op_kind_has_output_blocks(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_OUTPUT_BLOCKS);
}
static inline bool op_kind_has_private_counts(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_WITH_PRIVATE_COUNTS);
}
static inline bool op_kind_is_scan(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_OF_SCANS);
}
/* Whether a rank has an input, or an output. The root of a broadcast may have an output as well. */
/* Whether the root's data go to the other ranks. */
static inline bool op_kind_is_from_root(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_ROOT_READS);
}
static inline bool op_kind_reads(enum op_kind kind, bool is_root)
{
    return !op_kind_is_among(kind, OP_KINDS_NOBODY_READS) &&
           (is_root || !op_kind_is_among(kind, OP_KINDS_ROOT_READS));
}
static inline bool op_kind_writes(enum op_kind kind, bool is_root)
{
    return !op_kind_is_among(kind, OP_KINDS_NOBODY_WRITES) &&
           (is_root ? kind != OP_KIND_BROADCAST : !op_kind_is_among(kind, OP_KINDS_ROOT_WRITES));
}
static inline bool op_kind_is_in_buckets(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_IN_BUCKETS);
}
static inline bool op_kind_is_message(enum op_kind kind)
{
    return op_kind_is_among(kind, OP_KINDS_OF_MESSAGES);
}

/* Element size in bytes; 0 for a number that is not in the list. */
static inline size_t dtype_size_bytes(enum dtype dtype)
{
#define X(name, number, text, size_bytes) [number] = size_bytes,
    static const uint8_t sizes_bytes[] = {DTYPE_LIST(X)};
#undef X
    return (unsigned)dtype < sizeof sizes_bytes ? sizes_bytes[dtype] : 0;
}

/* "f32", "sum", "all_reduce"; "unknown" for a number that is not in the list. Static storage. */
const char *dtype_text(enum dtype dtype);
const char *reduce_text(enum reduce reduce);
const char *op_kind_text(enum op_kind kind);
const char *compression_text(enum compression compression);

/* Checked conversion of a number from the wire. Returns false, and leaves *out untouched, if it is not in the
 * list. */
static inline bool dtype_from_wire(unsigned number, enum dtype *out)
{
    if (number >= DTYPE_COUNT) {
        return false;
    }
    *out = (enum dtype)number;
    return true;
}
static inline bool reduce_from_wire(unsigned number, enum reduce *out)
{
    if (number >= REDUCE_COUNT) {
        return false;
    }
    *out = (enum reduce)number;
    return true;
}
static inline bool op_kind_from_wire(unsigned number, enum op_kind *out)
{
    if (number >= OP_KIND_COUNT) {
        return false;
    }
    *out = (enum op_kind)number;
    return true;
}
static inline bool compression_from_wire(unsigned number, enum compression *out)
{
    if (number >= COMPRESSION_COUNT) {
        return false;
    }
    *out = (enum compression)number;
    return true;
}

/*
 * Which operators have a meaning for which element types:
 *   sum                        all types (bool: as lor)
 *   prod                       all types (bool: as land)
 *   min, max                   all but complex (bool: false < true)
 *   avg                        all but bool; integers divide truncating toward zero after the (wrapping) sum
 *   premul_sum                 all but bool; integers take a whole factor, and products wrap
 *   band, bor, bxor            integers and bool
 *   land, lor                  integers and bool; the result is 0 or 1
 */
bool reduce_is_defined(enum dtype dtype, enum reduce reduce);

/* premul_sum of integers: whole numbers up to this, either sign, are exact as a double. */
#define REDUCE_WHOLE_FACTOR_MAX 9007199254740992.0 /* 2^53 */

#endif
