// Remembers the last choices of a thread: a choice takes a microsecond or more, and a program keeps
// calling with the same few sizes.
#pragma once

#include "choice.h"
#include "facts.h"

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

namespace lltm::cuda {

/// Returns choose(shape, device, selection), which must depend on its arguments only. The memory of
/// the selected name must outlive the thread, as that of a candidate's name does.
template <auto choose, typename Shape>
auto recent_choice(const Shape& shape, const DeviceFacts& device, const Selection& selection) {
  using Question = std::tuple<Shape, DeviceFacts, Selection>;
  using Choice = decltype(choose(shape, device, selection));
  constexpr int kSlotBits = 4;
  thread_local std::array<std::pair<std::optional<Question>, Choice>, 1 << kSlotBits> entries;
  // Sizes are often multiples of a power of two; the upper bits of the product depend on all bits.
  const auto sizes =
      static_cast<uint64_t>(shape.batch * 7 + shape.input_features * 3 + shape.state_size);
  auto& [answered, choice] = entries[sizes * 0x9E3779B97F4A7C15 >> (64 - kSlotBits)];
  if (const Question question(shape, device, selection); answered != question) {
    choice = choose(shape, device, selection);
    answered = question;
  }
  return choice;
}

}  // namespace lltm::cuda
