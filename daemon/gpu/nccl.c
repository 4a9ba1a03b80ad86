#include "daemon/gpu/nccl.h"

#include <stdio.h>

#include "daemon/gpu/nccl_library.h"
#include "daemon/gpu/nccl_types.h"

/* --- The library --- */

void gpu_nccl_version(char *text, size_t size)
{
    const struct nccl_library *nccl;
    char why[256];
    text[0] = '\0';
    if (nccl_library_load(&nccl, why, sizeof why)) {
        (void)snprintf(text, size, "%d.%d.%d", nccl->number / 10000, nccl->number / 100 % 100,
                       nccl->number % 100);
    }
}

void gpu_nccl_absent(char *why, size_t size)
{
    const struct nccl_library *nccl;
    why[0] = '\0';
    (void)nccl_library_load(&nccl, why, size);
}

void gpu_nccl_forbid(void)
{
    nccl_library_forbid();
}

bool gpu_nccl_is_there(void)
{
    const struct nccl_library *nccl;
    char why[256];
    return nccl_library_load(&nccl, why, sizeof why);
}

bool gpu_nccl_orders_launches(void)
{
    const struct nccl_library *nccl;
    char why[256];
    return nccl_library_load(&nccl, why, sizeof why) && nccl->number >= NCCL_VERSION_ORDERS;
}

/* --- Types and operators --- */

/* NCCL's type, or -1. *elements: how many of NCCL's elements make one of ours. */
static int type_of(enum dtype dtype, uint64_t *elements)
{
    *elements = 1;
    switch (dtype) {
    case DTYPE_F64:
        return NCCL_TYPE_F64;
    case DTYPE_F32:
        return NCCL_TYPE_F32;
    case DTYPE_F16:
        return NCCL_TYPE_F16;
    case DTYPE_BF16:
        return NCCL_TYPE_BF16;
    case DTYPE_I64:
        return NCCL_TYPE_I64;
    case DTYPE_I32:
        return NCCL_TYPE_I32;
    case DTYPE_I8:
        return NCCL_TYPE_I8;
    case DTYPE_U64:
        return NCCL_TYPE_U64;
    case DTYPE_U32:
        return NCCL_TYPE_U32;
    case DTYPE_U8:
        return NCCL_TYPE_U8;
    case DTYPE_C64: /* the sum of complex numbers is the sum of their parts */
        *elements = 2;
        return NCCL_TYPE_F32;
    case DTYPE_C128:
        *elements = 2;
        return NCCL_TYPE_F64;
    case DTYPE_F8E4M3: /* our sums of these types saturate */
    case DTYPE_F8E5M2:
    case DTYPE_I16:
    case DTYPE_U16:
    case DTYPE_BOOL:
        return -1;
    }
    return -1;
}

static bool is_integer(enum dtype dtype)
{
    return dtype >= DTYPE_I64 && dtype <= DTYPE_U8;
}

static bool is_complex(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128;
}

/* NCCL's operator, or -1. Operators that also divide or multiply are not left to NCCL. */
static int operator_of(enum dtype dtype, enum reduce reduce)
{
    switch (reduce) {
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL_SUM:
        return NCCL_REDUCE_SUM;
    case REDUCE_PROD:
        return is_complex(dtype) ? -1 : NCCL_REDUCE_PROD;
    case REDUCE_MIN: /* for floating point, NCCL does not promise what becomes of NaN */
        return is_integer(dtype) ? NCCL_REDUCE_MIN : -1;
    case REDUCE_MAX:
        return is_integer(dtype) ? NCCL_REDUCE_MAX : -1;
    case REDUCE_BAND:
    case REDUCE_BOR:
    case REDUCE_BXOR:
    case REDUCE_LAND:
    case REDUCE_LOR:
        return -1;
    }
    return -1;
}

struct nccl_reduction nccl_reduction_of(enum dtype dtype, enum reduce reduce)
{
    struct nccl_reduction as = {.reduce = operator_of(dtype, reduce)};
    as.type = type_of(dtype, &as.elements);
    return as;
}

bool gpu_nccl_reduces(enum dtype dtype, enum reduce reduce)
{
    struct nccl_reduction as = nccl_reduction_of(dtype, reduce);
    return as.type >= 0 && as.reduce >= 0;
}
