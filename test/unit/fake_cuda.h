// A CUDA runtime and driver without a GPU, for the host code of a launch. They accept what the
// documentation of TMA and of launches allows, and record violations of it. A test says what the
// device and the code of the kernels are, and can make one of their calls fail.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lltm::test {

/// What the assembler says of a kernel: the threads of its launch bounds, the registers of a
/// thread, and bytes of shared memory.
struct KernelCode {
  int threads, registers, static_bytes;
};

struct FakeCuda {
  int launches = 0, maps = 0;
  /// The shared memory that the last launch asked for.
  unsigned shared_bytes = 0;
  std::vector<std::string> violations{};
  /// The ID of the current context.
  unsigned long long context = 1;
  /// Of the code of all kernels, and what the device has. They stay the same in a context.
  int ptx_version = 90;
  int most_threads = 1024;
  int shared_bytes_a_block = 227 * 1024;
  /// Of the current context; zero: the driver cannot tell.
  unsigned multiprocessors = 0;
  unsigned largest_cluster = 16;
  bool has_wgmma = true;
  /// By name, as tools/kernels.py writes it; null: not known.
  const std::map<std::string, KernelCode>* code = nullptr;
  /// This many calls succeed, and the next one fails. If negative, none fails.
  int calls_before_failure = -1;
  bool has_failed = false;
};
/// The state of all calls since it was last cleared.
FakeCuda& fake_cuda();

}  // namespace lltm::test
