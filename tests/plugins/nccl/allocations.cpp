// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "double/stream.hpp"

namespace {

// The executable segment of a library.
struct Code {
  const char* name;
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  bool has(const void* address) const {
    const auto number = reinterpret_cast<uintptr_t>(address);
    return number >= begin && number < end;
  }
};
Code plugin{"backplane_nccl.so"};
Code standard{"libstdc++.so"};  // allocates for its callers

struct Counted {
  bool is_on = false;
  uint64_t number = 0;
  uint64_t failing = 0;
};
thread_local Counted counted;

// A thread of the plugin is one that is not the program's and has allocated in the plugin's code.
thread_local bool is_of_program = false;
thread_local bool is_of_plugin = false;
std::atomic<bool> counts_threads = false;
std::atomic<uint64_t> thread_allocations = 0;
std::atomic<uint64_t> first_failing = 0;
std::atomic<uint64_t> failing_count = 0;

int find_code(dl_phdr_info* info, size_t, void*) {
  for (Code* const code : {&plugin, &standard}) {
    if (std::strstr(info->dlpi_name, code->name) == nullptr) continue;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = info->dlpi_phdr[i];
      if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
      code->begin = info->dlpi_addr + header.p_vaddr;
      code->end = code->begin + header.p_memsz;
    }
  }
  return 0;
}

bool fails(const void* caller) {
  if (counted.is_on) return plugin.has(caller) && ++counted.number == counted.failing;
  if (!counts_threads || is_of_program) return false;
  is_of_plugin |= plugin.has(caller);
  if (!plugin.has(caller) && !(is_of_plugin && standard.has(caller))) return false;
  if (backplane::nccl_double::current_device() != 0) return false;
  const uint64_t number = ++thread_allocations;
  return number >= first_failing && number - first_failing < failing_count;
}

void* allocate(size_t size, const void* caller) noexcept {
  if (fails(caller)) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

// Replace the operators of the program and of the libraries that it loads.
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
  dl_iterate_phdr(find_code, nullptr);
  counted = {true, 0, number};
}

uint64_t end_allocations() { return std::exchange(counted, {}).number; }

ProgramThread::ProgramThread() { is_of_program = true; }
ProgramThread::~ProgramThread() { is_of_program = false; }

void fail_thread_allocations(uint64_t number, uint64_t count) {
  dl_iterate_phdr(find_code, nullptr);
  thread_allocations = 0;
  first_failing = number;
  failing_count = count;
  counts_threads = true;
}

uint64_t end_thread_allocations() {
  counts_threads = false;
  return thread_allocations;
}

}  // namespace backplane::test
