// Uses no symbol of liblltm_ops.so: if the linker dropped the library, the operators would be
// missing.
#include <cstdio>

bool has_operator(const char* name);

int main() {
  const bool registered = has_operator("lltm::forward") && has_operator("lltm::backward");
  std::printf("the operators are %sregistered\n", registered ? "" : "not ");
  return registered ? 0 : 1;
}
