#include "backward_products.cuh"

namespace lltm::cuda {

template cudaError_t launch_backward_products<Arithmetic::kBFloat16>(const BackwardProductsParams&,
                                                                     ProductTile,
                                                                     int,
                                                                     cudaStream_t);

}  // namespace lltm::cuda
