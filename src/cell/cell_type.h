// Which cell, for code that does not depend on its formula.
#pragma once

#include <cstddef>

namespace lltm {

enum class CellType { kLltm, kLstm };
constexpr size_t kCellTypes = 2;

}  // namespace lltm
