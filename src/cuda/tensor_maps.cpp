#include "tensor_maps.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded anyway: linking with it would need it where nothing is launched.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<EncodeTiled>(found)
               : nullptr;
  }();
  return function;
}

}  // namespace

bool describe_rows(CUtensorMap* map,
                   Arithmetic arithmetic,
                   const void* data,
                   int64_t columns,
                   int64_t rows,
                   int64_t gates,
                   int64_t stride,
                   int box_columns,
                   int box_rows,
                   BoxLayout layout) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) {
    return false;
  }
  const bool is_float = arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
  const CUtensorMapDataType type = is_float ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : arithmetic == Arithmetic::kFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const uint64_t bytes = static_cast<uint64_t>(stride) * (is_float ? 4 : 2);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns),
                               static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(gates)};
  const cuuint64_t strides[2] = {bytes, bytes * static_cast<uint64_t>(rows)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(gates)};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(map,
                type,
                gates == 1 ? 2 : 3,
                const_cast<void*>(data),
                sizes,
                strides,
                box,
                steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                layout == BoxLayout::kSwizzled ? CU_TENSOR_MAP_SWIZZLE_128B
                                               : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace lltm::cuda
