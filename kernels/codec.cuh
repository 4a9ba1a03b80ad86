#ifndef KERNELS_CODEC_CUH
#define KERNELS_CODEC_CUH

#include "kernels/platform.cuh"

/*
 * The codec of compressed all-reduces. Each part is cut into units, and the blocks of the grid take turns at
 * the units of all parts. The threads of a block work on one unit together. Encoded bytes are in host memory
 * and cross the link once: neighbouring threads write neighbouring words.
 */

/* A unit of one part. */
struct code_unit {
    float *values;
    float *residual; /* null: none */
    unsigned char *encoded;
    uint32_t count; /* elements */
    uint32_t permille;
    bool replaces;
    bool adds;
};

/* The value with its residual added. */
KERNEL_FUNCTION float unit_value(const code_unit &unit, uint32_t i)
{
    return unit.residual == nullptr ? unit.values[i] : unit.values[i] + unit.residual[i];
}

KERNEL_FUNCTION void unit_encoded(const code_unit &unit, uint32_t i, float x, float decoded)
{
    if (unit.residual != nullptr) {
        unit.residual[i] = codec_residual(x, decoded);
    }
    if (unit.replaces) {
        unit.values[i] = decoded;
    }
}

KERNEL_FUNCTION void unit_decoded(const code_unit &unit, uint32_t i, float decoded)
{
    unit.values[i] = unit.adds ? unit.values[i] + decoded : decoded;
}

/* ---- bf16: two elements a word */

struct encode_bf16 {
    static constexpr uint32_t ELEMENTS = 2048;
    KERNEL_MEMBER uint64_t begins_at(const kernels_code &, const kernels_code::kernels_code_part &,
                                     uint64_t index)
    {
        return index * ELEMENTS * 2;
    }
    KERNEL_MEMBER uint32_t one(const code_unit &unit, uint32_t i)
    {
        const float x = unit_value(unit, i);
        const uint16_t code = codec_bf16(x);
        unit_encoded(unit, i, x, bits_bf16_to_f32(code));
        return code;
    }
    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        uint32_t *words = reinterpret_cast<uint32_t *>(unit.encoded);
        for (uint32_t w = team.thread; w < unit.count / 2; w += team.threads) {
            const uint32_t low = one(unit, 2 * w);
            store_streaming(words + w, low | one(unit, 2 * w + 1) << 16);
        }
        if (unit.count % 2 != 0 && team.thread == 0) {
            store_streaming(reinterpret_cast<uint16_t *>(unit.encoded) + (unit.count - 1),
                            static_cast<uint16_t>(one(unit, unit.count - 1)));
        }
    }
};

struct decode_bf16 : encode_bf16 {
    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(unit.encoded);
        for (uint32_t w = team.thread; w < unit.count / 2; w += team.threads) {
            const uint32_t word = load_streaming(words + w);
            unit_decoded(unit, 2 * w, bits_bf16_to_f32(static_cast<uint16_t>(word & 0xffffu)));
            unit_decoded(unit, 2 * w + 1, bits_bf16_to_f32(static_cast<uint16_t>(word >> 16)));
        }
        if (unit.count % 2 != 0 && team.thread == 0) {
            const uint16_t *last = reinterpret_cast<const uint16_t *>(unit.encoded) + (unit.count - 1);
            unit_decoded(unit, unit.count - 1, bits_bf16_to_f32(load_streaming(last)));
        }
    }
};

/* ---- f8: several blocks a unit, four elements a word */

