/*
 * One rank of a check against real daemons. It runs every type and operator, broadcasts from every root, and
 * barriers. Counts are around every boundary. Operations are in place and out of place, in registered and in
 * ordinary memory. It compares the results with a reference of higher precision. They must have identical
 * bits on all ranks.
 *
 *   matrix NAME RANK SIZE [DEVICE]
 *
 * Without a DEVICE, each type, operator and count runs both ways: in place and not, in registered memory and
 * not. With a DEVICE, it runs one way, and each type and operator has every other count. They take turns:
 * each type has every count both ways, and so has each operator.
 *
 * It prints the number of checked operations, or prints what is wrong and exits with 1.
 */
#include <commclient.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_mirror.h"

#define SLICE_BYTES 4096u
#define LARGE_COUNT 100003u
#define POISON 0xA5

static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;
static unsigned char *registered_in, *registered_out, *plain_in, *plain_out;
static unsigned long checked;

/* What an element of a result must be. */
struct reference {
    long double value,
        magnitude; /* of floating-point types: the bound of the error grows with the magnitude */
    uint64_t integer;
};
/* What the first `count` of them must be. Types with the same inputs share a table of each operator. */
enum { TABLE_REAL, TABLE_F8E5M2, TABLE_COMPLEX, TABLE_INTEGER, TABLES, TABLE_OPS = COMM_LOR + 1 };
static struct reference_table {
    struct reference *references;
    size_t count;
} tables[TABLES][TABLE_OPS];
static const struct reference *references; /* those of the last prepare() */

/* This rank's inputs of one type. */
static struct {
    unsigned char *bytes;
    size_t count;
    int dtype;
} inputs = {.dtype = -1};

static const char *const dtype_names[] = {"f64", "f32", "f16",  "bf16", "f8e4m3", "f8e5m2",
                                          "i64", "i32", "i16",  "i8",   "u64",    "u32",
                                          "u16", "u8",  "bool", "c64",  "c128"};
static const char *const op_names[] = {"sum",  "prod", "min",  "max",  "avg", "premul_sum",
                                       "band", "bor",  "bxor", "land", "lor"};

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static uint64_t hash(uint64_t of_rank, uint64_t index)
{
    uint64_t value = (index + 1) * 0x9e3779b97f4a7c15ull ^ (of_rank + 1) * 0xbf58476d1ce4e5b9ull;
    value ^= value >> 29;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 32);
}

/* Floating-point inputs are 0.5 + k/8 with k in 0..7, some of them negative. All types hold them exactly,
 * except f8e5m2, which rounds them to its 2 bits of mantissa. */
static double real_input(comm_dtype_t dtype, uint64_t of_rank, uint64_t index)
{
    uint64_t value = hash(of_rank, index);
    double real = dtype == COMM_F8E5M2 ? 0.5 + (double)(value % 3) * 0.25 : 0.5 + (double)(value % 8) / 8;
    return (value >> 20) % 3 == 0 ? -real : real;
}

static bool is_complex(comm_dtype_t dtype)
{
    return dtype == COMM_C64 || dtype == COMM_C128;
}

static bool is_real(comm_dtype_t dtype)
{
    return dtype <= COMM_F8E5M2 || is_complex(dtype);
}

/* Convert a value that a short float holds exactly to its bits, and back, straight from the definition of
 * the formats. */
static unsigned short_bits(double value, int exponent_bits, int mantissa_bits)
{
    int exponent;
    double fraction = frexp(fabs(value), &exponent) * 2 - 1;
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned bits = (unsigned)(exponent - 1 + bias) << mantissa_bits;
    bits |= (unsigned)lrint(fraction * (double)(1 << mantissa_bits));
    return bits | (value < 0 ? 1u << (exponent_bits + mantissa_bits) : 0);
}

static double short_value(unsigned bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1)) / (double)(1u << mantissa_bits);
    double value = exponent == 0 ? ldexp(mantissa, 1 - bias) : ldexp(1 + mantissa, exponent - bias);
    return (bits >> (exponent_bits + mantissa_bits)) != 0 ? -value : value;
}

