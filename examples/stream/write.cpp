// Completes lines with a model that was trained and exported in Python, without Python.
//
//   write PACKAGE COUNT TEMPERATURE SEED DEVICE LINE [LINE ...]
//
// PACKAGE is an AOTInductor package of a model (byte, h, c) -> (logits, h, c). The model reads a
// LINE, which is written to standard output, and then the bytes that complete it, as they are
// generated: until the line ends, or COUNT bytes. They are sampled from
// softmax(logits / TEMPERATURE), or the likeliest if TEMPERATURE is 0. The state is carried along,
// so every byte takes the same time; the model itself resets it where a file or a line begins.

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
constexpr uint8_t kEndOfLine = '\n';

// A text, with the state of the model that reads and writes it.
class Stream {
 public:
  Stream(const std::string& package, const c10::Device& device)
      : loader_(package), device_(device) {
    const int64_t hidden_size = std::stoll(loader_.get_metadata().at("hidden_size"));
    h_ = at::zeros({1, 1, hidden_size}, device);
    c_ = at::zeros_like(h_);
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

void write(uint8_t byte) {
  std::putchar(byte);
  std::fflush(stdout);
}

// Returns the number of bytes that complete the line.
int64_t complete(Stream& stream, const std::string& line, int64_t count, double temperature) {
  stream.read(kBeginOfFile);
  for (const char byte : line) {
    stream.read(static_cast<uint8_t>(byte));
    write(static_cast<uint8_t>(byte));
  }
  int64_t written = 0;
  for (; written < count; ++written) {
    const uint8_t byte = stream.draw_next(temperature);
    if (byte == kEndOfLine) {
      break;
    }
    write(byte);
    stream.read(byte);
  }
  write(kEndOfLine);
  return written;
}

void run(const std::string& package,
         int64_t count,
         double temperature,
         uint64_t seed,
         const c10::Device& device,
         const std::vector<std::string>& lines) {
  lltm::check_registered();
  const c10::InferenceMode no_gradients;
  at::manual_seed(seed);
  Stream stream(package, device);
  const auto start = std::chrono::steady_clock::now();
  size_t bytes = 0;
  for (const std::string& line : lines) {
    bytes += line.size() + complete(stream, line, count, temperature);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr,
               "%zu bytes at %.0f bytes per second in C++, on %s\n",
               bytes,
               static_cast<double>(bytes) / elapsed.count(),
               device.str().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(
        stderr, "usage: %s PACKAGE COUNT TEMPERATURE SEED DEVICE LINE [LINE ...]\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1],
        std::stoll(argv[2]),
        std::stod(argv[3]),
        std::stoull(argv[4]),
        c10::Device(argv[5]),
        {argv + 6, argv + argc});
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
