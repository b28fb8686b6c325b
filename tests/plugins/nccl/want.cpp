// SPDX-License-Identifier: Apache-2.0
#include "want.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace {
thread_local uint64_t failing = 0;  // so many from now on; 0: none
}  // namespace

// Those of the whole program.
void* operator new(size_t size) {
  const bool fails = failing > 0 && --failing == 0;
  void* const data = fails ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace backplane::test {

bool lacks_memory(uint64_t number, const std::function<void()>& call) {
  failing = number;
  try {
    call();
  } catch (const std::bad_alloc&) {
    // That is one way to say so.
  }
  return std::exchange(failing, 0) == 0;
}

}  // namespace backplane::test
