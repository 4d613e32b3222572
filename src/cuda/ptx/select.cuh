// Selection without a branch.
#pragma once

#include "device_function.h"

namespace lltm::cuda {

// condition ? yes : no. Where a warp exchanges or computes what is selected, the compiler makes a
// branch of the operator ?:, on both sides of which it then repeats the rest.
LLTM_DEVICE float select(bool condition, float yes, float no) {
  float selected;
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "selp.f32 %0, %2, %3, p;\n"
      "}\n"
      : "=f"(selected)
      : "r"(static_cast<int>(condition)), "f"(yes), "f"(no));
  return selected;
}

}  // namespace lltm::cuda