static void put_real(comm_dtype_t dtype, unsigned char *at, double value)
{
    float f32 = (float)value;
    uint16_t half = 0;
    switch ((int)dtype) {
    case COMM_F64:
    case COMM_C128:
        memcpy(at, &value, sizeof value);
        return;
    case COMM_F32:
    case COMM_C64:
        memcpy(at, &f32, sizeof f32);
        return;
    case COMM_F16:
        half = (uint16_t)short_bits(value, 5, 10);
        break;
    case COMM_BF16:
        half = (uint16_t)short_bits(value, 8, 7);
        break;
    case COMM_F8E4M3:
        *at = (unsigned char)short_bits(value, 4, 3);
        return;
    default:
        *at = (unsigned char)short_bits(value, 5, 2);
        return;
    }
    memcpy(at, &half, sizeof half);
}

static double get_real(comm_dtype_t dtype, const unsigned char *at)
{
    double f64;
    float f32;
    uint16_t half;
    switch ((int)dtype) {
    case COMM_F64:
    case COMM_C128:
        memcpy(&f64, at, sizeof f64);
        return f64;
    case COMM_F32:
    case COMM_C64:
        memcpy(&f32, at, sizeof f32);
        return (double)f32;
    case COMM_F16:
        memcpy(&half, at, sizeof half);
        return short_value(half, 5, 10);
    case COMM_BF16:
        memcpy(&half, at, sizeof half);
        return short_value(half, 8, 7);
    case COMM_F8E4M3:
        return short_value(*at, 4, 3);
    default:
        return short_value(*at, 5, 2);
    }
}

static double roundoff(comm_dtype_t dtype)
{
    static const double units[] = {0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8, 0x1p-4, 0x1p-3};
    return dtype == COMM_C128 ? 0x1p-53 : dtype == COMM_C64 ? 0x1p-24 : units[dtype];
}

static uint64_t integer_input(comm_dtype_t dtype, uint64_t of_rank, uint64_t index)
{
    uint64_t value = hash(of_rank, index);
    return dtype == COMM_BOOL ? ((value & 3) != 0 ? 0 : 1 + value % 255) : value;
}

static uint64_t fit(comm_dtype_t dtype, uint64_t value)
{
    size_t bits = comm_dtype_size(dtype) * 8;
    if (bits < 64) {
        value &= (1ull << bits) - 1;
        bool is_signed = dtype >= COMM_I64 && dtype <= COMM_I8;
        value |= is_signed && value >> (bits - 1) != 0 ? ~0ull << bits : 0;
    }
    return value;
}

/* Writes elements from `first` to `count`. */
static void fill(comm_dtype_t dtype, unsigned char *buffer, size_t first, size_t count, uint64_t of_rank)
{
    size_t parts = is_complex(dtype) ? 2 : 1;
    size_t step = comm_dtype_size(dtype) / parts;
    for (size_t i = first * parts; i < count * parts; i++) {
        if (is_real(dtype)) {
            put_real(dtype, buffer + i * step, real_input(dtype, of_rank, i));
        } else {
            uint64_t value = integer_input(dtype, of_rank, i);
            memcpy(buffer + i * step, &value, step);
        }
    }
}

static void fill_own(comm_dtype_t dtype, unsigned char *buffer, size_t count)
{
    if (inputs.dtype != (int)dtype) {
        inputs.dtype = (int)dtype;
        inputs.count = 0;
    }
    if (count > inputs.count) {
        fill(dtype, inputs.bytes, inputs.count, count, rank);
        inputs.count = count;
    }
    memcpy(buffer, inputs.bytes, count * comm_dtype_size(dtype));
}

/* Integers take whole numbers. */
static double factor_of(comm_dtype_t dtype, uint64_t of_rank)
{
    return is_real(dtype) ? 0.5 + 0.25 * (double)of_rank : 3 - 2 * (double)of_rank;
}

