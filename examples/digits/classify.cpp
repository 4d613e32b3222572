// Classifies images with a model that was trained in Python, without Python.
//
//   classify WAY MODEL IMAGES LOGITS [DEVICE]
//
// WAY is script, package or typed, and MODEL the file that it needs: a TorchScript archive, an
// AOTInductor package, or a dictionary of weights written by torch.save. IMAGES is a dictionary of
// tensors written by torch.save: "images" (N, 8, 8) and "labels" (N). LOGITS is written for
// torch.load: a pair of tensors (N, 10), of all images in one batch and of each image alone. DEVICE
// defaults to cpu.

#include "model.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace {

void run(const std::string& way,
         const std::string& model_path,
         const std::string& images_path,
         const std::string& logits_path,
         const c10::Device& device) {
  const c10::InferenceMode no_gradients;
  const std::unique_ptr<digits::Model> model = digits::load(way, model_path, device);
  const c10::IValue examples = digits::read(images_path);
  const at::Tensor images = digits::tensor(examples, "images").to(device);
  const at::Tensor labels = digits::tensor(examples, "labels");

  const at::Tensor at_once = model->logits(images);
  std::vector<at::Tensor> one_by_one;
  for (const at::Tensor& image : images.split(1)) {
    one_by_one.push_back(model->logits(image));
  }

  const int64_t count = images.size(0);
  const int64_t right = at_once.argmax(/*dim=*/1).eq(labels).sum().item<int64_t>();
  std::printf("%s: %lld of %lld images read right (%.2f %%), on %s\n",
              way.c_str(),
              static_cast<long long>(right),
              static_cast<long long>(count),
              100.0 * static_cast<double>(right) / static_cast<double>(count),
              device.str().c_str());
  digits::write(logits_path, std::make_tuple(at_once, at::cat(one_by_one)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr, "usage: %s WAY MODEL IMAGES LOGITS [DEVICE]\n", argv[0]);
    return 2;
  }
  return digits::run_program(argv[0], [&] {
    run(argv[1], argv[2], argv[3], argv[4], c10::Device(argc == 6 ? argv[5] : "cpu"));
  });
}
