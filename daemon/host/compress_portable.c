#define COMPRESS_KERNELS compress_kernels_portable
#include "daemon/host/compress_template.h"
