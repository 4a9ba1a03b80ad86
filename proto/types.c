#include "proto/types.h"

static const size_t dtype_sizes_bytes[DTYPE_COUNT] = {
#define X(name, number, text, size_bytes) [number] = size_bytes,
    DTYPE_LIST(X)
#undef X
};

static const char *const dtype_texts[DTYPE_COUNT] = {
#define X(name, number, text, size_bytes) [number] = text,
    DTYPE_LIST(X)
#undef X
};

static const char *const reduce_texts[REDUCE_COUNT] = {
#define X(name, number, text) [number] = text,
    REDUCE_LIST(X)
#undef X
};

static const char *const op_kind_texts[OP_KIND_COUNT] = {
#define X(name, number, text) [number] = text,
    OP_KIND_LIST(X)
#undef X
};

static const char *const compression_texts[COMPRESSION_COUNT] = {
#define X(name, number, text) [number] = text,
    COMPRESSION_LIST(X)
#undef X
};

size_t dtype_size_bytes(enum dtype dtype)
{
    return dtype_sizes_bytes[dtype];
}

const char *dtype_text(enum dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? dtype_texts[dtype] : "unknown";
}

const char *reduce_text(enum reduce reduce)
{
    return (unsigned)reduce < REDUCE_COUNT ? reduce_texts[reduce] : "unknown";
}

const char *op_kind_text(enum op_kind kind)
{
    return (unsigned)kind < OP_KIND_COUNT ? op_kind_texts[kind] : "unknown";
}

const char *compression_text(enum compression compression)
{
    return (unsigned)compression < COMPRESSION_COUNT ? compression_texts[compression] : "unknown";
}

bool dtype_from_wire(unsigned number, enum dtype *out)
{
    if (number >= DTYPE_COUNT) {
        return false;
    }
    *out = (enum dtype)number;
    return true;
}

bool reduce_from_wire(unsigned number, enum reduce *out)
{
    if (number >= REDUCE_COUNT) {
        return false;
    }
    *out = (enum reduce)number;
    return true;
}

bool op_kind_from_wire(unsigned number, enum op_kind *out)
{
    if (number >= OP_KIND_COUNT) {
        return false;
    }
    *out = (enum op_kind)number;
    return true;
}

bool compression_from_wire(unsigned number, enum compression *out)
{
    if (number >= COMPRESSION_COUNT) {
        return false;
    }
    *out = (enum compression)number;
    return true;
}

enum kind_property { KIND_REDUCES = 1, KIND_HAS_ROOT = 2, KIND_HAS_BLOCKS = 4, KIND_IS_MESSAGE = 8 };

static const unsigned char kind_properties[OP_KIND_COUNT] = {
    [OP_KIND_ALL_REDUCE] = KIND_REDUCES,
    [OP_KIND_BROADCAST] = KIND_HAS_ROOT,
    [OP_KIND_BARRIER] = 0,
    [OP_KIND_REDUCE] = KIND_REDUCES | KIND_HAS_ROOT,
    [OP_KIND_ALL_GATHER] = KIND_HAS_BLOCKS,
    [OP_KIND_REDUCE_SCATTER] = KIND_REDUCES | KIND_HAS_BLOCKS,
    [OP_KIND_GATHER] = KIND_HAS_ROOT | KIND_HAS_BLOCKS,
    [OP_KIND_SCATTER] = KIND_HAS_ROOT | KIND_HAS_BLOCKS,
    [OP_KIND_ALL_TO_ALL] = KIND_HAS_BLOCKS,
    [OP_KIND_SCAN] = KIND_REDUCES,
    [OP_KIND_EXCLUSIVE_SCAN] = KIND_REDUCES,
    [OP_KIND_SEND] = KIND_IS_MESSAGE,
    [OP_KIND_RECEIVE] = KIND_IS_MESSAGE,
};

bool op_kind_reduces(enum op_kind kind)
{
    return (kind_properties[kind] & KIND_REDUCES) != 0;
}

bool op_kind_has_root(enum op_kind kind)
{
    return (kind_properties[kind] & KIND_HAS_ROOT) != 0;
}

bool op_kind_has_blocks(enum op_kind kind)
{
    return (kind_properties[kind] & KIND_HAS_BLOCKS) != 0;
}

bool op_kind_is_message(enum op_kind kind)
{
    return (kind_properties[kind] & KIND_IS_MESSAGE) != 0;
}

static bool dtype_is_complex(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128;
}

static bool dtype_is_float(enum dtype dtype)
{
    return dtype <= DTYPE_F8E5M2;
}

bool reduce_is_defined(enum dtype dtype, enum reduce reduce)
{
    switch (reduce) {
    case REDUCE_SUM:
    case REDUCE_PROD:
        return true;
    case REDUCE_MIN:
    case REDUCE_MAX:
        return !dtype_is_complex(dtype);
    case REDUCE_AVG:
        return dtype != DTYPE_BOOL;
    case REDUCE_PREMUL_SUM:
        return dtype_is_float(dtype) || dtype_is_complex(dtype);
    case REDUCE_BAND:
    case REDUCE_BOR:
    case REDUCE_BXOR:
    case REDUCE_LAND:
    case REDUCE_LOR:
        return !dtype_is_float(dtype) && !dtype_is_complex(dtype);
    }
    return false;
}
