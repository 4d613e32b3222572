// Several neighboring elements of a row, read and written at once.
#pragma once

#include "../ptx/device_function.h"

#include <type_traits>

namespace lltm::cuda {

template <typename Element, int kCount>
struct alignas(kCount * sizeof(Element)) Vector {
  Element values[kCount];
};

// Vectors are read and written as words: elements that are classes would be assigned one by one.
template <int kBytes>
using Word = std::conditional_t<
    kBytes == 2,
    unsigned short,
    std::conditional_t<kBytes == 4, unsigned, std::conditional_t<kBytes == 8, uint2, uint4>>>;
template <typename Element, int kCount>
using WordOf = Word<sizeof(Element) * kCount>;
template <int kCount, typename Element>
LLTM_DEVICE Vector<Element, kCount> read_vector(const Element* from) {
  using Bits = WordOf<Element, kCount>;
  const Bits bits = *reinterpret_cast<const Bits*>(from);
  Vector<Element, kCount> vector;
  memcpy(&vector, &bits, sizeof(bits));
  return vector;
}
template <typename Element, int kCount>
LLTM_DEVICE auto word_of(const Vector<Element, kCount>& vector) {
  WordOf<Element, kCount> bits;
  memcpy(&bits, &vector, sizeof(bits));
  return bits;
}
template <int kCount, typename Element>
LLTM_DEVICE void write_vector(Element* to, const Vector<Element, kCount>& vector) {
  auto bits = word_of(vector);
  *reinterpret_cast<decltype(bits)*>(to) = bits;
}
// Moves the elements from `by` on, less than four, to the front, without an index that the compiler
// does not know.
template <typename Element, int kCount>
LLTM_DEVICE void move_to_front(Element (&values)[kCount], int by) {
#pragma unroll
  for (int less = 2; less > 0; --less) {
    if ((by & less) != 0) {
#pragma unroll
      for (int i = 0; i + less < kCount; ++i) {
        values[i] = values[i + less];
      }
    }
  }
}
LLTM_DEVICE float4 four_of(const float* values) {
  return make_float4(values[0], values[1], values[2], values[3]);
}
template <typename Number>
LLTM_DEVICE void add(Number& to, Number number) {
  to += number;
}
LLTM_DEVICE void add(float4& to, float4 four) {
  to.x += four.x;
  to.y += four.y;
  to.z += four.z;
  to.w += four.w;
}
// Writes to global memory by an instruction that the compiler does not split.
template <int kCount, typename Element>
LLTM_DEVICE void write_global_vector(Element* to, const Vector<Element, kCount>& vector) {
  auto bits = word_of(vector);
  __stcg(reinterpret_cast<decltype(bits)*>(to), bits);
}
// The same, for data that the caches should evict first.
template <int kCount, typename Element>
LLTM_DEVICE void stream_global_vector(Element* to, const Vector<Element, kCount>& vector) {
  auto bits = word_of(vector);
  __stcs(reinterpret_cast<decltype(bits)*>(to), bits);
}

}  // namespace lltm::cuda
