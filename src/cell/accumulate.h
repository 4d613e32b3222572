#pragma once

#include <type_traits>

namespace lltm {

/// The type in which sums are accumulated: double for double, float for the others.
template <typename scalar_t>
using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

}  // namespace lltm
