// Access to global memory.
#pragma once

#include "device_function.h"

#include <cstdint>

namespace lltm::cuda {

// These load a word, or zeros if it is outside: load_once is for what is read once, and load_again
// for what other warps of the block read, too. The loads are predicated; the compiler would branch.
// Two bytes are loaded to a whole register: to write half of one, it would first be read. Not
// ld.global.nc: the previous kernel may write what is read after the wait for it.
#define LLTM_LOAD_WORD(name, instruction, Word, Register, operands, is_inside, ...) \
  LLTM_DEVICE void name(Word& word, const void* from, bool inside) {                \
    Register to{};                                                                  \
    asm volatile(                                                                   \
        "{\n"                                                                       \
        ".reg .pred inside;\n"                                                      \
        "setp.ne.b32 inside, " is_inside                                            \
        ", 0;\n"                                                                    \
        "@inside " instruction operands                                             \
        ";\n"                                                                       \
        "}\n"                                                                       \
        : __VA_ARGS__                                                               \
        : "l"(from), "r"(static_cast<int>(inside)));                                \
    word = static_cast<Word>(to);                                                   \
  }
#define LLTM_LOAD(name, instruction)                                                           \
  LLTM_LOAD_WORD(name, instruction, unsigned short, unsigned, ".u16 %0, [%1]", "%2", "+r"(to)) \
  LLTM_LOAD_WORD(name, instruction, unsigned, unsigned, ".b32 %0, [%1]", "%2", "+r"(to))       \
  LLTM_LOAD_WORD(                                                                              \
      name, instruction, uint2, uint2, ".v2.b32 {%0, %1}, [%2]", "%3", "+r"(to.x), "+r"(to.y)) \
  LLTM_LOAD_WORD(                                                                              \
      name, instruction, uint4, uint4, ".v4.b32 {%0, %1, %2, %3}, [%4]", "%5", LLTM_FOUR_WORDS)
#define LLTM_FOUR_WORDS "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
LLTM_LOAD(load_once, "ld.global.L1::no_allocate")
LLTM_LOAD(load_again, "ld.global")
#undef LLTM_LOAD
#undef LLTM_FOUR_WORDS
#undef LLTM_LOAD_WORD

// As load_once, for 2 bytes or one into a word, which is not changed until the load is complete.
#define LLTM_LOAD_PART(name, type)                                       \
  LLTM_DEVICE void name(uint32_t& word, const void* from, bool inside) { \
    word = 0;                                                            \
    asm volatile(                                                        \
        "{\n"                                                            \
        ".reg .pred inside;\n"                                           \
        "setp.ne.b32 inside, %2, 0;\n"                                   \
        "@inside ld.global.L1::no_allocate." type                        \
        " %0, [%1];\n"                                                   \
        "}\n"                                                            \
        : "+r"(word)                                                     \
        : "l"(from), "r"(static_cast<int>(inside)));                     \
  }
LLTM_LOAD_PART(load_half_once, "u16")
LLTM_LOAD_PART(load_byte_once, "u8")
#undef LLTM_LOAD_PART

// These store a word, or 2 bytes of one, if it is inside. The stores are predicated.
LLTM_DEVICE void store_word(void* to, uint32_t word, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.ne.b32 inside, %2, 0;\n"
      "@inside st.global.b32 [%0], %1;\n"
      "}\n" ::"l"(to),
      "r"(word),
      "r"(static_cast<int>(inside))
      : "memory");
}
LLTM_DEVICE void store_low_half(void* to, uint32_t word, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.ne.b32 inside, %2, 0;\n"
      "@inside st.global.u16 [%0], %1;\n"
      "}\n" ::"l"(to),
      "r"(word),
      "r"(static_cast<int>(inside))
      : "memory");
}

LLTM_DEVICE void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(address));
}

}  // namespace lltm::cuda
