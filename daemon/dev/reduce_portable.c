#define REDUCE_KERNELS reduce_kernels_portable
#include "daemon/dev/reduce_template.h"
