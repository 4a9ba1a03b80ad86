#define COMPRESS_KERNELS compress_kernels_avx512
#include "daemon/dev/compress_template.h"