struct encode_f8 {
    static constexpr uint32_t BLOCKS = 8;
    static constexpr uint32_t ELEMENTS = BLOCKS * CODEC_F8_BLOCK;
    static constexpr uint32_t BLOCK_BYTES = CODEC_F8_SCALE_BYTES + CODEC_F8_BLOCK;
    KERNEL_MEMBER uint64_t begins_at(const kernels_code &, const kernels_code::kernels_code_part &,
                                     uint64_t index)
    {
        return index * BLOCKS * BLOCK_BYTES;
    }
    KERNEL_MEMBER unsigned char *codes_of(const code_unit &unit, uint32_t i)
    {
        return unit.encoded + i / CODEC_F8_BLOCK * BLOCK_BYTES + CODEC_F8_SCALE_BYTES + i % CODEC_F8_BLOCK;
    }
    KERNEL_MEMBER uint8_t one(const code_unit &unit, uint32_t i, const codec_f8_scale &by)
    {
        const float x = unit_value(unit, i);
        const uint8_t code = codec_f8(x, by.shrink, by.shrink_rest);
        unit_encoded(unit, i, x, codec_f8_value(code, by.scale));
        return code;
    }
    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        TEAM_SHARED uint32_t largest[BLOCKS]; /* by block: the bits of the largest finite magnitude */
        for (uint32_t b = team.thread; b < BLOCKS; b += team.threads) {
            largest[b] = 0;
        }
        team_sync();
        for (uint32_t i = team.thread; i < unit.count; i += team.threads) {
            const uint32_t magnitude = codec_magnitude(unit_value(unit, i));
            team_max(&largest[i / CODEC_F8_BLOCK], magnitude < CODEC_INFINITE ? magnitude : 0);
        }
        team_sync();
        for (uint32_t i = 4 * team.thread; i < unit.count; i += 4 * team.threads) {
            const codec_f8_scale by = codec_f8_scale_of(largest[i / CODEC_F8_BLOCK]);
            unsigned char *codes = codes_of(unit, i);
            if (i % CODEC_F8_BLOCK == 0) {
                store_streaming(reinterpret_cast<uint32_t *>(codes - CODEC_F8_SCALE_BYTES),
                                bits_of_f32(by.scale));
            }
            if (unit.count - i >= 4) {
                uint32_t word = 0;
                for (uint32_t k = 0; k < 4; k++) {
                    word |= static_cast<uint32_t>(one(unit, i + k, by)) << 8 * k;
                }
                store_streaming(reinterpret_cast<uint32_t *>(codes), word);
            } else {
                for (uint32_t k = i; k < unit.count; k++) {
                    codes[k - i] = one(unit, k, by);
                }
            }
        }
        team_sync(); /* the next unit clears `largest` */
    }
};

struct decode_f8 : encode_f8 {
    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        for (uint32_t i = 4 * team.thread; i < unit.count; i += 4 * team.threads) {
            const unsigned char *codes = codes_of(unit, i);
            const unsigned char *block = codes - i % CODEC_F8_BLOCK - CODEC_F8_SCALE_BYTES;
            const float scale = bits_to_f32(*reinterpret_cast<const uint32_t *>(block));
            if (unit.count - i >= 4) {
                const uint32_t word = load_streaming(reinterpret_cast<const uint32_t *>(codes));
                for (uint32_t k = 0; k < 4; k++) {
                    unit_decoded(unit, i + k, codec_f8_value(static_cast<uint8_t>(word >> 8 * k), scale));
                }
            } else {
                for (uint32_t k = i; k < unit.count; k++) {
                    unit_decoded(unit, k, codec_f8_value(codes[k - i], scale));
                }
            }
        }
    }
};

/* ---- top_k: one block a unit. Its numbers lie at multiples of 2 bytes. */

KERNEL_FUNCTION uint16_t short_at(const unsigned char *at)
{
    return *reinterpret_cast<const uint16_t *>(at);
}

KERNEL_FUNCTION void put_short(unsigned char *at, uint32_t value)
{
    *reinterpret_cast<uint16_t *>(at) = static_cast<uint16_t>(value);
}

/* A set of a block's elements. */
struct element_set {
    static constexpr uint32_t WORDS = CODEC_TOP_K_BLOCK / 32;
    uint32_t words[WORDS];
};

KERNEL_FUNCTION void set_clear(element_set &set, const kernel_team &team)
{
    for (uint32_t w = team.thread; w < element_set::WORDS; w += team.threads) {
        set.words[w] = 0;
    }
}

KERNEL_FUNCTION void set_add(element_set &set, uint32_t i)
{
    team_or(&set.words[i / 32], 1u << i % 32);
}

