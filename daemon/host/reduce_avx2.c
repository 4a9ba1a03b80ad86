#define REDUCE_KERNELS reduce_kernels_avx2
#include "daemon/host/reduce_template.h"
