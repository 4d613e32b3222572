// The argument checks of lltm::LLTM and lltm::LSTM: those of torch::nn::LSTM, and those of lengths
// and reset. Messages begin with the module's name. Programs include lltm/nn.h.
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

inline void check_dimensions(const char* module, const at::Tensor& input) {
  TORCH_CHECK_VALUE(input.dim() == 2 || input.dim() == 3,
                    module,
                    ": Expected input to be 2D or 3D, got ",
                    input.dim(),
                    "D instead");
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

inline void check_features(const char* module, const at::Tensor& input, int64_t input_size) {
  TORCH_CHECK(input.size(-1) == input_size,
              module,
              ": input.size(-1) must be equal to input_size. Expected ",
              input_size,
              ", got ",
              input.size(-1));
}

inline void check_size(const char* module,
                       const char* name,
                       const at::Tensor& tensor,
                       at::IntArrayRef expected) {
  TORCH_CHECK(tensor.sizes() == expected,
              module,
              ": Expected ",
              name,
              " size ",
              expected,
              ", got ",
              tensor.sizes());
}

/// Checks that hx is a pair of tensors with as many dimensions as the input.
inline void check_pair(const char* module,
                       const std::tuple<at::Tensor, at::Tensor>& hx,
                       int64_t dims) {
  const auto& [h_0, c_0] = hx;
  TORCH_CHECK(h_0.defined() && c_0.defined(),
              module,
              ": expected hx to be the pair (h_0, c_0), got an undefined tensor");
  TORCH_CHECK(h_0.dim() == dims && c_0.dim() == dims,
              module,
              ": For ",
              dims == 3 ? "batched 3-D" : "unbatched 2-D",
              " input, hx and cx should also be ",
              dims,
              "-D but got (",
              h_0.dim(),
              "-D, ",
              c_0.dim(),
              "-D) tensors");
}

/// Checks a PackedSequence that was not made by pack_sequence() or pack_padded_sequence().
inline void check_packed(const char* module,
                         const at::Tensor& data,
                         const at::Tensor& batch_sizes) {
  TORCH_CHECK(data.dim() == 2, module, ": input must have 2 dimensions, got ", data.dim());
  const int64_t steps = batch_sizes.size(0);
  TORCH_CHECK(steps < 2 || (batch_sizes.diff() <= 0).all().item<bool>(),
              module,
              ": Expected batch_sizes of a PackedSequence never to increase, got ",
              at::IntArrayRef(batch_sizes.const_data_ptr<int64_t>(), steps));
  const int64_t rows = batch_sizes.sum().item<int64_t>();
  TORCH_CHECK(data.size(0) == rows,
              module,
              ": Expected data of a PackedSequence to have ",
              rows,
              " rows, the sum of batch_sizes, got ",
              data.size(0));
}

}  // namespace lltm::checks
