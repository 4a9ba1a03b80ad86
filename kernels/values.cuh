#ifndef KERNELS_VALUES_CUH
#define KERNELS_VALUES_CUH

#include "kernels/platform.cuh"

/*
 * How the elements of a type are held while they are reduced. A type has
 *     Stored     one element in memory
 *     Wide       what is reduced: f32 for short floats, 32 bits for short integers, else the element itself
 *     Group      the bits that are converted at once; a pack of 16 bytes holds several groups
 *     WIDES      Wide values in a group
 *     widen_group, narrow_group, widen, narrow
 * and scale and divide of a Wide, for types that have factors and divisors.
 */

template <typename Real> struct complex_of {
    Real real;
    Real imaginary;
};

/* A complex number may be aligned only to its parts. */
template <typename Real> KERNEL_FUNCTION complex_of<Real> load_streaming(const complex_of<Real> *from)
{
    return complex_of<Real>{load_streaming(&from->real), load_streaming(&from->imaginary)};
}
template <typename Real>
KERNEL_FUNCTION void store_streaming(complex_of<Real> *to, const complex_of<Real> &value)
{
    store_streaming(&to->real, value.real);
    store_streaming(&to->imaginary, value.imaginary);
}

/* ---- floating point that is reduced in its own type */

template <typename Value> struct plain_type {
    using Stored = Value;
    using Wide = Value;
    using Group = Value;
    static constexpr uint32_t WIDES = 1;
    static constexpr bool SCALES = true;
    static constexpr bool DIVIDES = true;

    KERNEL_MEMBER void widen_group(const Value &group, Value *values)
    {
        values[0] = group;
    }
    KERNEL_MEMBER Value narrow_group(const Value *values)
    {
        return values[0];
    }
    KERNEL_MEMBER Value widen(const Value &stored)
    {
        return stored;
    }
    KERNEL_MEMBER Value narrow(const Value &value)
    {
        return value;
    }
};

template <typename Real> struct real_type : plain_type<Real> {
    KERNEL_MEMBER Real scale(Real value, double factor)
    {
        return value * static_cast<Real>(factor);
    }
    KERNEL_MEMBER Real divide(Real value, uint64_t divisor)
    {
        return value / static_cast<Real>(divisor);
    }
};

template <typename Real> struct complex_type : plain_type<complex_of<Real>> {
    KERNEL_MEMBER complex_of<Real> scale(const complex_of<Real> &value, double factor)
    {
        return {value.real * static_cast<Real>(factor), value.imaginary * static_cast<Real>(factor)};
    }
    KERNEL_MEMBER complex_of<Real> divide(const complex_of<Real> &value, uint64_t divisor)
    {
        return {value.real / static_cast<Real>(divisor), value.imaginary / static_cast<Real>(divisor)};
    }
};

/*
 * ---- short floats. The device's own conversions are used where they equal those of convert_bits.h, except
 * for the payload of NaN. To f32 all are exact. To f16 and bf16 they round to nearest even, overflow to
 * infinity and keep subnormals, as IEEE 754 says. To 8 bits (sm_89 and later) they also round to nearest even
 * and saturate. But they saturate infinities, too, which e5m2 keeps here.
 */
#if defined(__CUDA_ARCH__)
#define DEVICE_CONVERTS 1
#define DEVICE_CONVERTS_F8 (__CUDA_ARCH__ >= 890)
#else
#define DEVICE_CONVERTS 0
#define DEVICE_CONVERTS_F8 0
#endif

struct f16_bits {
    using Stored = uint16_t;
    KERNEL_MEMBER float widen(uint16_t stored)
    {
#if DEVICE_CONVERTS
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
        return value;
#else
        return bits_f16_to_f32(stored);
#endif
    }
    KERNEL_MEMBER uint32_t narrow_two(float low, float high)
    {
#if DEVICE_CONVERTS
        uint32_t word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
#else
        return bits_f32_to_f16(low) | static_cast<uint32_t>(bits_f32_to_f16(high)) << 16;
#endif
    }
    KERNEL_MEMBER void widen_word(uint32_t word, float *values)
    {
        values[0] = widen(static_cast<uint16_t>(word & 0xffffu));
        values[1] = widen(static_cast<uint16_t>(word >> 16));
    }
    KERNEL_MEMBER uint32_t narrow_word(const float *values)
    {
        return narrow_two(values[0], values[1]);
    }
};

