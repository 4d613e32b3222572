#include "few_rows.cuh"
#include "few_rows_forward.cuh"

namespace lltm::cuda {

cudaError_t launch_few_rows_forward(const FusedForwardParams& params,
                                    int columns,
                                    cudaStream_t stream) {
  return launch_for_rows(params.batch, [&](auto rows) {
    return launch_few_rows_forward_of<rows>(params, columns, stream);
  });
}

}  // namespace lltm::cuda
