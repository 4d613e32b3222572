// A level of torch.vmap, as the batching rules see it.
//
// Below vmap, a tensor that is mapped over wraps one that has another dimension, the examples. The
// rules take it apart and call the operator on what is inside. Calls on unwrapped tensors must
// exclude the FuncTorchBatched key: these tensors may be wrapped by an outer vmap.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lltm {

class Vmap {
 public:
  /// The innermost vmap, or nothing if it maps over none of the tensors.
  static std::optional<Vmap> over(c10::ArrayRef<std::optional<at::Tensor>> tensors);

  /// The number of examples.
  const c10::SymInt& size() const { return size_; }

  bool maps(const std::optional<at::Tensor>& tensor) const;

  /// The unwrapped tensor, whose rows in dimension `dim` are those of all examples in turn. A
  /// tensor that is not mapped over is repeated.
  at::Tensor fold(const at::Tensor& tensor, int64_t dim) const;

  /// The inverse of fold(): the wrapped tensor, with `rows` rows in each example.
  at::Tensor unfold(const at::Tensor& folded, int64_t dim, const c10::SymInt& rows) const;

  /// The examples of a tensor that is mapped over, unwrapped; one of zeros if there are none.
  std::vector<at::Tensor> examples(const at::Tensor& tensor) const;

  /// The inverse of examples(), for one example after the other.
  class Stack {
   public:
    void push(const at::Tensor& example);

    /// The wrapped tensor, once all examples have been pushed, or one of zeros if there are none.
    at::Tensor tensor() const;

   private:
    friend class Vmap;
    Stack(int64_t level, c10::SymInt size) : level_(level), size_(std::move(size)) {}

    int64_t level_;
    c10::SymInt size_;
    int64_t pushed_ = 0;
    at::Tensor all_;                    // of all examples, if they are copied as they come
    std::vector<at::Tensor> examples_;  // otherwise
  };
  Stack stack() const { return {level_, size_}; }

 private:
  Vmap(int64_t level, c10::SymInt size) : level_(level), size_(std::move(size)) {}

  int64_t level_;
  c10::SymInt size_;
};

}  // namespace lltm
