#ifndef KERNELS_REDUCE_CUH
#define KERNELS_REDUCE_CUH

#include "kernels/values.cuh"

/*
 * The body of the reduction kernels. If all buffers have the same alignment within 16 bytes, the elements
 * between the first and the last 16-byte boundary are read and written in packs. The few before and after are
 * done one by one. Otherwise all elements are done one by one.
 *
 * In place is safe: a thread reads all inputs of an element before it writes any output of it, and no other
 * thread touches that element.
 */

/* Access in packs of 16 bytes. */
template <typename Type> struct by_pack {
    using Raw = pack;
    static constexpr uint32_t GROUPS = sizeof(pack) / sizeof(typename Type::Group);
    static constexpr uint32_t WIDES = GROUPS * Type::WIDES;
    /* Packs that a thread handles at a time, and inputs of which they are read at once. Short elements need
     * many registers when they are widened. */
    static constexpr uint32_t WIDER = WIDES * sizeof(typename Type::Wide) / sizeof(pack);
    static constexpr uint32_t UNROLL = WIDER > 2 || sizeof(typename Type::Wide) > 8 ? 1 : 2;
    static constexpr uint32_t AT_ONCE = WIDER == 2 ? 2 : 4;

    KERNEL_MEMBER void widen(const Raw &raw, typename Type::Wide *values)
    {
        typename Type::Group groups[GROUPS];
        memcpy(groups, &raw, sizeof raw);
        UNROLL_ALL
        for (uint32_t i = 0; i < GROUPS; i++) {
            Type::widen_group(groups[i], values + i * Type::WIDES);
        }
    }
    KERNEL_MEMBER Raw narrow(const typename Type::Wide *values)
    {
        typename Type::Group groups[GROUPS];
        UNROLL_ALL
        for (uint32_t i = 0; i < GROUPS; i++) {
            groups[i] = Type::narrow_group(values + i * Type::WIDES);
        }
        Raw raw;
        memcpy(&raw, groups, sizeof raw);
        return raw;
    }
};

template <typename Type> struct by_element {
    using Raw = typename Type::Stored;
    static constexpr uint32_t WIDES = 1;
    static constexpr uint32_t UNROLL = sizeof(Raw) > 8 ? 1 : 2;
    static constexpr uint32_t AT_ONCE = 4;

    KERNEL_MEMBER void widen(const Raw &raw, typename Type::Wide *values)
    {
        values[0] = Type::widen(raw);
    }
    KERNEL_MEMBER Raw narrow(const typename Type::Wide *values)
    {
        return Type::narrow(values[0]);
    }
};

/* Units of one size in every buffer, from start_bytes on. After the first `before` units, gap_bytes are
 * skipped. */
struct span {
    uint64_t units;
    uint64_t start_bytes;
    uint64_t before;
    uint64_t gap_bytes;
};

template <typename Raw> KERNEL_FUNCTION const Raw *raw_at(const void *buffer, uint64_t offset_bytes)
{
    return reinterpret_cast<const Raw *>(static_cast<const unsigned char *>(buffer) + offset_bytes);
}
template <typename Raw> KERNEL_FUNCTION Raw *raw_at(void *buffer, uint64_t offset_bytes)
{
    return reinterpret_cast<Raw *>(static_cast<unsigned char *>(buffer) + offset_bytes);
}

/* Folds the units of one thread, UNROLL at a time. They lie at `offsets`, which may repeat the first. */
template <typename Type, typename Fold, typename Access, uint32_t INPUTS, uint32_t UNROLL, typename Arguments>
KERNEL_FUNCTION void fold_inputs(const Arguments &arguments, const uint64_t *offsets,
                                 typename Type::Wide (*values)[Access::WIDES])
{
    /* So many inputs are loaded before the first is used. */
    constexpr uint32_t AT_ONCE = INPUTS != 0 ? INPUTS : Access::AT_ONCE;
    const uint32_t input_count = INPUTS != 0 ? INPUTS : arguments.input_count;
    uint32_t first = 0;
    UNROLL_NOT
    do {
        typename Access::Raw raw[AT_ONCE][UNROLL];
        UNROLL_ALL
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            if (INPUTS != 0 || j == 0 || first + j < input_count) {
                UNROLL_ALL
                for (uint32_t u = 0; u < UNROLL; u++) {
                    raw[j][u] =
                        load_streaming(raw_at<typename Access::Raw>(arguments.inputs[first + j], offsets[u]));
                }
            }
        }
        UNROLL_ALL
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            if (INPUTS == 0 && j != 0 && first + j >= input_count) {
                break;
            }
            UNROLL_ALL
            for (uint32_t u = 0; u < UNROLL; u++) {
                typename Type::Wide more[Access::WIDES];
                Access::widen(raw[j][u], more);
                if constexpr (Type::SCALES) {
                    if (arguments.has_factors != 0) {
                        UNROLL_ALL
                        for (uint32_t i = 0; i < Access::WIDES; i++) {
                            more[i] = Type::scale(more[i], arguments.factors[first + j]);
                        }
                    }
                }
                UNROLL_ALL
                for (uint32_t i = 0; i < Access::WIDES; i++) {
                    values[u][i] = j == 0 && first == 0 ? more[i] : Fold::fold(values[u][i], more[i]);
                }
            }
        }
        first += AT_ONCE;
    } while (first < input_count);
}