/* How many elements of the set come before i. */
KERNEL_FUNCTION uint32_t set_rank(const element_set &set, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t w = 0; w < i / 32; w++) {
        rank += bit_count(set.words[w]);
    }
    return i % 32 == 0 ? rank : rank + bit_count(set.words[i / 32] & ((1u << i % 32) - 1));
}

/* A search for the rank-th largest magnitude, by digits, from the highest: like select_largest of the host.
 */
struct digit_search {
    static constexpr uint32_t DIGITS = 256, GROUP = 16;
    uint32_t histogram[DIGITS];
    uint32_t groups[DIGITS / GROUP];
    uint32_t found, mask; /* the digits that are known */
    uint32_t left;        /* the rank among the magnitudes that have them */
};

/* Counts the values of one digit among the magnitudes that have all higher ones. */
KERNEL_FUNCTION void count_digit(digit_search &search, const uint32_t *bits, uint32_t count, uint32_t shift,
                                 uint32_t digit_mask, const kernel_team &team)
{
    for (uint32_t d = team.thread; d < digit_search::DIGITS; d += team.threads) {
        search.histogram[d] = 0;
    }
    team_sync();
    for (uint32_t i = team.thread; i < count; i += team.threads) {
        const uint32_t magnitude = bits[i] & ~CODEC_SIGN;
        if ((magnitude & search.mask) == search.found) {
            team_add(&search.histogram[magnitude >> shift & digit_mask], 1);
        }
    }
    team_sync();
    for (uint32_t g = team.thread; g < digit_search::DIGITS / digit_search::GROUP; g += team.threads) {
        uint32_t sum = 0;
        for (uint32_t d = 0; d < digit_search::GROUP; d++) {
            sum += search.histogram[g * digit_search::GROUP + d];
        }
        search.groups[g] = sum;
    }
    team_sync();
}

/* One thread: takes the digit in which the wanted rank lies. */
KERNEL_FUNCTION void take_digit(digit_search &search, uint32_t shift, uint32_t digit_mask)
{
    uint32_t group = digit_search::DIGITS / digit_search::GROUP - 1;
    while (search.groups[group] < search.left) {
        search.left -= search.groups[group--];
    }
    uint32_t digit = group * digit_search::GROUP + digit_search::GROUP - 1;
    while (search.histogram[digit] < search.left) {
        search.left -= search.histogram[digit--];
    }
    search.found |= digit << shift;
    search.mask |= digit_mask << shift;
}

struct encode_top_k {
    static constexpr uint32_t ELEMENTS = CODEC_TOP_K_BLOCK;
    KERNEL_MEMBER uint64_t begins_at(const kernels_code &code, const kernels_code::kernels_code_part &,
                                     uint64_t index)
    {
        return index * codec_top_k_stride(code.top_k_permille);
    }

    /* Finds the least magnitude that is kept, and how many of the elements that have it. */
    KERNEL_MEMBER void search_least(digit_search &search, const uint32_t *bits, const code_unit &unit,
                                    const kernel_team &team)
    {
        const uint32_t shifts[] = {23, 15, 7, 0}; /* of 31 bits: the exponent first */
        if (team.thread == 0) {
            search.found = search.mask = 0;
            search.left = codec_top_k_kept(unit.permille, unit.count);
        }
        team_sync();
        for (uint32_t digit = 0; digit < 4; digit++) {
            const uint32_t digit_mask = digit == 3 ? 0x7fu : 0xffu;
            count_digit(search, bits, unit.count, shifts[digit], digit_mask, team);
            if (team.thread == 0) {
                take_digit(search, shifts[digit], digit_mask);
            }
            team_sync();
        }
    }

