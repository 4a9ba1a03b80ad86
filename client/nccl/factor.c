#include <math.h>
#include <stdint.h>
#include <string.h>

#include "client/nccl/communicator.h"

/* Operators that multiply each rank's input by a factor before the sum. */

#define WHOLE_MAX 9007199254740992.0 /* 2^53: comm_call_options_t has the factor as a double */

/* A float of fewer bits: sign, exponent, fraction. */
static double decode_small(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity)
{
    uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    int most = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> fraction_bits) & most;
    int bias = most >> 1;
    double sign = (bits >> (fraction_bits + exponent_bits)) != 0 ? -1.0 : 1.0;
    if (exponent == most && has_infinity) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    if (exponent == most && fraction == (1u << fraction_bits) - 1) {
        return (double)NAN; /* e4m3 has no infinity, and one NaN */
    }
    return exponent == 0
               ? sign * ldexp((double)fraction, 1 - bias - fraction_bits)
               : sign * ldexp((double)(fraction | 1u << fraction_bits), exponent - bias - fraction_bits);
}

static double decode_one(comm_dtype_t type, const void *bytes)
{
    uint16_t two;
    float four;
    memcpy(&two, bytes, sizeof two);
    memcpy(&four, bytes, sizeof four);
    if (type == COMM_F32) {
        return (double)four;
    }
    if (type == COMM_F16) {
        return decode_small(two, 5, 10, true);
    }
    if (type == COMM_BF16) {
        return decode_small(two, 8, 7, true);
    }
    return type == COMM_F8E5M2 ? decode_small(two & 0xffu, 5, 2, true)
                               : decode_small(two & 0xffu, 4, 3, false);
}

static bool is_float(comm_dtype_t type)
{
    return type == COMM_F64 || type == COMM_F32 || type == COMM_F16 || type == COMM_BF16 ||
           type == COMM_F8E4M3 || type == COMM_F8E5M2;
}

/* Products wrap, so an unsigned number of 64 bits may as well be a negative one. */
static double decode_integer(comm_dtype_t type, const void *bytes)
{
    uint64_t bits = 0;
    size_t size = comm_dtype_size(type);
    memcpy(&bits, bytes, size);
    if ((type == COMM_I8 || type == COMM_I32) && bits >> (8 * size - 1) != 0) {
        bits |= UINT64_MAX << 8 * size;
    }
    return (double)(int64_t)bits;
}

ncclResult_t factor_decode(comm_dtype_t type, const void *bytes, double *out, const char *call)
{
    unsigned char padded[8] = {0};
    double eight;
    if (!is_float(type)) {
        *out = decode_integer(type, bytes);
        return fabs(*out) <= WHOLE_MAX
                   ? NCCL_SUCCESS
                   : failure_set(NCCL_INVALID_USAGE, "%s: commd multiplies integers by at most 2^53", call);
    }
    memcpy(padded, bytes, comm_dtype_size(type));
    memcpy(&eight, padded, sizeof eight);
    *out = type == COMM_F64 ? eight : decode_one(type, padded);
    return NCCL_SUCCESS;
}

static ncclResult_t keep(struct ncclComm *comm, const struct factor *factor, ncclRedOp_t *op)
{
    int index = 0;
    (void)pthread_mutex_lock(&comm->lock);
    while (index < COMMUNICATOR_FACTORS_MAX && comm->factors[index].used) {
        index++;
    }
    if (index < COMMUNICATOR_FACTORS_MAX) {
        comm->factors[index] = *factor;
        *op = comm->first_op + index;
    }
    (void)pthread_mutex_unlock(&comm->lock);
    return index < COMMUNICATOR_FACTORS_MAX
               ? NCCL_SUCCESS
               : failure_set(NCCL_SYSTEM_ERROR,
                             "ncclRedOpCreatePreMulSum: a communicator has at most %d operators",
                             COMMUNICATOR_FACTORS_MAX);
}

NCCL_EXPORT(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t number,
            ncclScalarResidence_t residence, ncclComm_t comm)
{
    const char *call = "ncclRedOpCreatePreMulSum";
    comm_dtype_t type;
    ncclResult_t result = communicator_check(comm, call);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (op == NULL || scalar == NULL || !type_of(number, &type) ||
        (residence != NCCL_SCALAR_DEVICE && residence != NCCL_SCALAR_HOST)) {
        return failure_set(NCCL_INVALID_ARGUMENT, "%s: type %d, residence %d, scalar %p", call, number,
                           residence, scalar);
    }
    struct factor factor = {.used = true, .type = number};
    if (residence == NCCL_SCALAR_DEVICE) {
        factor.device_scalar = scalar;
    } else {
        result = factor_decode(type, scalar, &factor.value, call);
    }
    return result == NCCL_SUCCESS ? keep(comm, &factor, op) : result;
}

NCCL_EXPORT(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
    int index = comm != NULL && op >= comm->first_op ? op - comm->first_op : -1;
    bool known = false;
    if (index >= 0 && index < COMMUNICATOR_FACTORS_MAX) {
        (void)pthread_mutex_lock(&comm->lock);
        known = comm->factors[index].used;
        comm->factors[index].used = false;
        (void)pthread_mutex_unlock(&comm->lock);
    }
    return known ? NCCL_SUCCESS
                 : failure_set(NCCL_INVALID_ARGUMENT,
                               "ncclRedOpDestroy: this communicator has no operator %d", op);
}