template <typename Type, typename Access, uint32_t UNROLL, typename Arguments>
KERNEL_FUNCTION void divide_values(const Arguments &arguments, typename Type::Wide (*values)[Access::WIDES])
{
    if constexpr (Type::DIVIDES) {
        if (arguments.divisor > 1) {
            UNROLL_ALL
            for (uint32_t u = 0; u < UNROLL; u++) {
                UNROLL_ALL
                for (uint32_t i = 0; i < Access::WIDES; i++) {
                    values[u][i] = Type::divide(values[u][i], arguments.divisor);
                }
            }
        }
    }
}

template <typename Type, typename Fold, typename Access, uint32_t INPUTS, uint32_t UNROLL, typename Arguments>
KERNEL_FUNCTION void reduce_span(const Arguments &arguments, const span &span, const kernel_place &place)
{
    using Raw = typename Access::Raw;
    const uint64_t all_threads = static_cast<uint64_t>(place.blocks) * place.threads;
    /* The units of a thread are one block apart, so the units of a block lie together. If there are too few
     * units for that, they are one grid apart, so that every block has some. */
    const bool enough = span.units >= all_threads * UNROLL;
    const uint64_t step = enough ? place.threads : all_threads;
    const uint64_t block_first = static_cast<uint64_t>(place.block) * place.threads;
    uint64_t index = block_first * (enough ? UNROLL : 1) + place.thread;
    UNROLL_NOT
    for (; index < span.units; index += all_threads * UNROLL) {
        uint64_t offsets[UNROLL];
        typename Type::Wide values[UNROLL][Access::WIDES] = {};
        UNROLL_ALL
        for (uint32_t u = 0; u < UNROLL; u++) {
            uint64_t unit = index + step * u < span.units ? index + step * u : index;
            offsets[u] = span.start_bytes + unit * sizeof(Raw) + (unit >= span.before ? span.gap_bytes : 0);
        }
        fold_inputs<Type, Fold, Access, INPUTS, UNROLL>(arguments, offsets, values);
        divide_values<Type, Access, UNROLL>(arguments, values);
        Raw results[UNROLL];
        UNROLL_ALL
        for (uint32_t u = 0; u < UNROLL; u++) {
            results[u] = Access::narrow(values[u]);
        }
        UNROLL_NOT
        for (uint32_t k = 0; k < arguments.output_count; k++) {
            UNROLL_ALL
            for (uint32_t u = 0; u < UNROLL; u++) {
                if (u == 0 || offsets[u] != offsets[0]) {
                    store_streaming(raw_at<Raw>(arguments.outputs[k], offsets[u]), results[u]);
                }
            }
        }
    }
}

/* Whether all buffers have the same alignment within 16 bytes, and how many bytes lie before the first
 * boundary. */
template <typename Arguments>
KERNEL_FUNCTION bool buffers_lie_alike(const Arguments &arguments, uint32_t element_bytes,
                                       uint32_t *before_bytes)
{
    uint64_t first = reinterpret_cast<uint64_t>(arguments.inputs[0]);
    uint64_t differences = 0;
    UNROLL_NOT
    for (uint32_t k = 1; k < arguments.input_count; k++) {
        differences |= reinterpret_cast<uint64_t>(arguments.inputs[k]) ^ first;
    }
    UNROLL_NOT
    for (uint32_t k = 0; k < arguments.output_count; k++) {
        differences |= reinterpret_cast<uint64_t>(arguments.outputs[k]) ^ first;
    }
    *before_bytes = static_cast<uint32_t>(-first & (sizeof(pack) - 1));
    return (differences & (sizeof(pack) - 1)) == 0 && *before_bytes % element_bytes == 0;
}

/*
 * SPECIAL: has separate code for 2, 3, 4 and 8 inputs, which keeps as many loads in flight with fewer
 * instructions. It takes most of the compile time, so it is only for the pairs that training uses.
 */
template <typename Type, typename Fold, bool SPECIAL, typename Arguments>
KERNEL_FUNCTION void reduce(const Arguments &arguments, const kernel_place &place)
{
    constexpr uint32_t ELEMENT_BYTES = sizeof(typename Type::Stored);
    using Packs = by_pack<Type>;
    using Elements = by_element<Type>;
    const uint64_t count = arguments.count_elements;
    uint32_t before_bytes = 0;
    uint64_t before = count;
    span packs = {};
    if (buffers_lie_alike(arguments, ELEMENT_BYTES, &before_bytes) && before_bytes / ELEMENT_BYTES < count) {
        before = before_bytes / ELEMENT_BYTES;
        packs.units = (count - before) / (sizeof(pack) / ELEMENT_BYTES);
        packs.start_bytes = before_bytes;
    }
    span rest = {};
    rest.units = count - packs.units * (sizeof(pack) / ELEMENT_BYTES);
    rest.before = before;
    rest.gap_bytes = packs.units * sizeof(pack);
    if constexpr (SPECIAL) {
        switch (arguments.input_count) {
        case 2:
            reduce_span<Type, Fold, Packs, 2, Packs::WIDER == 1 ? 4 : 2>(arguments, packs, place);
            break;
        case 3:
            reduce_span<Type, Fold, Packs, 3, 2>(arguments, packs, place);
            break;
        case 4:
            reduce_span<Type, Fold, Packs, 4, Packs::WIDER == 1 ? 2 : 1>(arguments, packs, place);
            break;
        case 8:
            reduce_span<Type, Fold, Packs, 8, 1>(arguments, packs, place);
            break;
        default:
            reduce_span<Type, Fold, Packs, 0, Packs::UNROLL>(arguments, packs, place);
            break;
        }
    } else {
        reduce_span<Type, Fold, Packs, 0, Packs::UNROLL>(arguments, packs, place);
    }
    reduce_span<Type, Fold, Elements, 0, Elements::UNROLL>(arguments, rest, place);
}

#endif
