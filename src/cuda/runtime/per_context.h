// A cache of values per CUDA context.
#pragma once

#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// Remembers a T for each context, for the life of the process. Failures are not remembered: a
/// module that could not be loaded for lack of memory may load later. Contexts are identified by
/// their ID, which the driver never reuses.
template <typename T>
class PerContext {
 public:
  /// Sets *value to what is known for `context`, or else to what query(value) finds. Returns the
  /// error of the query; {} means success.
  template <typename Query>
  auto get(uint64_t context, T* value, const Query& query) -> decltype(query(value)) {
    for (const Entry* e = entries_.load(std::memory_order_acquire); e != nullptr; e = e->next) {
      if (e->context == context) {
        *value = e->value;
        return {};
      }
    }
    const auto error = query(value);
    if (error == decltype(error){}) {
      // Two threads may both add an entry for the same context, which is harmless.
      auto* const entry = new Entry{context, *value, entries_.load(std::memory_order_relaxed)};
      while (!entries_.compare_exchange_weak(
          entry->next, entry, std::memory_order_release, std::memory_order_relaxed)) {
      }
    }
    return error;
  }

 private:
  struct Entry {
    uint64_t context;
    T value;
    Entry* next;
  };
  std::atomic<Entry*> entries_{nullptr};
};

}  // namespace lltm::cuda
