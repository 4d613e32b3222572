#include "few_rows.cuh"
#include "few_rows_backward.cuh"

namespace lltm::cuda {

template <typename scalar_t>
cudaError_t launch_few_rows_backward(const BackwardParams<scalar_t>& cell,
                                     const BackwardProductsParams& products,
                                     int split,
                                     cudaStream_t stream) {
  return launch_for_rows(products.batch, [&](auto rows) {
    return launch_few_rows_backward_of<scalar_t, rows>(cell, products, split, stream);
  });
}

template cudaError_t launch_few_rows_backward(const BackwardParams<float>&,
                                              const BackwardProductsParams&,
                                              int,
                                              cudaStream_t);
template cudaError_t launch_few_rows_backward(const BackwardParams<c10::Half>&,
                                              const BackwardProductsParams&,
                                              int,
                                              cudaStream_t);
template cudaError_t launch_few_rows_backward(const BackwardParams<c10::BFloat16>&,
                                              const BackwardProductsParams&,
                                              int,
                                              cudaStream_t);

}  // namespace lltm::cuda
