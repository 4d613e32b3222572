#include "tensor_maps.h"

#include "driver.h"

namespace lltm::cuda {
namespace {

bool is_float(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
}

int size_of(Arithmetic arithmetic) {
  return is_float(arithmetic) ? 4 : 2;
}

struct Description {
  Arithmetic arithmetic;
  BoxLayout layout;
  const void* data;
  int64_t columns, rows, gates, stride;
  int box_columns, box_rows;

  bool operator==(const Description&) const = default;
};

bool describe(CUtensorMap* map, const Description& of) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr || bind_context() != cudaSuccess) {
    return false;
  }
  const CUtensorMapDataType type = is_float(of.arithmetic) ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : of.arithmetic == Arithmetic::kFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const uint64_t bytes =
      static_cast<uint64_t>(of.stride) * static_cast<uint64_t>(size_of(of.arithmetic));
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(of.columns),
                               static_cast<cuuint64_t>(of.rows),
                               static_cast<cuuint64_t>(of.gates)};
  const cuuint64_t strides[2] = {bytes, bytes * static_cast<uint64_t>(of.rows)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(of.box_columns),
                             static_cast<cuuint32_t>(of.box_rows),
                             static_cast<cuuint32_t>(of.gates)};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(map,
                type,
                of.gates == 1 ? 2 : 3,
                const_cast<void*>(of.data),
                sizes,
                strides,
                box,
                steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                of.layout == BoxLayout::kSwizzled ? CU_TENSOR_MAP_SWIZZLE_128B
                                                  : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
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
  // The same addresses come back with the steps of a sequence, and four matrices to encode take as
  // long as the checks of a whole call. A map depends on its description alone.
  struct Known {
    Description description;
    CUtensorMap map;
  };
  constexpr int kKnownBits = 5;
  thread_local Known all_known[1 << kKnownBits];
  const Description description{
      arithmetic, layout, data, columns, rows, gates, stride, box_columns, box_rows};
  const uint64_t mixed = (reinterpret_cast<uint64_t>(data) / 16 + static_cast<uint64_t>(box_rows)) *
                         0x9e3779b97f4a7c15;
  Known& known = all_known[mixed >> (64 - kKnownBits)];
  if (known.description != description) {
    known.description = {};
    if (!describe(&known.map, description)) {
      return false;
    }
    known.description = description;
  }
  *map = known.map;
  return true;
}

bool describe_forward(ForwardMaps* maps,
                      Arithmetic arithmetic,
                      const FusedForwardParams& params,
                      int chunk_k,
                      int rows,
                      int hidden) {
  const int64_t state = params.state_size, features = params.input_features;
  const int size = size_of(arithmetic);
  const auto describe = [&](CUtensorMap* map, const void* data, int64_t columns, int64_t stride) {
    return describe_rows(map, arithmetic, data, columns, params.batch, 1, stride, chunk_k, rows);
  };
  const auto describe_gates = [&](CUtensorMap* map, int64_t first_column, int64_t columns) {
    return describe_rows(map,
                         arithmetic,
                         static_cast<const char*>(params.weights) + first_column * size,
                         columns,
                         state,
                         3,
                         params.weights_stride,
                         chunk_k,
                         hidden);
  };
  return describe(&maps->old_h, params.old_h, state, params.old_h_stride) &&
         describe(&maps->input, params.input, features, params.input_stride) &&
         describe_gates(&maps->weights_h, 0, state) &&
         describe_gates(&maps->weights_input, state, features);
}

}  // namespace lltm::cuda
