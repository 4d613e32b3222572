#include "backward_products.cuh"

namespace lltm::cuda {

template cudaError_t launch_backward_products<Arithmetic::kFloat32>(const BackwardProductsParams&,
                                                                    ProductTile,
                                                                    int,
                                                                    cudaStream_t);

}  // namespace lltm::cuda