struct bf16_bits {
    using Stored = uint16_t;
    KERNEL_MEMBER float widen(uint16_t stored)
    {
        return bits_to_f32(static_cast<uint32_t>(stored) << 16);
    }
    KERNEL_MEMBER uint32_t narrow_two(float low, float high)
    {
#if DEVICE_CONVERTS
        uint32_t word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
#else
        return bits_f32_to_bf16(low) | static_cast<uint32_t>(bits_f32_to_bf16(high)) << 16;
#endif
    }
    KERNEL_MEMBER void widen_word(uint32_t word, float *values)
    {
        values[0] = bits_to_f32(word << 16);
        values[1] = bits_to_f32(word & 0xffff0000u);
    }
    KERNEL_MEMBER uint32_t narrow_word(const float *values)
    {
        return narrow_two(values[0], values[1]);
    }
};

/* Two at a time, like the device's conversions. */
#if DEVICE_CONVERTS_F8
#define F8_WIDEN_TWO(two, values, instruction_text)                                                          \
    uint32_t halves;                                                                                         \
    asm("cvt.rn.f16x2." instruction_text "x2 %0, %1;" : "=r"(halves) : "h"(two));                            \
    f16_bits::widen_word(halves, values)
#define F8_NARROW_TWO(two, low, high, instruction_text)                                                      \
    uint16_t two;                                                                                            \
    asm("cvt.rn.satfinite." instruction_text "x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low))
#endif

struct f8e4m3_bits {
    KERNEL_MEMBER void widen_two(uint16_t two, float *values)
    {
#if DEVICE_CONVERTS_F8
        F8_WIDEN_TWO(two, values, "e4m3");
#else
        values[0] = bits_f8e4m3_to_f32(static_cast<uint8_t>(two & 0xff));
        values[1] = bits_f8e4m3_to_f32(static_cast<uint8_t>(two >> 8));
#endif
    }
    KERNEL_MEMBER uint32_t narrow_two(float low, float high)
    {
#if DEVICE_CONVERTS_F8
        F8_NARROW_TWO(two, low, high, "e4m3");
        return two;
#else
        return bits_f32_to_f8e4m3(low) | static_cast<uint32_t>(bits_f32_to_f8e4m3(high)) << 8;
#endif
    }
};

struct f8e5m2_bits {
    KERNEL_MEMBER void widen_two(uint16_t two, float *values)
    {
#if DEVICE_CONVERTS_F8
        F8_WIDEN_TWO(two, values, "e5m2");
#else
        values[0] = f16_bits::widen(static_cast<uint16_t>(two << 8));
        values[1] = f16_bits::widen(static_cast<uint16_t>(two & 0xff00));
#endif
    }
    KERNEL_MEMBER uint32_t narrow_two(float low, float high)
    {
#if DEVICE_CONVERTS_F8
        F8_NARROW_TWO(two, low, high, "e5m2");
        /* Sets 0x7c and the sign, whatever the device returns. */
        uint32_t infinite = (bits_of_f32(low) & 0x7fffffffu) == 0x7f800000u ? 0x7fu : 0u;
        infinite |= (bits_of_f32(high) & 0x7fffffffu) == 0x7f800000u ? 0x7f00u : 0u;
        return (two | infinite) & ~(infinite & 0x0303u);
#else
        return bits_f32_to_f8e5m2(low) | static_cast<uint32_t>(bits_f32_to_f8e5m2(high)) << 8;
#endif
    }
};

template <typename Two> struct byte_float_bits {
    using Stored = uint8_t;
    KERNEL_MEMBER float widen(uint8_t stored)
    {
        float values[2];
        Two::widen_two(stored, values);
        return values[0];
    }
    KERNEL_MEMBER uint32_t narrow_two(float low, float high)
    {
        return Two::narrow_two(low, high);
    }
    KERNEL_MEMBER void widen_word(uint32_t word, float *values)
    {
        Two::widen_two(static_cast<uint16_t>(word & 0xffffu), values);
        Two::widen_two(static_cast<uint16_t>(word >> 16), values + 2);
    }
    KERNEL_MEMBER uint32_t narrow_word(const float *values)
    {
        return Two::narrow_two(values[0], values[1]) | Two::narrow_two(values[2], values[3]) << 16;
    }
};

template <typename Bits> struct short_float_type {
    using Stored = typename Bits::Stored;
    using Wide = float;
    using Group = uint32_t;
    static constexpr uint32_t WIDES = sizeof(Group) / sizeof(Stored);
    static constexpr bool SCALES = true;
    static constexpr bool DIVIDES = true;

    KERNEL_MEMBER void widen_group(Group group, Wide *values)
    {
        Bits::widen_word(group, values);
    }
    KERNEL_MEMBER Group narrow_group(const Wide *values)
    {
        return Bits::narrow_word(values);
    }
    KERNEL_MEMBER Wide widen(Stored stored)
    {
        return Bits::widen(stored);
    }
    KERNEL_MEMBER Stored narrow(Wide value)
    {
        return static_cast<Stored>(Bits::narrow_two(value, 0.0f));
    }
    KERNEL_MEMBER Wide scale(Wide value, double factor)
    {
        return value * static_cast<float>(factor);
    }
    KERNEL_MEMBER Wide divide(Wide value, uint64_t divisor)
    {
        return value / static_cast<float>(divisor);
    }
};

template <bool condition, typename Yes, typename No> struct choice {
    using type = Yes;
};
template <typename Yes, typename No> struct choice<false, Yes, No> {
    using type = No;
};
template <bool condition, typename Yes, typename No> using choose = typename choice<condition, Yes, No>::type;

/*
 * ---- integers. Value is the type of an element, Bits the unsigned type of its width. Short ones are held in
 * 32 bits, whose lowest bits wrap like the element.
 */
template <typename Value, typename Bits> struct integer_type {
    using Stored = Bits;
    static constexpr bool SHORT = sizeof(Bits) < 4;
    static constexpr bool SIGNED = static_cast<Value>(-1) < static_cast<Value>(0);
    using Wide = choose<SHORT, choose<SIGNED, int32_t, uint32_t>, Value>;
    using Group = choose<SHORT, uint32_t, Bits>;
    static constexpr uint32_t WIDES = sizeof(Group) / sizeof(Stored);
    static constexpr bool SCALES = true;
    static constexpr bool DIVIDES = true;

    KERNEL_MEMBER Wide widen(Stored stored)
    {
        return static_cast<Wide>(static_cast<Value>(stored));
    }
    KERNEL_MEMBER Stored narrow(Wide value)
    {
        return static_cast<Stored>(value);
    }
    KERNEL_MEMBER void widen_group(Group group, Wide *values)
    {
        UNROLL_ALL
        for (uint32_t i = 0; i < WIDES; i++) {
            values[i] = widen(static_cast<Stored>(group >> (8 * sizeof(Stored) * i)));
        }
    }
    KERNEL_MEMBER Group narrow_group(const Wide *values)
    {
        Group group = 0;
        UNROLL_ALL
        for (uint32_t i = 0; i < WIDES; i++) {
            group |= static_cast<Group>(narrow(values[i])) << (8 * sizeof(Stored) * i);
        }
        return group;
    }
    /* As the host does: without the factor's fraction. The product wraps. */
    KERNEL_MEMBER Wide scale(Wide value, double factor)
    {
        bool in_range = factor >= -REDUCE_WHOLE_FACTOR_MAX && factor <= REDUCE_WHOLE_FACTOR_MAX;
        uint64_t by = in_range ? static_cast<uint64_t>(static_cast<int64_t>(factor)) : 0;
        return static_cast<Wide>(static_cast<uint64_t>(value) * by);
    }
    KERNEL_MEMBER Wide divide(Wide value, uint64_t divisor)
    {
        Value wrapped = static_cast<Value>(value);
        if constexpr (SIGNED) {
            return static_cast<Wide>(static_cast<int64_t>(wrapped) / static_cast<int64_t>(divisor));
        } else {
            return static_cast<Wide>(static_cast<uint64_t>(wrapped) / divisor);
        }
    }
};

/* For bitwise operators: groups of at least 32 bits, whatever elements they hold. */
template <typename Bits> struct bits_type {
    using Stored = Bits;
    using Wide = choose<sizeof(Bits) == 8, uint64_t, uint32_t>;
    using Group = Wide;
    static constexpr uint32_t WIDES = 1;
    static constexpr bool SCALES = false;
    static constexpr bool DIVIDES = false;

    KERNEL_MEMBER void widen_group(Group group, Wide *values)
    {
        values[0] = group;
    }
    KERNEL_MEMBER Group narrow_group(const Wide *values)
    {
        return values[0];
    }
    KERNEL_MEMBER Wide widen(Stored stored)
    {
        return stored;
    }
    KERNEL_MEMBER Stored narrow(Wide value)
    {
        return static_cast<Stored>(value);
    }
};

/* Like bits_type, but every element is made 0 or 1 first: for bool, and for land and lor of integers. */
template <typename Bits> struct truth_type : bits_type<Bits> {
    using Stored = typename bits_type<Bits>::Stored;
    using Wide = typename bits_type<Bits>::Wide;
    using Group = typename bits_type<Bits>::Group;

    KERNEL_MEMBER void widen_group(Group group, Wide *values)
    {
        /* Sets the highest bit of each element by a carry out of its other bits, if these are not all 0. */
        constexpr uint32_t BITS = 8 * sizeof(Bits);
        constexpr Wide ONES =
            static_cast<Wide>(~static_cast<Wide>(0)) / static_cast<Bits>(~static_cast<Bits>(0));
        constexpr Wide HIGHS = ONES << (BITS - 1);
        values[0] = ((((group & ~HIGHS) + ~HIGHS) | group) >> (BITS - 1)) & ONES;
    }
    KERNEL_MEMBER Wide widen(Stored stored)
    {
        return stored != 0 ? 1 : 0;
    }
};

/* ---- operators */

struct fold_sum {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return a + b;
    }
    KERNEL_MEMBER int32_t fold(int32_t a, int32_t b)
    {
        return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
    }
    KERNEL_MEMBER int64_t fold(int64_t a, int64_t b)
    {
        return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
    template <typename Real>
    KERNEL_MEMBER complex_of<Real> fold(const complex_of<Real> &a, const complex_of<Real> &b)
    {
        return complex_of<Real>{a.real + b.real, a.imaginary + b.imaginary};
    }
};

struct fold_prod {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return a * b;
    }
    KERNEL_MEMBER int32_t fold(int32_t a, int32_t b)
    {
        return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    }
    KERNEL_MEMBER int64_t fold(int64_t a, int64_t b)
    {
        return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    }
    template <typename Real>
    KERNEL_MEMBER complex_of<Real> fold(const complex_of<Real> &a, const complex_of<Real> &b)
    {
        return complex_of<Real>{a.real * b.real - a.imaginary * b.imaginary,
                                a.real * b.imaginary + a.imaginary * b.real};
    }
};

