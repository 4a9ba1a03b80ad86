#include "proto/op_terms.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/little_endian.h"

/* X(field, offset on the wire, name for messages) */
#define OP_TERMS_FIELDS(X)                                                                                   \
    X(kind, 0, "kind")                                                                                       \
    X(dtype, 1, "dtype")                                                                                     \
    X(reduce, 2, "operator")                                                                                 \
    X(has_layouts, 4, "having counts for each rank")                                                         \
    X(count_elements, 16, "count")                                                                           \
    X(root_rank, 8, "root")                                                                                  \
    X(compression, 3, "compression")                                                                         \
    X(top_k_permille, 6, "top_k")                                                                            \
    X(has_residual, 5, "error feedback")                                                                     \
    X(bucket_ops, 12, "operations in the group")                                                             \
    X(bucket_index, 14, "place in the group")                                                                \
    X(hash, 24, "counts of the ranks, or of the group")

#define X(field, offset, text)                                                                               \
    _Static_assert(offsetof(struct op_terms, field) == (offset), "the wire has the struct's layout");
OP_TERMS_FIELDS(X)
#undef X

const char *op_terms_difference(const struct op_terms *one, const struct op_terms *other)
{
#define X(field, offset, text)                                                                               \
    if (one->field != other->field) {                                                                        \
        return text;                                                                                         \
    }
    OP_TERMS_FIELDS(X)
#undef X
    return NULL;
}

__attribute__((format(printf, 4, 5))) static void text_add(char *out, size_t size, size_t *length,
                                                           const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int added = *length < size ? vsnprintf(out + *length, size - *length, format, arguments) : 0;
    va_end(arguments);
    *length += added > 0 ? (size_t)added : 0;
}

static void describe_rest(const struct op_terms *terms, char *out, size_t size, size_t *length)
{
    bool grouped = terms->bucket_ops > 1;
    if (terms->hash != 0 && !grouped) {
        text_add(out, size, length, ", counts %08x", (unsigned)(terms->hash & UINT32_MAX));
    }
    if (terms->compression != COMPRESSION_NONE) {
        text_add(out, size, length, ", %s on the wire%s", compression_text(terms->compression),
                 terms->has_residual ? " with error feedback" : "");
    }
    if (terms->compression == COMPRESSION_TOP_K) {
        text_add(out, size, length, " (%u of 1000)", terms->top_k_permille);
    }
    if (grouped) {
        text_add(out, size, length, ", %u of %u in a group", terms->bucket_index + 1u, terms->bucket_ops);
    }
}

void op_terms_describe(const struct op_terms *terms, char *out, size_t size)
{
    size_t length = 0;
    text_add(out, size, &length, "%s%s", op_kind_text(terms->kind), terms->has_layouts ? "_v" : "");
    if (terms->kind == OP_KIND_BARRIER) {
        return;
    }
    text_add(out, size, &length, " of ");
    if (!terms->has_layouts) {
        text_add(out, size, &length, "%llu ", (unsigned long long)terms->count_elements);
    }
    text_add(out, size, &length, "%s", dtype_text(terms->dtype));
    if (op_kind_has_root(terms->kind)) {
        text_add(out, size, &length, " %s rank %u", op_kind_is_from_root(terms->kind) ? "from" : "to",
                 terms->root_rank);
    }
    if (op_kind_reduces(terms->kind)) {
        text_add(out, size, &length, ", %s", reduce_text(terms->reduce));
    }
    describe_rest(terms, out, size, &length);
}

/* The first field that is out of range, or null. */
static const char *invalid_field(const struct op_terms *terms)
{
    bool grouped = terms->bucket_ops > 1;
    bool has_layouts = op_kind_has_blocks(terms->kind) && terms->has_layouts != 0;
    return terms->kind >= OP_KIND_COUNT                     ? "kind"
           : terms->dtype >= DTYPE_COUNT                    ? "dtype"
           : terms->reduce >= REDUCE_COUNT                  ? "reduce"
           : terms->compression >= COMPRESSION_COUNT        ? "compression"
           : terms->has_layouts > 1                         ? "has_layouts"
           : terms->has_residual > 1                        ? "has_residual"
           : terms->top_k_permille > OP_TOP_K_MAX_PERMILLE  ? "top_k_permille"
           : terms->bucket_ops > OP_BUCKET_OPS_MAX          ? "bucket_ops"
           : terms->bucket_index >= terms->bucket_ops       ? "bucket_index"
           : grouped && !op_kind_is_in_buckets(terms->kind) ? "bucket_ops"
           : grouped && has_layouts                         ? "has_layouts"
                                                            : NULL;
}

bool op_terms_are_valid(const struct op_terms *terms, const char **what)
{
    const char *field = invalid_field(terms);
    if (field != NULL) {
        *what = field;
    }
    return field == NULL;
}

void op_terms_encode(const struct op_terms *terms, uint8_t out[OP_TERMS_BYTES])
{
    out[0] = (uint8_t)terms->kind;
    out[1] = (uint8_t)terms->dtype;
    out[2] = (uint8_t)terms->reduce;
    out[3] = (uint8_t)terms->compression;
    out[4] = terms->has_layouts;
    out[5] = terms->has_residual;
    put_u16_le(out + 6, terms->top_k_permille);
    put_u32_le(out + 8, terms->root_rank);
    put_u16_le(out + 12, terms->bucket_ops);
    put_u16_le(out + 14, terms->bucket_index);
    put_u64_le(out + 16, terms->count_elements);
    put_u64_le(out + 24, terms->hash);
}

void op_terms_decode(const uint8_t in[OP_TERMS_BYTES], struct op_terms *terms)
{
    *terms = (struct op_terms){.kind = in[0],
                               .dtype = in[1],
                               .reduce = in[2],
                               .compression = in[3],
                               .has_layouts = in[4],
                               .has_residual = in[5],
                               .top_k_permille = get_u16_le(in + 6),
                               .root_rank = get_u32_le(in + 8),
                               .bucket_ops = get_u16_le(in + 12),
                               .bucket_index = get_u16_le(in + 14),
                               .count_elements = get_u64_le(in + 16),
                               .hash = get_u64_le(in + 24)};
}
