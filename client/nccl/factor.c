#include <math.h>
#include <stdint.h>
#include <string.h>

#include "client/nccl/communicator.h"

/* Operators that multiply each rank's input by a factor before the sum. */

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

double factor_decode(comm_dtype_t type, const void *bytes)
{
    unsigned char padded[8] = {0};
    double eight;
    memcpy(padded, bytes, comm_dtype_size(type));
    memcpy(&eight, padded, sizeof eight);
    return type == COMM_F64 ? eight : decode_one(type, padded);
}

static bool is_float(comm_dtype_t type)
{
    return type == COMM_F64 || type == COMM_F32 || type == COMM_F16 || type == COMM_BF16 ||
           type == COMM_F8E4M3 || type == COMM_F8E5M2;
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
    if (!is_float(type)) {
        return failure_set(NCCL_INVALID_USAGE, "%s: commd multiplies floating-point types only", call);
    }
    struct factor factor = {.used = true, .type = number};
    if (residence == NCCL_SCALAR_HOST) {
        factor.value = factor_decode(type, scalar);
    } else {
        factor.device_scalar = scalar;
    }
    int index = 0;
    (void)pthread_mutex_lock(&comm->lock);
    while (index < COMMUNICATOR_FACTORS_MAX && comm->factors[index].used) {
        index++;
    }
    if (index < COMMUNICATOR_FACTORS_MAX) {
        comm->factors[index] = factor;
        *op = NCCL_FIRST_OWN_OP + index;
    }
    (void)pthread_mutex_unlock(&comm->lock);
    return index < COMMUNICATOR_FACTORS_MAX
               ? NCCL_SUCCESS
               : failure_set(NCCL_SYSTEM_ERROR, "%s: a communicator has at most %d operators", call,
                             COMMUNICATOR_FACTORS_MAX);
}

NCCL_EXPORT(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
    int index = op - NCCL_FIRST_OWN_OP;
    bool known = false;
    if (comm != NULL && index >= 0 && index < COMMUNICATOR_FACTORS_MAX) {
        (void)pthread_mutex_lock(&comm->lock);
        known = comm->factors[index].used;
        comm->factors[index].used = false;
        (void)pthread_mutex_unlock(&comm->lock);
    }
    return known ? NCCL_SUCCESS
                 : failure_set(NCCL_INVALID_ARGUMENT,
                               "ncclRedOpDestroy: this communicator has no operator %d", op);
}