/* NaN wins, the first one if both are NaN. Of two zeros, the negative one is less. */
template <typename Real, typename Bits, bool is_max> KERNEL_FUNCTION Real fold_ordered(Real a, Real b)
{
    Bits a_bits = bits_as<Bits>(a);
    Bits b_bits = bits_as<Bits>(b);
    Bits equal_bits = is_max ? a_bits & b_bits : a_bits | b_bits;
    Bits ordered = (is_max ? a > b : a < b) ? a_bits : b_bits;
    ordered = a == b ? equal_bits : ordered;
    ordered = b != b ? b_bits : ordered;
    ordered = a != a ? a_bits : ordered;
    return bits_as<Real>(ordered);
}

template <bool is_max> struct fold_extreme {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return (is_max ? a > b : a < b) ? a : b;
    }
    KERNEL_MEMBER float fold(float a, float b)
    {
        return fold_ordered<float, uint32_t, is_max>(a, b);
    }
    KERNEL_MEMBER double fold(double a, double b)
    {
        return fold_ordered<double, uint64_t, is_max>(a, b);
    }
};
using fold_min = fold_extreme<false>;
using fold_max = fold_extreme<true>;

struct fold_and {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return a & b;
    }
};
struct fold_or {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return a | b;
    }
};
struct fold_xor {
    template <typename Wide> KERNEL_MEMBER Wide fold(Wide a, Wide b)
    {
        return a ^ b;
    }
};

#endif
