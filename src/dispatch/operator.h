// An operator as the rest of the library sees it: its tensors are one struct (arguments.h). The
// dispatcher takes the arguments of the schema one by one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/CompileTimeFunctionPointer.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm {

/// The base of each operator's struct (operators.h). Self::kName is the name in the schema, which
/// has the tensors of Arguments, in the order of tensors(), and then arguments of the types Rest.
template <typename Self, typename ItsResults, typename ItsArguments, typename... Rest>
class Operator {
  template <typename Tensors>
  struct Unpacked;
  template <typename... Tensors>
  struct Unpacked<std::tuple<Tensors...>> {
    using Function = ItsResults(Tensors..., Rest...);

    template <auto kernel>
    static ItsResults call(Tensors... tensors, Rest... rest) {
      return kernel(ItsArguments{tensors...}, rest...);
    }
  };
  using Tensors = decltype(std::declval<ItsArguments>().tensors());
  using Function = typename Unpacked<Tensors>::Function;

 public:
  using Arguments = ItsArguments;
  using Results = ItsResults;
  static constexpr size_t kTensors = std::tuple_size_v<Tensors>;

  /// Calls the operator through the dispatcher.
  static Results call(const Arguments& arguments, Rest... rest) {
    return std::apply([&](const auto&... tensors) { return handle().call(tensors..., rest...); },
                      arguments.tensors());
  }

  /// Registers an implementation of the operator.
  template <Results (*function)(const Arguments&, Rest...)>
  static void implement(torch::Library& library) {
    constexpr auto* unpacked = &Unpacked<Tensors>::template call<function>;
    library.impl(Self::kName, c10::CompileTimeFunctionPointer<Function, unpacked>());
  }

  /// What `property` says of the names of the tensors, in their order.
  template <auto property>
  static const auto& by_name() {
    static const auto values = found<property, kTensors>(schema().arguments());
    return values;
  }

  /// The same for the results, of which there is a tuple.
  template <auto property>
  static const auto& by_result_name() {
    static const auto values = found<property, std::tuple_size_v<Results>>(schema().returns());
    return values;
  }

 private:
  template <auto property, size_t count>
  static auto found(const std::vector<c10::Argument>& arguments) {
    std::array<decltype(property(std::string_view())), count> values;
    for (size_t i = 0; i < count; ++i) {
      values[i] = property(arguments[i].name());
    }
    return values;
  }

  static const c10::FunctionSchema& schema() { return handle().schema(); }

  static const c10::TypedOperatorHandle<Function>& handle() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Self::kName, "").template typed<Function>();
    return handle;
  }
};

}  // namespace lltm
