// Serves a model that was trained and scripted in Python, without Python.
//
//   classify MODEL IMAGES PREDICTIONS [DEVICE]
//
// MODEL is a TorchScript archive. IMAGES is a dictionary of tensors written by torch.save: "images"
// (N, 8, 8) and "labels" (N). PREDICTIONS is written for torch.load: a pair of tensors (N), int64,
// with the digits predicted for all images in one batch and for each image alone. DEVICE defaults
// to cpu.

#include <lltm/registered.h>

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <ios>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr double kSecondsPerMeasurement = 1.0;

c10::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
}

void write(const std::string& path, const c10::IValue& value) {
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
    throw std::runtime_error("cannot write " + path);
  }
}

at::Tensor tensor(const c10::IValue& dictionary, const char* key) {
  return dictionary.toGenericDict().at(key).toTensor();
}

// The predicted digits, on the CPU. The copy waits for the device, so timing this function is
// correct on every device.
at::Tensor predict(torch::jit::Module& model, const at::Tensor& images) {
  return model.forward({images}).toTensor().argmax(/*dim=*/1).cpu();
}

// The predicted digits, computed in batches of this size.
at::Tensor predict_in_batches(torch::jit::Module& model, const at::Tensor& images, int64_t batch) {
  std::vector<at::Tensor> predicted;
  for (const at::Tensor& part : images.split(batch)) {
    predicted.push_back(predict(model, part));
  }
  return at::cat(predicted);
}

double images_per_second(torch::jit::Module& model, const at::Tensor& images, int64_t batch) {
  using Clock = std::chrono::steady_clock;
  const std::vector<at::Tensor> parts = images.split(batch);
  const auto start = Clock::now();
  std::chrono::duration<double> elapsed{};
  int64_t classified = 0;
  for (size_t part = 0; elapsed.count() < kSecondsPerMeasurement;
       part = (part + 1) % parts.size()) {
    predict(model, parts[part]);
    classified += parts[part].size(0);
    elapsed = Clock::now() - start;
  }
  return static_cast<double>(classified) / elapsed.count();
}

void run(const std::string& model_path,
         const std::string& images_path,
         const std::string& predictions_path,
         const c10::Device& device) {
  lltm::check_registered();
  const c10::InferenceMode no_gradients;
  torch::jit::Module model = torch::jit::load(model_path, device);
  model.eval();

  const c10::IValue examples = read(images_path);
  const at::Tensor images = tensor(examples, "images").to(device);
  const at::Tensor labels = tensor(examples, "labels");
  const int64_t count = images.size(0);

  // These first calls are also the warm-up: TorchScript optimizes a model during its first runs.
  const at::Tensor single = predict_in_batches(model, images, 1);
  const at::Tensor whole = predict_in_batches(model, images, count);

  const int64_t right = whole.eq(labels).sum().item<int64_t>();
  std::printf("accuracy in C++: %.2f %% (%lld of %lld held-out images, on %s)\n",
              100.0 * static_cast<double>(right) / static_cast<double>(count),
              static_cast<long long>(right),
              static_cast<long long>(count),
              device.str().c_str());
  for (const int64_t batch : {int64_t{1}, count}) {
    std::printf("batch %-4lld %10.0f images per second\n",
                static_cast<long long>(batch),
                images_per_second(model, images, batch));
  }

  write(predictions_path, std::make_tuple(whole, single));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL IMAGES PREDICTIONS [DEVICE]\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3], c10::Device(argc == 5 ? argv[4] : "cpu"));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
