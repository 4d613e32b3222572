#include "tensor_maps.h"

#include "../problem.h"
#include "driver.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

CUtensorMapDataType type_of(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Arithmetic::kTf32:
      // Rounds on the way to shared memory, as cuBLAS does. wgmma alone would truncate.
      return CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    case Arithmetic::kFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Arithmetic::kBFloat16:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

bool encode_boxes(CUtensorMap* map, const BoxesOf& of) {
  static DriverFunction<decltype(&cuTensorMapEncodeTiled)> encode_tiled("cuTensorMapEncodeTiled");
  const auto encode = encode_tiled.get();
  uint64_t context = 0;  // the driver requires a current context
  if (encode == nullptr || current_context(&context) != cudaSuccess) {
    return false;
  }
  const CUtensorMapDataType type = type_of(of.arithmetic);
  const uint64_t bytes =
      static_cast<uint64_t>(of.matrix.stride) * static_cast<uint64_t>(element_size(of.arithmetic));
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
                const_cast<void*>(of.matrix.data),
                sizes,
                strides,
                box,
                steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                of.box_columns * element_size(of.arithmetic) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                                    : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool describe(CUtensorMap* map, const BoxesOf& boxes) {
  if (boxes.matrix.data == nullptr || boxes.columns == 0) {
    return true;
  }
  // The steps of a sequence use the same addresses again, and encoding four maps takes as long as
  // the checks of a whole call. A map depends only on its description.
  struct Known {
    BoxesOf boxes;
    CUtensorMap map;
  };
  constexpr int kKnownBits = 5;
  thread_local Known all_known[1 << kKnownBits];
  const uint64_t mixed =
      (reinterpret_cast<uint64_t>(boxes.matrix.data) / 16 + static_cast<uint64_t>(boxes.box_rows)) *
      0x9e3779b97f4a7c15;
  Known& known = all_known[mixed >> (64 - kKnownBits)];
  if (known.boxes != boxes) {
    known.boxes = {};
    if (!encode_boxes(&known.map, boxes)) {
      return false;
    }
    known.boxes = boxes;
  }
  *map = known.map;
  return true;
}

bool describe_forward(ForwardMaps* maps,
                      const ForwardProblem& p,
                      Arithmetic arithmetic,
                      int rows,
                      int hidden,
                      int gates) {
  const int size = element_size(arithmetic), chunk_k = chunk_columns(arithmetic);
  const int64_t h = p.state_size;
  const int64_t x = p.input_columns();
  const Matrix weights_input = p.weights_input.from(-p.input_lead, size);
  return describe(&maps->old_h, {arithmetic, p.old_h, p.batch, h, rows, chunk_k}) &&
         describe(&maps->weights_h, {arithmetic, p.weights, h, h, hidden, chunk_k, gates}) &&
         describe(&maps->input, {arithmetic, p.input, p.batch, x, rows, chunk_k}) &&
         describe(&maps->weights_input, {arithmetic, weights_input, h, x, hidden, chunk_k, gates});
}

}  // namespace lltm::cuda
