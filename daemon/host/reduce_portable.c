#define REDUCE_KERNELS reduce_kernels_portable
#include "daemon/host/reduce_template.h"
