#include "vmap.h"

#include "../dispatch/optional_tensor.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/LegacyVmapTransforms.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>

namespace lltm {

using at::Tensor;
using at::functorch::BatchedTensorImpl;

namespace {

const BatchedTensorImpl* wrapper_of(const std::optional<Tensor>& tensor) {
  return is_given(tensor) ? at::functorch::maybeGetBatchedImpl(*tensor) : nullptr;
}

/// Whether a tensor is mapped over by the innermost vmap, and not by an outer one alone.
/// ATen/functorch/DynamicLayer.h, which knows the level of the innermost vmap, includes a header
/// that PyTorch does not ship, so this asks a function that raises an error if it is another one.
bool is_mapped_by_innermost(const Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below_vmap(c10::DispatchKey::FuncTorchBatched);
  try {
    at::functorch::MultiBatchVmapTransform::logicalToPhysical(at::TensorList(tensor));
    return true;
  } catch (const c10::Error&) {
    return false;
  } catch (const std::bad_optional_access&) {  // there is no vmap
    C10_THROW_ERROR(Error, "lltm: got a tensor that escaped from inside a function being vmapped");
  }
}

}  // namespace

std::optional<Vmap> Vmap::over(c10::ArrayRef<std::optional<Tensor>> tensors) {
  const std::optional<Tensor>* innermost = nullptr;
  for (const auto& tensor : tensors) {
    const auto* wrapper = wrapper_of(tensor);
    if (wrapper && (!innermost || wrapper->level() > wrapper_of(*innermost)->level())) {
      innermost = &tensor;
    }
  }
  if (!innermost || !is_mapped_by_innermost(**innermost)) {
    return std::nullopt;
  }
  const auto* wrapper = wrapper_of(*innermost);
  return Vmap(wrapper->level(), wrapper->value().sym_size(wrapper->bdim()));
}

bool Vmap::maps(const std::optional<Tensor>& tensor) const {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper && wrapper->level() == level_;
}

Tensor Vmap::fold(const Tensor& tensor, int64_t dim) const {
  if (maps(tensor)) {
    const auto* wrapper = wrapper_of(tensor);
    return wrapper->value().movedim(wrapper->bdim(), dim).flatten(dim, dim + 1);
  }
  c10::SymDimVector sizes(tensor.sym_sizes());
  sizes.insert(sizes.begin() + dim, size_);
  return tensor.unsqueeze(dim).expand_symint(sizes).flatten(dim, dim + 1);
}

Tensor Vmap::unfold(const Tensor& folded, int64_t dim, const c10::SymInt& rows) const {
  const std::array<c10::SymInt, 2> sizes{size_, rows};
  return at::functorch::makeBatched(folded.unflatten_symint(dim, sizes), dim, level_);
}

std::vector<Tensor> Vmap::examples(const Tensor& tensor) const {
  const auto* wrapper = wrapper_of(tensor);
  const Tensor& value = wrapper->value();
  if (size_ == 0) {
    c10::SymDimVector sizes(value.sym_sizes());
    sizes.erase(sizes.begin() + wrapper->bdim());
    return {value.new_zeros_symint(sizes)};
  }
  return value.unbind(wrapper->bdim());
}

void Vmap::Stack::push(const Tensor& example) {
  // On the CPU, an example's memory is used again by the next one, while it is in the cache. What
  // a derivative or a tracer records should be one operation.
  if (pushed_ == 0 && size_ != 0 && example.is_cpu() && !example.requires_grad() &&
      !at::isTensorSubclassLike(example)) {
    c10::SymDimVector sizes(example.sym_sizes());
    sizes.insert(sizes.begin(), size_);
    all_ = example.new_empty_symint(sizes);
  }
  if (all_.defined()) {
    all_.select(0, pushed_).copy_(example);
  } else {
    examples_.push_back(example);
  }
  ++pushed_;
}

Tensor Vmap::Stack::tensor() const {
  return at::functorch::makeBatched(
      all_.defined() ? all_ : at::stack(examples_).narrow_symint(0, 0, size_), /*dim=*/0, level_);
}

}  // namespace lltm
