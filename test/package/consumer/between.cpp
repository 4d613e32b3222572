#include <ATen/core/dispatch/Dispatcher.h>

bool has_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchema({name, ""}).has_value();
}
