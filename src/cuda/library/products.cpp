#include "products.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

// The library does not link cuBLAS: another copy of it could be found before PyTorch's, whose
// handles these functions take. Weak, they are looked up in what libtorch_cuda.so needs.
#pragma weak cublasGemmEx_64
#pragma weak cublasGetStatusString
#pragma weak cublasSetMathMode
#pragma weak cublasLtMatmul
#pragma weak cublasLtMatmulAlgoGetHeuristic
#pragma weak cublasLtMatmulDescInit_internal
#pragma weak cublasLtMatmulDescSetAttribute
#pragma weak cublasLtMatmulPreferenceInit_internal
#pragma weak cublasLtMatmulPreferenceSetAttribute
#pragma weak cublasLtMatrixLayoutInit_internal

namespace lltm::cuda {
namespace {

using at::Tensor;

void check_cublas(cublasStatus_t status) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "lltm: cuBLAS: ", cublasGetStatusString(status));
}

/// A float32 matrix as cuBLAS sees it, column by column: the transpose of one whose rows are
/// contiguous, or one that has to be transposed.
struct Operand {
  Tensor memory;
  cublasOperation_t operation;
  int64_t stride;

  explicit Operand(const Tensor& matrix) : memory(matrix) {
    if (has_contiguous_rows(matrix)) {
      operation = CUBLAS_OP_N;
    } else if (has_contiguous_rows(matrix.t())) {
      operation = CUBLAS_OP_T;
    } else {
      memory = matrix.contiguous();
      operation = CUBLAS_OP_N;
    }
    const bool transposed = operation == CUBLAS_OP_T;
    const int64_t columns = memory.size(transposed ? 0 : 1);
    stride = std::max<int64_t>({memory.stride(transposed ? 1 : 0), columns, 1});
  }
  const float* data() const { return memory.const_data_ptr<float>(); }

 private:
  /// Of rows that do not overlap.
  static bool has_contiguous_rows(const Tensor& matrix) {
    return (matrix.size(1) == 1 || matrix.stride(1) == 1) &&
           (matrix.size(0) == 1 || matrix.stride(0) >= matrix.size(1));
  }
};

cublasComputeType_t compute_type(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// out = a @ b + beta * out: out.T = b.T @ a.T, as cuBLAS sees it.
void float32_product_out(const Tensor& out,
                         const Operand& a,
                         const Operand& b,
                         int64_t terms,
                         float beta,
                         Arithmetic arithmetic) {
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  // Of this thread's handle, and until ATen gets it again: otherwise the setting for matrix
  // products would also count.
  check_cublas(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
  const float one = 1;
  check_cublas(cublasGemmEx_64(handle,
                               b.operation,
                               a.operation,
                               out.size(1),
                               out.size(0),
                               terms,
                               &one,
                               b.data(),
                               CUDA_R_32F,
                               b.stride,
                               a.data(),
                               CUDA_R_32F,
                               a.stride,
                               &beta,
                               out.mutable_data_ptr<float>(),
                               CUDA_R_32F,
                               std::max<int64_t>(out.stride(0), out.size(1)),
                               compute_type(arithmetic),
                               CUBLAS_GEMM_DEFAULT));
}

/// The layout of an operand of `columns` columns, of rows that are contiguous.
cublasLtMatrixLayoutOpaque_t layout_of(const Tensor& matrix, bool transposed, int64_t stride) {
  cublasLtMatrixLayoutOpaque_t layout;
  check_cublas(cublasLtMatrixLayoutInit(&layout,
                                        CUDA_R_32F,
                                        matrix.size(transposed ? 0 : 1),
                                        matrix.size(transposed ? 1 : 0),
                                        stride));
  return layout;
}

/// The largest power of two, up to 256, that an address is a multiple of.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// out = a @ b + bias in one kernel. Returns whether there is one.
bool fused_float32_product_out(const Tensor& out,
                               const Tensor& bias,
                               const Operand& a,
                               const Operand& b,
                               Arithmetic arithmetic) {
  cublasLtMatmulDescOpaque_t product;
  check_cublas(cublasLtMatmulDescInit(&product, compute_type(arithmetic), CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, b.operation);
  set(CUBLASLT_MATMUL_DESC_TRANSB, a.operation);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.const_data_ptr<float>());
  auto of_a = layout_of(a.memory, a.operation == CUBLAS_OP_T, a.stride);
  auto of_b = layout_of(b.memory, b.operation == CUBLAS_OP_T, b.stride);
  auto of_out = layout_of(out, /*transposed=*/false, out.stride(0));

  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  const auto workspace_bytes = static_cast<uint64_t>(at::cuda::getCUDABlasLtWorkspaceSize());
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b.data()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.data()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(out.const_data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(out.const_data_ptr()));

  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &product, &of_b, &of_a, &of_out, &of_out, &preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) {
    return false;
  }
  check_cublas(status);
  const float one = 1, zero = 0;
  check_cublas(cublasLtMatmul(handle,
                              &product,
                              &one,
                              b.data(),
                              &of_b,
                              a.data(),
                              &of_a,
                              &zero,
                              out.const_data_ptr(),
                              &of_out,
                              out.mutable_data_ptr(),
                              &of_out,
                              &found.algo,
                              at::cuda::getCUDABlasLtWorkspace(),
                              workspace_bytes,
                              c10::cuda::getCurrentCUDAStream()));
  return true;
}

}  // namespace

void product_out(const Tensor& out,
                 const Tensor& a,
                 const Tensor& b,
                 std::optional<Arithmetic> arithmetic,
                 bool adds) {
  Tensor result = out;
  if (out.numel() == 0) {
    return;
  }
  if (a.size(1) == 0) {
    if (!adds) {
      result.zero_();
    }
  } else if (a.scalar_type() == at::kFloat) {
    float32_product_out(out, Operand(a), Operand(b), a.size(1), /*beta=*/adds ? 1 : 0, *arithmetic);
  } else if (out.scalar_type() == a.scalar_type()) {
    adds ? at::addmm_out(result, result, a, b) : at::mm_out(result, a, b);
  } else {
    adds ? at::addmm_out(result, result, a, b, out.scalar_type())
         : at::mm_out(result, a, b, out.scalar_type());
  }
}

void biased_product_out(const Tensor& out,
                        const Tensor& bias,
                        const Tensor& a,
                        const Tensor& b,
                        Arithmetic arithmetic) {
  Tensor result = out;
  if (a.scalar_type() != at::kFloat) {
    at::addmm_out(result, bias, a, b);
    return;
  }
  const Operand rows(a), weights(b);
  if (a.size(1) == 0 ||
      !fused_float32_product_out(out, bias.contiguous(), rows, weights, arithmetic)) {
    result.copy_(bias.expand_as(out));
    if (a.size(1) > 0) {
      float32_product_out(out, rows, weights, a.size(1), /*beta=*/1, arithmetic);
    }
  }
}

}  // namespace lltm::cuda
