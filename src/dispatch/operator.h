// An operator as the rest of the library sees it: its tensors are one struct (arguments.h). The
// dispatcher takes the arguments of the schema one by one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/CompileTimeFunctionPointer.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

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

  /// What to register as an implementation of the operator.
  template <Results (*function)(const Arguments&, Rest...)>
  static constexpr auto kernel() {
    constexpr auto* unpacked = &Unpacked<Tensors>::template call<function>;
    return c10::CompileTimeFunctionPointer<Function, unpacked>();
  }

  static const c10::FunctionSchema& schema() { return handle().schema(); }

  /// What `property` says of the names of the tensors, in their order.
  template <auto property>
  static const auto& by_name() {
    static const auto values = [] {
      std::array<decltype(property(std::string_view())), kTensors> found;
      for (size_t i = 0; i < kTensors; ++i) {
        found[i] = property(schema().arguments()[i].name());
      }
      return found;
    }();
    return values;
  }

 private:
  static const c10::TypedOperatorHandle<Function>& handle() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Self::kName, "").template typed<Function>();
    return handle;
  }
};

}  // namespace lltm
