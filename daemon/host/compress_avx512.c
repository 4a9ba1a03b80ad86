#define COMPRESS_KERNELS compress_kernels_avx512
#include "daemon/host/compress_template.h"