static void reference_real(comm_dtype_t dtype, comm_op_t op, size_t i, long double *value,
                           long double *magnitude)
{
    *value = 0;
    *magnitude = 0;
    long double real = 1, imaginary = 0;
    for (uint64_t r = 0; r < size; r++) {
        long double x = (long double)real_input(dtype, r, i);
        x *= op == COMM_PREMUL_SUM ? (long double)factor_of(dtype, r) : 1;
        if (op == COMM_PROD && is_complex(dtype)) {
            long double a = (long double)real_input(dtype, r, i & ~(size_t)1),
                        b = (long double)real_input(dtype, r, i | 1);
            long double next = real * a - imaginary * b;
            imaginary = real * b + imaginary * a;
            real = next;
            *value = (i & 1) != 0 ? imaginary : real;
            *magnitude = fabsl(real) + fabsl(imaginary) + 1;
        } else if (op == COMM_PROD) {
            *value = r == 0 ? x : *value * x;
            *magnitude = fabsl(*value);
        } else if (op == COMM_MIN || op == COMM_MAX) {
            *value = r == 0 || (op == COMM_MIN ? x < *value : x > *value) ? x : *value;
        } else {
            *value += x;
            *magnitude += fabsl(x);
        }
    }
    if (op == COMM_AVG) {
        *value /= size;
        *magnitude /= size;
    }
}

static uint64_t reference_integer(comm_dtype_t dtype, comm_op_t op, size_t i)
{
    uint64_t value = 0;
    bool is_signed = dtype >= COMM_I64 && dtype <= COMM_I8;
    for (uint64_t r = 0; r < size; r++) {
        uint64_t x = integer_input(dtype, r, i);
        x = dtype == COMM_BOOL ? x != 0 : fit(dtype, x);
        x = op == COMM_PREMUL_SUM ? fit(dtype, x * (uint64_t)(int64_t)factor_of(dtype, r)) : x;
        bool less = is_signed ? (int64_t)x < (int64_t)value : x < value;
        if (r == 0) {
            value = op == COMM_LAND || op == COMM_LOR ? x != 0 : x;
        } else if (op == COMM_SUM || op == COMM_AVG || op == COMM_PREMUL_SUM) {
            value = dtype == COMM_BOOL ? value | x : fit(dtype, value + x);
        } else if (op == COMM_PROD) {
            value = dtype == COMM_BOOL ? value & x : fit(dtype, value * x);
        } else if (op == COMM_MIN || op == COMM_MAX) {
            value = less == (op == COMM_MIN) ? x : value;
        } else if (op == COMM_BAND || op == COMM_BOR || op == COMM_BXOR) {
            value = op == COMM_BAND ? value & x : op == COMM_BOR ? value | x : value ^ x;
        } else {
            value = op == COMM_LAND ? value != 0 && x != 0 : value != 0 || x != 0;
        }
    }
    /* The average is the sum divided by the number of ranks. */
    if (op == COMM_AVG) {
        value = is_signed ? (uint64_t)((int64_t)value / (int64_t)size) : value / size;
    }
    return value;
}

/* The table of a floating-point type. Only products of complex numbers differ from those of their parts. */
static unsigned table_of(comm_dtype_t dtype, comm_op_t op)
{
    if (is_complex(dtype) && op == COMM_PROD) {
        return TABLE_COMPLEX;
    }
    return dtype == COMM_F8E5M2 ? TABLE_F8E5M2 : TABLE_REAL;
}

/* Computes the reference of the first `count` elements. An element's reference does not depend on the count
 * of an operation, so all operations of a type and operator share it. */
static void prepare(comm_dtype_t dtype, comm_op_t op, size_t count)
{
    struct reference_table *table = &tables[is_real(dtype) ? table_of(dtype, op) : TABLE_INTEGER][op];
    size_t values = count * (is_complex(dtype) ? 2 : 1);
    size_t first = is_real(dtype) ? table->count : 0;
    if (values > table->count) {
        table->references = realloc(table->references, values * sizeof *table->references);
        table->count = values;
        if (table->references == NULL) {
            perror("matrix");
            exit(EXIT_FAILURE);
        }
    }
    for (size_t i = first; i < values; i++) {
        struct reference *reference = &table->references[i];
        if (is_real(dtype)) {
            reference_real(dtype, op, i, &reference->value, &reference->magnitude);
        } else {
            reference->integer = reference_integer(dtype, op, i);
        }
    }
    references = table->references;
}

