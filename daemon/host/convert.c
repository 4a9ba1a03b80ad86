#include "daemon/host/convert.h"

#include "kernels/convert_bits.h"

float convert_f16_to_f32(uint16_t bits)
{
    return bits_f16_to_f32(bits);
}

uint16_t convert_f32_to_f16(float value)
{
    return bits_f32_to_f16(value);
}

float convert_bf16_to_f32(uint16_t bits)
{
    return bits_bf16_to_f32(bits);
}

uint16_t convert_f32_to_bf16(float value)
{
    return bits_f32_to_bf16(value);
}

float convert_f8e4m3_to_f32(uint8_t bits)
{
    return bits_f8e4m3_to_f32(bits);
}

uint8_t convert_f32_to_f8e4m3(float value)
{
    return bits_f32_to_f8e4m3(value);
}

float convert_f8e5m2_to_f32(uint8_t bits)
{
    return bits_f8e5m2_to_f32(bits);
}

uint8_t convert_f32_to_f8e5m2(float value)
{
    return bits_f32_to_f8e5m2(value);
}
