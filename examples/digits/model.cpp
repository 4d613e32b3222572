#include "model.h"

#include <lltm/lltm.h>
#include <lltm/registered.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <ios>
#include <iterator>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace digits {
namespace {

// The interpreter of TorchScript runs the model.
class ScriptedModel : public Model {
 public:
  ScriptedModel(const std::string& path, const c10::Device& device)
      : module_(torch::jit::load(path, device)) {
    module_.eval();
  }

  at::Tensor logits(const at::Tensor& images) override {
    return module_.forward({images}).toTensor().cpu();
  }

 private:
  torch::jit::Module module_;
};

// Machine code runs the model. It calls the operators, but does not contain them.
class PackagedModel : public Model {
 public:
  PackagedModel(const std::string& path, const c10::Device& device, size_t runners)
      : loader_(path, "model", /*run_single_threaded=*/false, runners, device.index()) {
    const std::string compiled_for = loader_.get_metadata().at("AOTI_DEVICE_KEY");
    if (compiled_for != c10::DeviceTypeName(device.type(), /*lower_case=*/true)) {
      throw std::runtime_error(path + " was compiled for " + compiled_for + ", not for " +
                               device.str());
    }
  }

  at::Tensor logits(const at::Tensor& images) override { return loader_.run({images})[0].cpu(); }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
};

// This program contains the model, and reads only its weights.
class TypedModel : public Model {
 public:
  TypedModel(const std::string& path, const c10::Device& device) {
    const c10::IValue weights = read(path);
    const auto parameter = [&](const char* name) { return tensor(weights, name).to(device); };
    weight_ih_ = parameter("rnn.weight_ih_l0");
    weight_hh_ = parameter("rnn.weight_hh_l0");
    bias_ih_ = parameter("rnn.bias_ih_l0");
    bias_hh_ = parameter("rnn.bias_hh_l0");
    is_gru_ = weight_hh_.size(0) == 3 * weight_hh_.size(1);  // an LSTM has four gates
    if (!is_gru_) {
      bias_ih_ += bias_hh_;
    }
    readout_weight_ = parameter("readout.weight");
    readout_bias_ = parameter("readout.bias");
  }

  at::Tensor logits(const at::Tensor& images) override {
    const at::Tensor rows = (images / 8 - 1).transpose(0, 1);  // steps, batch, pixels
    return at::linear(last_state(rows), readout_weight_, readout_bias_).cpu();
  }

 private:
  at::Tensor last_state(const at::Tensor& rows) const {
    if (is_gru_) {
      return std::get<1>(lltm::gru(rows, weight_ih_, weight_hh_, bias_ih_, bias_hh_));
    }
    return std::get<1>(lltm::lstm(rows, weight_ih_, weight_hh_, bias_ih_));
  }

  at::Tensor weight_ih_, weight_hh_, bias_ih_, bias_hh_, readout_weight_, readout_bias_;
  bool is_gru_ = false;
};

}  // namespace

std::unique_ptr<Model> load(const std::string& way,
                            const std::string& path,
                            const c10::Device& device,
                            size_t runners) {
  lltm::check_registered();
  if (way == "script") {
    return std::make_unique<ScriptedModel>(path, device);
  }
  if (way == "package") {
    return std::make_unique<PackagedModel>(path, device, runners);
  }
  if (way == "typed") {
    return std::make_unique<TypedModel>(path, device);
  }
  throw std::invalid_argument("expected script, package or typed, got " + way);
}

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

int run_program(const char* name, const std::function<void()>& program) {
  try {
    program();
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
  return 0;
}

}  // namespace digits
