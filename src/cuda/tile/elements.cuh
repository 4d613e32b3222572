// Elements of tensors in device code.
#pragma once

#include "../problem.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lltm::cuda {

template <Arithmetic kArithmetic>
struct ElementOf {
  using type = float;
};
template <>
struct ElementOf<Arithmetic::kFloat16> {
  using type = __half;
};
template <>
struct ElementOf<Arithmetic::kBFloat16> {
  using type = __nv_bfloat16;
};

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void assign(float& to, float x) {
  to = x;
}
__device__ __forceinline__ void assign(__half& to, float x) {
  to = __float2half_rn(x);
}
__device__ __forceinline__ void assign(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

__device__ __forceinline__ int at_most(int64_t value, int limit) {
  return static_cast<int>(value < limit ? value : limit);
}

}  // namespace lltm::cuda