static void check_output(comm_dtype_t dtype, comm_op_t op, size_t count, const unsigned char *output)
{
    size_t step = comm_dtype_size(dtype) / (is_complex(dtype) ? 2 : 1);
    size_t values = count * (is_complex(dtype) ? 2 : 1);
    for (size_t i = 0; i < values; i++) {
        if (is_real(dtype)) {
            long double value = references[i].value, magnitude = references[i].magnitude;
            double got = get_real(dtype, output + i * step);
            long double bound =
                magnitude * (long double)roundoff(dtype) * (size + 2) +
                (dtype == COMM_F8E4M3 || dtype == COMM_F8E5M2 ? 0x1p-8L : 0x1p-24L * magnitude * 4);
            if (!(fabsl((long double)got - value) <= bound)) {
                fprintf(stderr, "rank %u: %s %s of %zu: element %zu is %.9g, expected %.9Lg\n", rank,
                        dtype_names[dtype], op_names[op], count, i, got, value);
                exit(EXIT_FAILURE);
            }
        } else {
            uint64_t got = 0;
            memcpy(&got, output + i * step, step);
            if (fit(dtype, got) != references[i].integer) {
                fprintf(stderr, "rank %u: %s %s of %zu: element %zu is %llx, expected %llx\n", rank,
                        dtype_names[dtype], op_names[op], count, i, (unsigned long long)fit(dtype, got),
                        (unsigned long long)references[i].integer);
                exit(EXIT_FAILURE);
            }
        }
    }
}

/* Of all outputs since the last comparison. */
static uint64_t hash_of_outputs;

static void add_to_hash(const unsigned char *output, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        hash_of_outputs = (hash_of_outputs ^ output[i]) * 0x100000001b3ull;
    }
}

/* All ranks have the same bits if the least hash is every rank's, and so is the least of the inverted hashes.
 */
static void check_identical(comm_dtype_t dtype, comm_op_t op)
{
    uint64_t least[2] = {hash_of_outputs, ~hash_of_outputs};
    expect_ok(comm_all_reduce(comm, least, least, 2, COMM_U64, COMM_MIN, NULL), "comparison");
    expect_ok(comm_sync(comm, 0), "comparison");
    if (least[0] != ~least[1]) {
        fprintf(stderr, "rank %u: %s %s: ranks hold different bits\n", rank, dtype_names[dtype],
                op_names[op]);
        exit(EXIT_FAILURE);
    }
}

static void check_all_reduce(comm_dtype_t dtype, comm_op_t op, size_t count, bool in_place, bool registered)
{
    unsigned char *in = registered ? registered_in : plain_in;
    unsigned char *out = registered ? registered_out : plain_out;
    size_t bytes = count * comm_dtype_size(dtype);
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.factor = factor_of(dtype, rank);
    memset(out, POISON, bytes + 64);
    fill_own(dtype, in_place ? out : in, count);
    void *receive = gpu_mirror_put(out, bytes + 64);
    const void *send = in_place ? receive : gpu_mirror_put(in, bytes);
    expect_ok(comm_all_reduce(comm, send, receive, count, dtype, op, &options), "all_reduce");
    expect_ok(comm_sync(comm, 0), "all_reduce");
    gpu_mirror_get(out, bytes + 64);
    check_output(dtype, op, count, out);
    for (int i = 0; i < 64; i++) {
        if (out[bytes + (size_t)i] != POISON) {
            fprintf(stderr, "rank %u: %s %s of %zu writes beyond its output\n", rank, dtype_names[dtype],
                    op_names[op], count);
            exit(EXIT_FAILURE);
        }
    }
    add_to_hash(out, bytes);
    checked++;
}

static void check_broadcast(size_t count, uint32_t root, bool registered)
{
    unsigned char *buffer = registered ? registered_out : plain_out;
    unsigned char *expected = plain_in;
    memset(buffer, POISON, count * 4 + 64);
    fill(COMM_U32, expected, 0, count, root);
    if (rank == root) {
        memcpy(buffer, expected, count * 4);
    }
    void *receive = gpu_mirror_put(buffer, count * 4 + 64);
    expect_ok(comm_broadcast(comm, receive, count, COMM_U32, root, NULL), "broadcast");
    expect_ok(comm_sync(comm, 0), "broadcast");
    gpu_mirror_get(buffer, count * 4 + 64);
    if (memcmp(buffer, expected, count * 4) != 0 || buffer[count * 4] != POISON) {
        fprintf(stderr, "rank %u: broadcast of %zu from %u is wrong\n", rank, count, root);
        exit(EXIT_FAILURE);
    }
    checked++;
}

