// Finds the instance of a kernel in the table of what it is compiled for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

namespace lltm::cuda {

/// Returns launch(entry) for the entry of the table that equals `key`, as a constant that can be a
/// template argument, or an error if there is none.
template <const auto& kTable, typename Key, typename Launch>
cudaError_t dispatch(const Key& key, const Launch& launch) {
  using Entry = std::remove_cvref_t<decltype(kTable[0])>;
  cudaError_t error = cudaErrorInvalidValue;
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    ((kTable[kIndices] == key &&
      (error = launch(std::integral_constant<Entry, kTable[kIndices]>()), true)) ||
     ...);
  }(std::make_index_sequence<std::size(kTable)>());
  return error;
}

}  // namespace lltm::cuda
