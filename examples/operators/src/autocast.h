// Used by kernels that call ATen's matrix products.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace example_ops {

/// Turns autocast off for its own lifetime. Autocast does not cast the arguments of an operator
/// without an Autocast kernel, but stays on inside it: at::mm of float32 tensors would return the
/// autocast dtype, which differs from the Meta kernel's. (src/autograd/autocast.cpp of lltm shows
/// an Autocast kernel.)
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace example_ops
