// Turns autocast off while a kernel calls ATen.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lltm {

/// The arguments have been checked; products must be computed in their own dtype. A call by
/// autograd passes through no autocast kernel of this library, but autocast may be on: backward()
/// may be called inside its region.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace lltm