/* One type and operator. */
static void check_counts(comm_dtype_t dtype, comm_op_t op, bool runs_both_ways)
{
    size_t slice = SLICE_BYTES / comm_dtype_size(dtype);
    size_t counts[] = {0, 1, size - 1, size, size + 1, slice - 1, slice, slice + 1, 3 * slice + 5};
    prepare(dtype, op, 3 * slice + 5);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        if (!runs_both_ways && (c + (size_t)op + (size_t)dtype) % 2 != 0) {
            continue;
        }
        bool in_place = ((size_t)op / 4 + (size_t)dtype / 2) % 2 == 0;
        bool is_registered = ((size_t)op / 4 + c / 2 + (size_t)dtype / 4) % 2 == 0;
        check_all_reduce(dtype, op, counts[c], in_place, is_registered);
        if (runs_both_ways) {
            check_all_reduce(dtype, op, counts[c], !in_place, !is_registered);
        }
    }
    check_identical(dtype, op);
}

static void check_everything(bool runs_both_ways)
{
    for (int dtype = COMM_F64; dtype <= COMM_C128; dtype++) {
        for (int op = COMM_SUM; op <= COMM_LOR; op++) {
            unsigned char byte = 0;
            comm_result_t probe =
                comm_all_reduce(comm, &byte, &byte, 0, (comm_dtype_t)dtype, (comm_op_t)op, NULL);
            if (probe == COMM_UNSUPPORTED) {
                /* an operator without meaning for this type: the library refuses it by name, before it
                 * reaches commd */
                continue;
            }
            expect_ok(probe, "all_reduce of nothing");
            check_counts((comm_dtype_t)dtype, (comm_op_t)op, runs_both_ways);
        }
    }
    prepare(COMM_F32, COMM_SUM, LARGE_COUNT);
    check_all_reduce(COMM_F32, COMM_SUM, LARGE_COUNT, false, true);
    check_all_reduce(COMM_F32, COMM_SUM, LARGE_COUNT, true, false);
    check_identical(COMM_F32, COMM_SUM);
    prepare(COMM_BF16, COMM_AVG, LARGE_COUNT);
    check_all_reduce(COMM_BF16, COMM_AVG, LARGE_COUNT, true, true);
    check_identical(COMM_BF16, COMM_AVG);
    prepare(COMM_I64, COMM_BXOR, LARGE_COUNT);
    check_all_reduce(COMM_I64, COMM_BXOR, LARGE_COUNT, false, false);
    check_identical(COMM_I64, COMM_BXOR);
    for (uint32_t root = 0; root < size; root++) {
        static const size_t counts[] = {0, 1, 1023, 1024, 1025, 10007};
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            check_broadcast(counts[c], root, (c + root) % 2 == 0);
        }
    }
    check_broadcast(LARGE_COUNT, size - 1, true);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: matrix NAME RANK SIZE [DEVICE]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    int device = argc > 4 ? atoi(argv[4]) : COMM_DEVICE_HOST;
    size_t bytes = LARGE_COUNT * 8 + 4096;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.slice_bytes = SLICE_BYTES;
    options.timeout_ms = 20000;
    inputs.bytes = malloc(bytes);
    if (inputs.bytes == NULL) {
        perror("matrix");
        return EXIT_FAILURE;
    }
    gpu_mirror_open(device);
    expect_ok(comm_client_open(NULL, &client), "open");
    expect_ok(comm_init(client, argv[1], rank, size, device, &options, &comm), "init");
    registered_in = gpu_mirror_alloc(client, bytes);
    registered_out = gpu_mirror_alloc(client, bytes);
    plain_in = gpu_mirror_alloc(NULL, bytes);
    plain_out = gpu_mirror_alloc(NULL, bytes);
    check_everything(argc <= 4);
    expect_ok(comm_barrier(comm, NULL), "barrier");
    printf("%lu operations checked, node %s, local rank %u of %u\n", checked, comm_node_of(comm, rank),
           comm_local_rank(comm), comm_local_size(comm));
    comm_destroy(comm);
    comm_client_close(client);
    return EXIT_SUCCESS;
}
