// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace backplane::validate {
namespace {

constexpr uintptr_t kChunk = 64 * 1024;  // bytes; a multiple of every element's size

// Copies the chunk through the kernel, which reports unmapped memory where a load would fault. NULL: not mapped.
const std::byte* copy_chunk(const Region& chunk, std::vector<std::byte>* copy) {
  copy->resize(chunk.end - chunk.begin);
  auto* const source = reinterpret_cast<std::byte*>(chunk.begin);
  const iovec to = {copy->data(), copy->size()};
  const iovec from = {source, copy->size()};
  const ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  if (got == static_cast<ssize_t>(copy->size())) return copy->data();
  // Where the system call is forbidden (some containers), the memory is read directly.
  return got < 0 && (errno == EPERM || errno == ENOSYS) ? source : nullptr;
}

}  // namespace

void read_chunks(const Region& region, bool may_be_freed,
                 const std::function<bool(const std::byte* bytes, const Region& chunk)>& take) {
  std::vector<std::byte> copy;
  for (uintptr_t begin = region.begin; begin < region.end; begin += kChunk) {
    const Region chunk = {begin, std::min(begin + kChunk, region.end)};
    const std::byte* bytes = may_be_freed ? copy_chunk(chunk, &copy) : reinterpret_cast<const std::byte*>(begin);
    if (bytes != nullptr && !take(bytes, chunk)) return;
  }
}

}  // namespace backplane::validate
