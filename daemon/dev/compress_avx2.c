#define COMPRESS_KERNELS compress_kernels_avx2
#include "daemon/dev/compress_template.h"
