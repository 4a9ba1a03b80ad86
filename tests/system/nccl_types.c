#include "tests/system/nccl_program.h"

#include <string.h>

#include "tests/lib/elements.h"

/* All types and operators of all reductions, each element compared with a reference. */

#define COUNT 517
#define RANKS_MAX 8
#define OP_COUNT 5 /* and the pre-multiplied sum after them */

static const enum dtype dtypes[ncclNumTypes] = {
    [ncclInt8] = DTYPE_I8,       [ncclUint8] = DTYPE_U8,          [ncclInt32] = DTYPE_I32,
    [ncclUint32] = DTYPE_U32,    [ncclInt64] = DTYPE_I64,         [ncclUint64] = DTYPE_U64,
    [ncclFloat16] = DTYPE_F16,   [ncclFloat32] = DTYPE_F32,       [ncclFloat64] = DTYPE_F64,
    [ncclBfloat16] = DTYPE_BF16, [ncclFloat8e4m3] = DTYPE_F8E4M3, [ncclFloat8e5m2] = DTYPE_F8E5M2};
static const enum reduce reduces[OP_COUNT + 1] = {
    [ncclSum] = REDUCE_SUM, [ncclProd] = REDUCE_PROD, [ncclMax] = REDUCE_MAX,
    [ncclMin] = REDUCE_MIN, [ncclAvg] = REDUCE_AVG,   [OP_COUNT] = REDUCE_PREMUL_SUM};

/* The inputs of all ranks: `blocks` blocks of COUNT elements, and each rank's factor of the type. */
static unsigned char inputs[RANKS_MAX][RANKS_MAX * COUNT * 8];
static unsigned char factors[RANKS_MAX][8];
static unsigned char got[RANKS_MAX * COUNT * 8], wanted[8];

/* Whole numbers that all floating-point types hold, and that overflow the small integers. */
static uint64_t value_of(enum dtype dtype, int rank, size_t index)
{
    uint64_t mixed = (index * 2654435761u + (uint64_t)rank * 40503u) % 1000003u;
    return element_is_real(dtype) ? mixed % 3 : mixed * 0x100000001b3u;
}

static void make_inputs(enum dtype dtype)
{
    size_t bytes = dtype_size_bytes(dtype);
    for (int rank = 0; rank < size; rank++) {
        for (size_t i = 0; i < (size_t)size * COUNT; i++) {
            uint64_t value = value_of(dtype, rank, i);
            memcpy(&inputs[rank][i * bytes], &value, bytes);
            if (element_is_real(dtype)) {
                element_put_real(dtype, inputs[rank], i, (double)value);
            }
        }
        uint64_t factor = (uint64_t)0 - 3 + (uint64_t)rank * 5; /* -3, 2, 7: they wrap around */
        memcpy(factors[rank], &factor, sizeof factor);
        if (element_is_real(dtype)) {
            element_put_real(dtype, factors[rank], 0, rank % 2 == 0 ? 0.5 : 2);
        }
    }
}

static double fold(enum reduce reduce, double a, double b)
{
    if (reduce == REDUCE_PROD) {
        return a * b;
    }
    if (reduce == REDUCE_MAX) {
        return a > b ? a : b;
    }
    return reduce == REDUCE_MIN ? (a < b ? a : b) : a + b;
}

static void reduce_reals(enum dtype dtype, enum reduce reduce, size_t index)
{
    double value = 0;
    for (int rank = 0; rank < size; rank++) {
        double each = element_real(dtype, inputs[rank], index);
        each *= reduce == REDUCE_PREMUL_SUM ? element_real(dtype, factors[rank], 0) : 1;
        value = rank == 0 ? each : fold(reduce, value, each);
    }
    element_put_real(dtype, wanted, 0, reduce == REDUCE_AVG ? value / size : value);
}

