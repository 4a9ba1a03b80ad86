#define REDUCE_KERNELS reduce_kernels_avx512
#include "daemon/host/reduce_template.h"
