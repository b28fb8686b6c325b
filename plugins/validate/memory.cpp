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

// The kernel says whether memory is there; a load would end the process. NULL: it is gone.
const std::byte* copied(const Region& chunk, std::vector<std::byte>* copy) {
  copy->resize(chunk.end - chunk.begin);
  auto* const source = reinterpret_cast<std::byte*>(chunk.begin);
  const iovec to = {copy->data(), copy->size()};
  const iovec from = {source, copy->size()};
  const ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  if (got == static_cast<ssize_t>(copy->size())) return copy->data();
  // Where the call is forbidden (some containers) there is only the plain way.
  return got < 0 && (errno == EPERM || errno == ENOSYS) ? source : nullptr;
}

}  // namespace

void read_chunks(const Region& region, bool careful,
                 const std::function<bool(const std::byte* bytes, const Region& chunk)>& take) {
  std::vector<std::byte> copy;
  for (uintptr_t begin = region.begin; begin < region.end; begin += kChunk) {
    const Region chunk = {begin, std::min(begin + kChunk, region.end)};
    const std::byte* bytes = careful ? copied(chunk, &copy) : reinterpret_cast<const std::byte*>(begin);
    if (bytes != nullptr && !take(bytes, chunk)) return;
  }
}

}  // namespace backplane::validate
