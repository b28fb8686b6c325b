// SPDX-License-Identifier: Apache-2.0
#include "support/failing_allocation.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace {
thread_local uint64_t failing = 0;  // the allocation that fails, counted from now on; 0: none
}  // namespace

// Replace the operators of the whole program.
void* operator new(size_t size) {
  const bool fails = failing > 0 && --failing == 0;
  void* const data = fails ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size == 0 ? 1 : size); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace backplane::test {

bool with_failing_allocation(uint64_t number, const std::function<void()>& call) {
  failing = number;
  try {
    call();
  } catch (const std::bad_alloc&) {
    // Expected, unless `call` reports it itself.
  }
  return std::exchange(failing, 0) == 0;
}

}  // namespace backplane::test
