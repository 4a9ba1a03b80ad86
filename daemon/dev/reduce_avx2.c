#define REDUCE_KERNELS reduce_kernels_avx2
#include "daemon/dev/reduce_template.h"
