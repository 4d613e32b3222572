// vmap: the composite formula's operations have batching rules, so it needs none of its own.
#include "../formula.h"

#include <torch/library.h>

namespace lltm {

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  m.impl("forward", TORCH_FN(formula::forward));
  m.impl("backward", TORCH_FN(formula::backward));
}

}  // namespace lltm
