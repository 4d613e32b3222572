// A check for programs that run a saved model, and call no function of this library themselves.
//
// Header-only: it neither needs the library at link time, nor keeps it linked.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace lltm {

/// Makes sure that the operators are registered in this process. Call it before loading a
/// TorchScript model or an AOTInductor package: without the library, these fail with an error about
/// a missing schema or an unknown operator.
///
/// @throws c10::Error if the operators are not registered. The message says what to do.
inline void check_registered() {
  TORCH_CHECK(c10::Dispatcher::singleton().findSchema({"lltm::sequence", ""}).has_value(),
              "lltm: the operators are not registered in this process: link lltm::lltm_ops, or set "
              "LD_PRELOAD to liblltm_ops.so");
}

}  // namespace lltm
