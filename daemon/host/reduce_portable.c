#define REDUCE_KERNELS reduce_kernels_portable
#define REDUCE_SETTLES_NAN
#include "daemon/host/reduce_template.h"
