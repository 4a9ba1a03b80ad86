#include "proto/op_bounds.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define S (1000 * MS)

const uint64_t op_bounds_class_bytes[OP_BOUNDS_CLASSES] = {4096, 65536, 1048576, 16777216, UINT64_MAX};

const uint64_t op_bounds_latencies_ns[OP_BOUNDS_LATENCIES] = {
    1 * US,  3 * US,  10 * US,  30 * US,  100 * US, 300 * US, 1 * MS, 3 * MS,
    10 * MS, 30 * MS, 100 * MS, 300 * MS, 1 * S,    3 * S,    10 * S, 30 * S};