static void reduce_integers(enum dtype dtype, enum reduce reduce, size_t index)
{
    const void *arrays[RANKS_MAX];
    uint64_t products[RANKS_MAX];
    for (int rank = 0; rank < size; rank++) {
        products[rank] =
            element_integer(dtype, inputs[rank], index) * element_integer(dtype, factors[rank], 0);
        arrays[rank] = reduce == REDUCE_PREMUL_SUM ? (const void *)&products[rank] : inputs[rank];
    }
    uint64_t value = element_reduce_integers(dtype, reduce, (uint32_t)size, arrays,
                                             reduce == REDUCE_PREMUL_SUM ? 0 : index,
                                             reduce == REDUCE_AVG ? (uint64_t)size : 1);
    memcpy(wanted, &value, dtype_size_bytes(dtype));
}

static void compare(const struct local *local, int type, int op, size_t first, size_t count, const char *call)
{
    enum dtype dtype = dtypes[type];
    size_t bytes = dtype_size_bytes(dtype);
    read_gpu(local, local->receive, got, count * bytes);
    for (size_t i = 0; i < count; i++) {
        if (element_is_real(dtype)) {
            reduce_reals(dtype, reduces[op], first + i);
        } else {
            reduce_integers(dtype, reduces[op], first + i);
        }
        if (memcmp(&got[i * bytes], wanted, bytes) != 0) {
            fprintf(stderr, "rank %d: %s of type %d, operator %d: element %zu is wrong\n", local->rank, call,
                    type, op, first + i);
            exit(EXIT_FAILURE);
        }
    }
}

static ncclRedOp_t make_op(const struct local *local, int type, int op)
{
    ncclRedOp_t made = (ncclRedOp_t)op;
    if (op == OP_COUNT) {
        expect(ncclRedOpCreatePreMulSum(&made, factors[local->rank], (ncclDataType_t)type,
                                        ncclScalarHostImmediate, local->comm),
               ncclSuccess, "ncclRedOpCreatePreMulSum");
    }
    return made;
}

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, KIND_COUNT };

static ncclResult_t call(const struct local *local, enum kind kind, int type, ncclRedOp_t op)
{
    ncclDataType_t number = (ncclDataType_t)type;
    bool is_root = local->rank == type % size;
    if (kind == ALL_REDUCE) {
        return ncclAllReduce(AT(local->send), AT(local->receive), COUNT, number, op, local->comm,
                             STREAM(local));
    }
    if (kind == REDUCE) {
        return ncclReduce(AT(local->send), is_root ? AT(local->receive) : NULL, COUNT, number, op,
                          type % size, local->comm, STREAM(local));
    }
    return ncclReduceScatter(AT(local->send), AT(local->receive), COUNT, number, op, local->comm,
                             STREAM(local));
}

static void check(enum kind kind, int type, int op)
{
    static const char *const names[KIND_COUNT] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter"};
    size_t blocks = kind == REDUCE_SCATTER ? (size_t)size : 1;
    EACH(local)
    {
        poison(local);
        write_gpu(local, local->send, inputs[local->rank], blocks * COUNT * dtype_size_bytes(dtypes[type]));
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        ncclRedOp_t made = make_op(local, type, op);
        expect(call(local, kind, type, made), ncclSuccess, names[kind]);
        if (op == OP_COUNT) { /* before the group ends */
            expect(ncclRedOpDestroy(made, local->comm), ncclSuccess, "ncclRedOpDestroy");
        }
    }
    expect(ncclGroupEnd(), ncclSuccess, names[kind]);
    EACH(local)
    {
        if (kind != REDUCE || local->rank == type % size) {
            compare(local, type, op, kind == REDUCE_SCATTER ? (size_t)local->rank * COUNT : 0, COUNT,
                    names[kind]);
        }
    }
}

void case_types(void)
{
    init_all();
    for (int type = 0; type < ncclNumTypes; type++) {
        make_inputs(dtypes[type]);
        for (int op = 0; op <= OP_COUNT; op++) {
            check(ALL_REDUCE, type, op);
            check(REDUCE, type, op);
            check(REDUCE_SCATTER, type, op);
        }
    }
    destroy_all();
}
