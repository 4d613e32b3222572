// For the wheel, so that it runs where PyTorch does, with glibc 2.28 and the libstdc++ of GCC 8,
// although it is compiled on a newer system, whose headers use what those do not have. The library
// has it instead.

#include <sstream>
#include <string>

// Since glibc 2.32: GCC's reference counts are atomic unless this says that the process has one
// thread. It never does.
extern "C" {
[[gnu::visibility("hidden")]] extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// Since GCC 11, in C++20.
template std::string std::stringbuf::str() const&;
