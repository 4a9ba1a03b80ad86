#define COMPRESS_KERNELS compress_kernels_avx2
#include "daemon/host/compress_template.h"
