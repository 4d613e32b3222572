#include "checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <optional>

namespace lltm {

using at::Tensor;

void check_argument(const char* operator_name, size_t position, const Tensor& tensor) {
  if (tensor.defined() && !tensor.is_nested()) {
    return;
  }
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(operator_name, "");
  const std::string& name = op.schema().arguments()[position].name();
  TORCH_CHECK(tensor.defined(),
              operator_name,
              ": expected ",
              name,
              " to be a tensor, got None or an undefined tensor");
  // It has no sizes, and autograd would ask for them before the dispatcher could reject it.
  TORCH_CHECK(false, operator_name, ": expected ", name, " to be a dense tensor, got a nested one");
}

void check_argument(const char* operator_name,
                    size_t position,
                    const std::optional<Tensor>& tensor) {
  if (is_given(tensor)) {
    check_argument(operator_name, position, *tensor);
  }
}

}  // namespace lltm
