// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <link.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace {

struct Counted {
  uintptr_t begin = 0;  // the code whose allocations are counted
  uintptr_t end = 0;
  uint64_t number = 0;
  uint64_t failing = 0;
};
thread_local Counted counted;

int find_plugin(dl_phdr_info* info, size_t, void*) {
  if (std::strstr(info->dlpi_name, "backplane_nccl.so") == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    counted.begin = info->dlpi_addr + header.p_vaddr;
    counted.end = counted.begin + header.p_memsz;
  }
  return 1;
}

void* allocate(size_t size, const void* caller) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address >= counted.begin && address < counted.end && ++counted.number == counted.failing) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

// Those of the whole program, and of the libraries that it loads.
void* operator new(size_t size) {
  void* const data = allocate(size, __builtin_return_address(0));
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size, __builtin_return_address(0)); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { std::free(data); }

namespace backplane::test {

void fail_allocation(uint64_t number) {
  counted.failing = number;
  dl_iterate_phdr(find_plugin, nullptr);
}

uint64_t end_allocations() { return std::exchange(counted, {}).number; }

}  // namespace backplane::test
