// Uninitialized memory for the duration of a call, usable from any thread.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <cstdint>

namespace lltm::cpu {

template <typename Element>
class Scratch {
 public:
  explicit Scratch(int64_t size)
      : memory_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(size) * sizeof(Element))) {}

  Element* data() const { return static_cast<Element*>(memory_.get()); }

 private:
  c10::DataPtr memory_;
};

}  // namespace lltm::cpu
