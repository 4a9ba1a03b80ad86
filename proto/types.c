#include "proto/types.h"

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
    case REDUCE_PREMUL_SUM:
        return dtype != DTYPE_BOOL;
    case REDUCE_BAND:
    case REDUCE_BOR:
    case REDUCE_BXOR:
    case REDUCE_LAND:
    case REDUCE_LOR:
        return !dtype_is_float(dtype) && !dtype_is_complex(dtype);
    }
    return false;
}
