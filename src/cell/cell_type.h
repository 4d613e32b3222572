// The cells by number.
#pragma once

#include <cstddef>

namespace lltm {

enum class CellType { kLltm, kLstm, kGru };
constexpr size_t kCellTypes = 3;

}  // namespace lltm
