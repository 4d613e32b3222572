// The trained model, served in three ways behind one interface, and the files of tensors that the
// programs exchange with Python. The sources that use this header compile in a fraction of the time
// that PyTorch's headers for files take.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace digits {

/// A model that was trained and saved in Python. It may be called by several threads at once.
class Model {
 public:
  virtual ~Model() = default;

  /// The logits (N, 10), on the CPU, of images (N, 8, 8), float32, on the model's device. The copy
  /// to the CPU waits for the device, so timing this function is correct on every device.
  virtual at::Tensor logits(const at::Tensor& images) = 0;
};

/// Loads a model.
///
/// @param way      "script": a TorchScript archive; "package": an AOTInductor package; or "typed":
///                 a dictionary of weights, for calls of this library's C++ API
/// @param path     the file
/// @param device   where the model runs. A package runs on the type of device that it was compiled
///                 for, which must be this one
/// @param runners  how many calls of a package run at once; others wait
/// @throws std::invalid_argument if there is no such way
/// @throws std::exception if the file cannot be loaded
std::unique_ptr<Model> load(const std::string& way,
                            const std::string& path,
                            const c10::Device& device,
                            size_t runners = 1);

/// Reads what torch.save has written: tensors, and tuples and dictionaries of them.
c10::IValue read(const std::string& path);

/// Writes a file for torch.load.
void write(const std::string& path, const c10::IValue& value);

/// A tensor of a dictionary of tensors.
at::Tensor tensor(const c10::IValue& dictionary, const char* key);

/// Runs a program. Returns its exit status: 1 after an exception, whose message is printed.
int run_program(const char* name, const std::function<void()>& program);

}  // namespace digits
