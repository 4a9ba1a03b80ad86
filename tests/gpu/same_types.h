#ifndef TESTS_GPU_SAME_TYPES_H
#define TESTS_GPU_SAME_TYPES_H

#include <cstddef>
#include <type_traits>

/* Comparisons of the project's declarations with those of a toolkit, while it is compiled. */

namespace
{
/* Two types agree if both are numbers of one size (an enumeration counts as an int), or structs of one size.
 * Pointers agree if their targets agree, or if both sides leave the targets undefined. */
template <typename Ours, typename Theirs> constexpr bool is_same_value();

template <typename Type> constexpr bool is_number = std::is_integral_v<Type> || std::is_enum_v<Type>;
template <typename Type, typename = void> constexpr bool is_opaque = true;
template <typename Type> constexpr bool is_opaque<Type, std::void_t<decltype(sizeof(Type))>> = false;

template <typename Ours, typename Theirs> constexpr bool is_same_target()
{
    if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
        return std::is_void_v<Ours> && std::is_void_v<Theirs>;
    } else if constexpr (is_opaque<Ours> || is_opaque<Theirs>) {
        return is_opaque<Ours> && is_opaque<Theirs>;
    } else {
        return is_same_value<Ours, Theirs>();
    }
}

template <typename Ours, typename Theirs> constexpr bool is_same_value()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        return is_same_target<std::remove_cv_t<std::remove_pointer_t<Ours>>,
                              std::remove_cv_t<std::remove_pointer_t<Theirs>>>();
    } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
    } else if constexpr (is_number<Ours> && is_number<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    } else if constexpr (std::is_class_v<Ours> && (std::is_class_v<Theirs> || std::is_union_v<Theirs>)) {
        return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) >= alignof(Theirs);
    } else {
        return std::is_same_v<Ours, Theirs>;
    }
}

template <typename Ours, typename Theirs> struct is_same_function : std::false_type {
};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct is_same_function<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
    static constexpr bool compare()
    {
        if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
            return false;
        } else {
            return is_same_value<OurResult, TheirResult>() && (is_same_value<Ours, Theirs>() && ...);
        }
    }
    static constexpr bool value = compare();
};
} // namespace

#define SAME(ours, theirs)                                                                                   \
    static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #ours)
#define SAME_MEMBER(ours, our_member, theirs, their_member)                                                  \
    static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) &&                            \
                      sizeof(ours::our_member) == sizeof(theirs::their_member),                              \
                  #ours "." #our_member)

#endif
