// A call of a backward operator by its Autograd kernel.
#pragma once

#include "../operators/checks.h"
#include "differentiation.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace lltm {

/// Calls the operator below the Autograd key. If any of its arguments requires a gradient, records
/// Node with this data; it saves all arguments.
template <typename Op, typename Node, typename... Rest>
typename Op::Results recorded_call(const typename Op::Arguments& arguments,
                                   NodeData data,
                                   const Rest&... rest) {
  const bool records = any_requires_grad<Op>(arguments);
  if (records) {
    check<c10::SymInt>(arguments);  // before the dispatcher looks for a backend of their layout
  }
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Op::call(arguments, rest...);
  }();
  if (records) {
    save(record_node<Node>(differentiable<Op>(arguments), variables(results), data),
         variables(arguments.tensors()));
  }
  return results;
}

}  // namespace lltm
