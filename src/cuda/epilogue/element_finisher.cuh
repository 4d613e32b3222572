// Finishes a tile of the forward whose sums are in shared memory, one element per thread at a time.
#pragma once

#include "../ptx/device_function.h"

namespace lltm::cuda {

/// Finishes the rows [first_row, first_row + rows) of the tile at (row, column). What an element
/// needs besides its sums is fetched one element ahead, and for the first one before the product.
template <typename Epilogue, int kHidden, int kThreads>
class ElementFinisher {
 public:
  LLTM_DEVICE ElementFinisher(
      const Epilogue& epilogue, int64_t row, int64_t column, int first_row, int rows)
      : epilogue_(epilogue),
        row_(row + first_row),
        column_(column),
        elements_(rows * kHidden),
        element_(static_cast<int>(threadIdx.x)) {}

  LLTM_DEVICE void fetch() {
    fetched_.rows = 0;
    if (element_ < elements_) {
      epilogue_.fetch(fetched_, row_ + element_ / kHidden, column_ + element_ % kHidden);
    }
  }

  /// Called after the first fetch().
  template <typename Sums>
  LLTM_DEVICE void finish(const Sums& sums) {
#pragma unroll 1
    while (element_ < elements_) {
      if (fetched_.rows > 0) {
        float of_element[kSums], z[kSums][1];
        sums.template read<kSums, kHidden>(of_element, element_ / kHidden, element_ % kHidden);
#pragma unroll
        for (int gate = 0; gate < kSums; ++gate) {
          z[gate][0] = of_element[gate];
        }
        epilogue_.finish(fetched_, z);
      }
      element_ += kThreads;
      fetch();
    }
  }

 private:
  static constexpr int kSums = Epilogue::kSumsAnElement;

  const Epilogue epilogue_;
  const int64_t row_, column_;
  const int elements_;
  int element_;
  typename Epilogue::Fetched fetched_;
};

}  // namespace lltm::cuda