    /* Writes the kept elements in their order, and what becomes of values and residuals. */
    KERNEL_MEMBER void write(const code_unit &unit, const uint32_t *bits, const element_set &kept,
                             const kernel_team &team)
    {
        for (uint32_t i = team.thread; i < unit.count; i += team.threads) {
            const bool is_kept = (kept.words[i / 32] >> i % 32 & 1) != 0;
            const float x = bits_to_f32(bits[i]);
            if (is_kept) {
                unsigned char *at =
                    unit.encoded + CODEC_TOP_K_COUNT_BYTES + set_rank(kept, i) * CODEC_TOP_K_ELEMENT_BYTES;
                put_short(at, i);
                put_short(at + 2, bits[i] & 0xffffu);
                put_short(at + 4, bits[i] >> 16);
            }
            if (unit.residual != nullptr) {
                unit.residual[i] = is_kept ? 0.0f : codec_residual(x, 0.0f);
            }
            if (unit.replaces) {
                unit.values[i] = is_kept ? x : 0.0f;
            }
        }
        if (team.thread == 0) {
            put_short(unit.encoded, set_rank(kept, unit.count));
        }
    }

    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        TEAM_SHARED uint32_t bits[CODEC_TOP_K_BLOCK];
        TEAM_SHARED digit_search search;
        TEAM_SHARED element_set equal, kept;
        for (uint32_t i = team.thread; i < unit.count; i += team.threads) {
            bits[i] = codec_one_nan(unit_value(unit, i));
        }
        set_clear(equal, team);
        set_clear(kept, team);
        search_least(search, bits, unit, team); /* synchronizes first */
        for (uint32_t i = team.thread; i < unit.count; i += team.threads) {
            const uint32_t magnitude = bits[i] & ~CODEC_SIGN;
            if (magnitude > search.found) {
                set_add(kept, i);
            } else if (magnitude == search.found && magnitude != 0) {
                set_add(equal, i);
            }
        }
        team_sync();
        for (uint32_t i = team.thread; i < unit.count; i += team.threads) {
            const bool is_equal = (equal.words[i / 32] >> i % 32 & 1) != 0;
            if (is_equal && set_rank(equal, i) < search.left) {
                set_add(kept, i);
            }
        }
        team_sync();
        write(unit, bits, kept, team);
        team_sync(); /* the next unit overwrites what is shared */
    }
};

struct decode_top_k {
    static constexpr uint32_t ELEMENTS = CODEC_TOP_K_BLOCK;
    KERNEL_MEMBER uint64_t begins_at(const kernels_code &, const kernels_code::kernels_code_part &part,
                                     uint64_t index)
    {
        return part.offsets[index];
    }
    KERNEL_MEMBER void run(const code_unit &unit, const kernel_team &team)
    {
        const uint32_t kept = short_at(unit.encoded);
        for (uint32_t i = team.thread; !unit.adds && i < unit.count; i += team.threads) {
            unit.values[i] = 0.0f;
        }
        team_sync();
        for (uint32_t k = team.thread; k < kept; k += team.threads) {
            const unsigned char *at = unit.encoded + CODEC_TOP_K_COUNT_BYTES + k * CODEC_TOP_K_ELEMENT_BYTES;
            const uint32_t high = short_at(at + 4);
            unit_decoded(unit, short_at(at), bits_to_f32(high << 16 | short_at(at + 2)));
        }
    }
};

/* ---- all units of all parts */

template <typename Code> KERNEL_FUNCTION void code_all(const kernels_code &code, const kernel_place &place)
{
    uint64_t index = place.block; /* of a unit, counted from the first one of the current part */
    UNROLL_NOT
    for (uint32_t p = 0; p < code.part_count && TEAM_IS_HERE(place); p++) {
        const kernels_code::kernels_code_part &part = code.parts[p];
        const uint64_t units = (part.count_elements + Code::ELEMENTS - 1) / Code::ELEMENTS;
        UNROLL_NOT
        for (; index < units; index += place.blocks) {
            const uint64_t first = index * Code::ELEMENTS;
            const uint64_t left = part.count_elements - first;
            Code::run(code_unit{part.values + first,
                                part.residual == nullptr ? nullptr : part.residual + first,
                                part.encoded + Code::begins_at(code, part, index),
                                static_cast<uint32_t>(left < Code::ELEMENTS ? left : Code::ELEMENTS),
                                code.top_k_permille, code.replaces != 0, code.adds != 0},
                      TEAM_OF(place));
        }
        index -= units;
    }
}

#endif
