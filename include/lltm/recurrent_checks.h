// The argument checks of the modules in lltm/nn.h that their operators do not make. Messages begin
// with the module's name. Programs include lltm/nn.h.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <tuple>

namespace lltm::checks {

inline void check_dropout(const char* module, double dropout, int64_t num_layers) {
  TORCH_CHECK_VALUE(dropout >= 0 && dropout <= 1,
                    module,
                    ": dropout should be a number in range [0, 1], got ",
                    dropout);
  if (dropout > 0 && num_layers == 1) {
    TORCH_WARN(module,
               ": dropout acts between layers, so non-zero dropout expects num_layers greater than "
               "1, but got dropout=",
               dropout,
               " and num_layers=1");
  }
}

inline void check_positive(const char* module, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value > 0, module, ": ", name, " must be greater than zero, got ", value);
}

inline void check_defined(const char* module, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.defined(), module, ": expected ", name, " to be a tensor, got an undefined tensor");
}

inline void check_given(const char* module,
                        const char* name,
                        const std::optional<at::Tensor>& tensor) {
  TORCH_CHECK(!tensor || tensor->defined(),
              module,
              ": expected ",
              name,
              " to be a tensor or std::nullopt, got an undefined tensor");
}

/// `expected` is the parameters' dtype. Under autocast, which casts both, the operator checks.
inline void check_dtype(const char* module, const at::Tensor& input, at::ScalarType expected) {
  const at::ScalarType dtype = input.scalar_type();
  const at::DeviceType device = input.device().type();
  if (dtype == expected ||
      (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device))) {
    return;
  }
  const auto name = [](at::ScalarType dtype) {
    return std::string("torch::k") + c10::toString(dtype);
  };
  // A module can only have a floating-point dtype.
  const std::string or_the_module =
      at::isFloatingType(dtype) ? ", or the module: module->to(" + name(dtype) + ")" : "";
  TORCH_CHECK_VALUE(false,
                    module,
                    ": input dtype (",
                    name(dtype),
                    ") does not match weight dtype (",
                    name(expected),
                    "). Convert the input: input.to(",
                    name(expected),
                    ")",
                    or_the_module);
}

inline void check_pair(const char* module, const std::tuple<at::Tensor, at::Tensor>& hx) {
  TORCH_CHECK(std::get<0>(hx).defined() && std::get<1>(hx).defined(),
              module,
              ": expected hx to be the pair (h_0, c_0), got an undefined tensor");
}

}  // namespace lltm::checks
