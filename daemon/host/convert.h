#ifndef DAEMON_HOST_CONVERT_H
#define DAEMON_HOST_CONVERT_H

#include <stdint.h>

/*
 * Scalar conversions between f32 and the short floating-point types, given as their bits. To the short type:
 * round to nearest even, subnormals kept, NaN stays NaN (quiet, sign kept). f16 and bf16 overflow to infinity
 * (IEEE 754); f8e4m3 (no infinity; OCP 8-bit Floating Point 1.0) saturates to ±448, infinity too; f8e5m2
 * saturates finite values to ±57344 and keeps infinity. To f32: exact.
 */
float convert_f16_to_f32(uint16_t bits);
uint16_t convert_f32_to_f16(float value);
float convert_bf16_to_f32(uint16_t bits);
uint16_t convert_f32_to_bf16(float value);
float convert_f8e4m3_to_f32(uint8_t bits);
uint8_t convert_f32_to_f8e4m3(float value);
float convert_f8e5m2_to_f32(uint8_t bits);
uint8_t convert_f32_to_f8e5m2(float value);

#endif
