#define COMPRESS_KERNELS compress_kernels_portable
#include "daemon/dev/compress_template.h"
