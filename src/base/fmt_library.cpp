// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The functions of fmt, compiled once. What goes inside a host links fmt statically and hidden, and not every
// distribution has a static library of it; header-only, each file would compile fmt again, half of its time.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;

} // namespace detail
FMT_END_NAMESPACE
