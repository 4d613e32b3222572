// What is found out once for each CUDA context.
#pragma once

#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// Remembers a T for each context that it was found in, for the life of the process. What could not
/// be found is asked for again: a module that was out of memory when it was to be loaded may load
/// later. Contexts are known by the number that the driver never gives twice.
template <typename T>
class PerContext {
 public:
  /// *value = what is known of `context`, or what query(value) finds, whose error is returned: {}
  /// is none.
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
      // Two threads may both have found it; then it stands here twice.
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
