// For kernels that call ATen's products.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace example_ops {

/// Autocast off while it lives. An operator without an Autocast kernel is passed by, but the switch
/// stays on inside it: at::mm of float32 tensors would come back in the autocast dtype, another
/// than the Meta kernel has promised. (src/autograd/autocast.cpp shows an Autocast kernel.)
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace example_ops
