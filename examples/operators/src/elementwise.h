// The formulas of the elementwise operators, and the loop that runs them on the CPU and on the GPU.
// This code does not use tensors: the host function is in elementwise.cpp, and the CUDA kernel in
// elementwise.cu. To add an elementwise operator, add a struct here, its name to ScalarFunction,
// and a file that registers it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <variant>

#ifdef __CUDACC__
#define EXAMPLE_OPS_HOST_DEVICE __host__ __device__
#else
#define EXAMPLE_OPS_HOST_DEVICE
#endif

namespace example_ops {

// The formulas. T is double or float: 16-bit elements are computed in float and rounded once.

/// floor(x + 0.5) would be wrong: in float32, 0.49999997 + 0.5 rounds to 1, so that number would be
/// rounded up. x - floor(x) is exact wherever rounding could change the comparison.
struct RoundHalfUp {
  template <typename T>
  EXAMPLE_OPS_HOST_DEVICE T operator()(T x) const {
    const T below = std::floor(x);
    return below + static_cast<T>(x - below >= T(0.5));
  }
};

struct Multiply {
  template <typename T>
  EXAMPLE_OPS_HOST_DEVICE T operator()(T a, T b) const {
    return a * b;
  }
};

struct MultiplyBy {
  double constant;

  template <typename T>
  EXAMPLE_OPS_HOST_DEVICE T operator()(T x) const {
    return x * static_cast<T>(constant);
  }
};

// Use T(3) and std::max, never 3.0f or fmaxf: a float function silently rounds a double to seven
// digits, and only gradcheck in float64 detects it.
struct Cube {
  template <typename T>
  EXAMPLE_OPS_HOST_DEVICE T operator()(T x) const {
    return x * x * x;
  }
};

using ScalarFunction = std::variant<RoundHalfUp, Multiply, MultiplyBy, Cube>;

/// Neighboring elements that are moved by a single load or store.
template <typename scalar_t, int lane_count>
struct alignas(sizeof(scalar_t) * lane_count) Pack {
  using Scalar = scalar_t;
  static constexpr int kLanes = lane_count;
  scalar_t lanes[lane_count];
};

/// The loop: out[i] = function(a[i], b[i]) for i = begin, begin + step, ... below end. b is not
/// read for a function of one argument. The CPU calls it for a range with step 1. On the GPU each
/// thread begins at its own index and uses the number of threads as step.
template <typename Function, typename Pack>
EXAMPLE_OPS_HOST_DEVICE void elementwise_loop(const Function& function,
                                              int64_t begin,
                                              int64_t end,
                                              int64_t step,
                                              Pack* out,
                                              const Pack* a,
                                              const Pack* b) {
  using scalar_t = typename Pack::Scalar;
  using compute_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
  for (int64_t i = begin; i < end; i += step) {
    Pack result;
    const Pack x = a[i];
    if constexpr (std::is_invocable_v<Function, compute_t, compute_t>) {
      const Pack y = b[i];
      for (int lane = 0; lane < Pack::kLanes; ++lane) {
        result.lanes[lane] = static_cast<scalar_t>(
            function(static_cast<compute_t>(x.lanes[lane]), static_cast<compute_t>(y.lanes[lane])));
      }
    } else {
      for (int lane = 0; lane < Pack::kLanes; ++lane) {
        result.lanes[lane] = static_cast<scalar_t>(function(static_cast<compute_t>(x.lanes[lane])));
      }
    }
    out[i] = result;
  }
}

/// The parameters of a launch. Memory is contiguous and at least aligned to the element size.
struct ElementwiseParams {
  ScalarFunction function;
  c10::ScalarType dtype;
  int64_t count;
  void* out;
  const void* a;
  const void* b;  // nullptr for a function of one argument
};

/// Dispatches on function and dtype: calls run(function, element) with their static types.
template <typename Run>
void visit_types(const ElementwiseParams& params, const Run& run) {
  std::visit(
      [&](const auto& function) {
        switch (params.dtype) {
          case c10::ScalarType::Double:
            return run(function, double{});
          case c10::ScalarType::Float:
            return run(function, float{});
          case c10::ScalarType::Half:
            return run(function, c10::Half{});
          case c10::ScalarType::BFloat16:
            return run(function, c10::BFloat16{});
          default:
            TORCH_CHECK(false, "example_ops: no elementwise kernel for dtype ", params.dtype);
        }
      },
      params.function);
}

/// Launches on the current stream of the current device, asynchronously. Defined in elementwise.cu,
/// or in elementwise_unavailable.cpp if the library is built without CUDA.
void launch_on_cuda(const ElementwiseParams& params);

}  // namespace example_ops
