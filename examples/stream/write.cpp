// Writes text with a model that was trained and exported in Python, without Python.
//
//   write PACKAGE LINE COUNT TEMPERATURE SEED [DEVICE]
//
// PACKAGE is an AOTInductor package of a model (byte, h, c) -> (logits, h, c). The model reads
// LINE, and COUNT bytes that continue it are written to standard output as they are generated. They
// are sampled from softmax(logits / TEMPERATURE), or the likeliest if TEMPERATURE is 0. The state
// is carried along, so every byte takes the same time; the model itself resets it at the beginning
// of each line. DEVICE defaults to cpu.

#include <lltm/registered.h>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr uint8_t kBeginOfFile = 0;

// A text, with the state of the model that reads and writes it.
class Stream {
 public:
  Stream(const std::string& package, const c10::Device& device)
      : loader_(package), device_(device) {
    const int64_t hidden_size = std::stoll(loader_.get_metadata().at("hidden_size"));
    h_ = at::zeros({1, 1, hidden_size}, device);
    c_ = at::zeros_like(h_);
    read(kBeginOfFile);
  }

  // Advances the state by one byte.
  void read(uint8_t byte) {
    const at::Tensor input = at::full({1}, byte, at::TensorOptions(at::kLong).device(device_));
    std::vector<at::Tensor> results = loader_.run({input, h_, c_});
    logits_ = std::move(results[0]);
    h_ = std::move(results[1]);
    c_ = std::move(results[2]);
  }

  uint8_t draw_next(double temperature) const {
    const at::Tensor next =
        temperature == 0 ? logits_.argmax() : logits_.div(temperature).softmax(0).multinomial(1);
    return static_cast<uint8_t>(next.item<int64_t>());
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
  c10::Device device_;
  at::Tensor logits_, h_, c_;
};

void run(const std::string& package,
         const std::string& line,
         int64_t count,
         double temperature,
         uint64_t seed,
         const c10::Device& device) {
  lltm::check_registered();
  const c10::InferenceMode no_gradients;
  at::manual_seed(seed);
  Stream stream(package, device);
  for (const char byte : line) {
    stream.read(static_cast<uint8_t>(byte));
  }
  const auto start = std::chrono::steady_clock::now();
  for (int64_t written = 0; written < count; ++written) {
    const uint8_t byte = stream.draw_next(temperature);
    std::putchar(byte);
    std::fflush(stdout);
    stream.read(byte);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr,
               "\n%lld bytes at %.0f bytes per second in C++, on %s\n",
               static_cast<long long>(count),
               static_cast<double>(count) / elapsed.count(),
               device.str().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::fprintf(stderr, "usage: %s PACKAGE LINE COUNT TEMPERATURE SEED [DEVICE]\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1],
        argv[2],
        std::stoll(argv[3]),
        std::stod(argv[4]),
        std::stoull(argv[5]),
        c10::Device(argc == 7 ? argv[6] : "cpu"));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
