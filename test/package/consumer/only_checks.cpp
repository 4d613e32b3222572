// Asks for the operators without linking the library, as a program that serves saved models may do.
#include <lltm/registered.h>

#include <cstdio>

int main() {
  try {
    lltm::check_registered();
  } catch (const c10::Error& error) {
    std::printf("%s\n", error.what_without_backtrace());
    return 1;
  }
  std::printf("the operators are registered\n");
  return 0;
}
