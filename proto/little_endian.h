#ifndef PROTO_LITTLE_ENDIAN_H
#define PROTO_LITTLE_ENDIAN_H

#include <stdint.h>

/*
 * Fixed-width integers of the wire formats: little-endian at any alignment, on hosts of any byte order.
 * Compilers turn each into one load or store.
 */

static inline void put_u16_le(uint8_t *out, uint16_t value)
{
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

static inline void put_u32_le(uint8_t *out, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline void put_u64_le(uint8_t *out, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline uint16_t get_u16_le(const uint8_t *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static inline uint32_t get_u32_le(const uint8_t *in)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        value |= (uint32_t)in[i] << (8 * i);
    }
    return value;
}

static inline uint64_t get_u64_le(const uint8_t *in)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

#endif
