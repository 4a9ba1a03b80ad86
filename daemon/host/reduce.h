#ifndef DAEMON_HOST_REDUCE_H
#define DAEMON_HOST_REDUCE_H

#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/types.h"

#define HOST_REDUCE_BUFFERS_MAX                                                                              \
    1024 /* inputs, and outputs, of one reduction: ranks of one communicator on one node */

/*
 * One reduction of the local stage: element i of every output becomes
 *     in[0][i] (op) in[1][i] (op) ... (op) in[input_count - 1][i]
 * folded from left to right, in one pass over all buffers, in blocks that stay in the first-level cache.
 *
 * Buffers need no alignment. An output may be the same as one input (in place); other overlaps are not
 * allowed.
 *
 * 16- and 8-bit floats are converted to f32, accumulated there and rounded once, to nearest even. f8
 * saturates to the largest finite value as in OCP 8-bit Floating Point, but keeps NaN and the infinities of
 * e5m2. f32 and f64 are accumulated in their own type, complex as two of them. Integers wrap. min and max
 * propagate NaN (any NaN input makes the output NaN) and treat -0 as less than +0. bool is 0 or non-zero on
 * input and 0 or 1 on output. So are the results of land and lor on integers, even of one input.
 */
struct host_reduction {
    enum dtype dtype;
    enum reduce reduce; /* avg and premul_sum sum here; see divisor and factors */
    uint64_t count_elements;
    uint32_t input_count;  /* 1..HOST_REDUCE_BUFFERS_MAX */
    uint32_t output_count; /* 1..HOST_REDUCE_BUFFERS_MAX */
    const void *const *inputs;
    void *const *outputs;
    const double *factors; /* null, or one factor for each input, which is first multiplied by it (in f32; in
                              f64 for f64 and c128) */
    uint64_t divisor; /* 0 and 1: none; otherwise the result is divided, integers truncating toward zero */
    bool streams;     /* outputs that are not inputs are written past the caches: see host_copy_streams */
};

/* reduce_is_defined(dtype, reduce) must hold. Thread-safe, no allocation. */
void host_reduce(const struct host_reduction *reduction);

/*
 * target[i] = target[i] (op) source[i]: how a receive reduces, straight from a decrypted packet. avg and
 * premul_sum sum. source needs no alignment and must not overlap target. Gives the same bits as host_reduce
 * of two inputs {target, source}.
 */
void host_reduce_into(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                      uint64_t count_elements);

/* As host_reduce_into with the operands swapped: target[i] = source[i] (op) target[i]. Gives the same bits as
 * host_reduce of {source, target}. */
void host_reduce_into_before(enum dtype dtype, enum reduce reduce, void *target, const void *source,
                             uint64_t count_elements);

/*
 * Gives every NaN the same bits: quiet, positive, no payload. Which NaN a sum of two has, and the sign of
 * infinity minus infinity, depend on the processor and the compiler. Other types and values stay as they are.
 * values needs no alignment.
 */
void host_settle_nan(enum dtype dtype, void *values, uint64_t count_elements);

/* The vector width that run-time detection chose: "portable", "avx2" or "avx512". */
const char *host_reduce_level_text(void);

/*
 * For tests and benchmarks: forces a level by its text; STATUS_UNSUPPORTED if this processor lacks it. Not
 * thread-safe. All levels give the same bits, except for payloads of NaN.
 */
enum status host_reduce_force_level(const char *text, struct error *error) COMM_MUST_USE;

#endif
