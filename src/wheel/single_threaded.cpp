// For the wheel, so that it runs where PyTorch does, from glibc 2.28 on, although it is compiled on
// a newer system.
//
// GCC's reference counts are atomic unless this variable says that the process has one thread.
// glibc has it since 2.32. The library has one of its own, which never says so.

extern "C" {
[[gnu::visibility("hidden")]] extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}
