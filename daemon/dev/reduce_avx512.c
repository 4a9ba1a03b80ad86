#define REDUCE_KERNELS reduce_kernels_avx512
#include "daemon/dev/reduce_template.h"
