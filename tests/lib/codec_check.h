#ifndef TESTS_LIB_CODEC_CHECK_H
#define TESTS_LIB_CODEC_CHECK_H

#include "tests/lib/kernel_check.h"

/*
 * Compares the codec's kernels with daemon/host/compress.h, like kernel_check.h: one part or many, with and
 * without residuals, all edges of blocks, every exponent, NaN and infinity. Stops at the first difference,
 * prints it on standard output, and returns false.
 */
bool codec_check(struct kernel_check *check);

#endif
