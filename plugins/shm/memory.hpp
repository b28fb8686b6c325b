// SPDX-License-Identifier: Apache-2.0
//
// Memory shared between processes of one host. Freed with its last user. A named file stays if its creator is killed
// before the other ranks have opened it.
#pragma once

#include <cstddef>
#include <string>

#include "backplane/sdk/sockets.hpp"
#include "layout.hpp"

namespace backplane::shm {

// Creates an anonymous file of `size` zero bytes, sealed against shrinking. Throws BP_RESOURCE.
sdk::Descriptor make_anonymous(size_t size);

// A file with a random name in /dev/shm, mode 0600, for hosts where anonymous memory cannot be passed on. The name is
// removed with the object, or, if the process is killed, when this user creates the next one.
class NamedFile {
 public:
  explicit NamedFile(size_t size);
  ~NamedFile();
  NamedFile(const NamedFile&) = delete;
  NamedFile& operator=(const NamedFile&) = delete;

  int get() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  sdk::Descriptor fd_;
};

// Opens a file created by another process. Returns an empty descriptor (with errno) on failure, or if it is not a file
// of this size.
sdk::Descriptor open_shared(const std::string& path, size_t size);

Token random_token();

// Bytes of address space for the heap of each rank, behind the `fixed` bytes of a file: the host's memory, but not more
// in total than a process can map. 0 if file sizes or address space are limited.
uint64_t heap_size(size_t fixed, int32_t world_size);

// Whether this process has that much address space left. Other ranks may have other limits (ulimit -v).
bool can_map_heaps(uint64_t size) noexcept;

// Duplicates a descriptor. Throws BP_RESOURCE.
sdk::Descriptor duplicate(int fd);

// A shared mapping, excluded from fork and core dumps.
class Mapping {
 public:
  // Maps `size` bytes of the file from `offset`, a multiple of kPage. Throws BP_RESOURCE.
  Mapping(int fd, size_t size, uint64_t offset = 0);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_;
};

// Replaces whole pages of a shared mapping by fresh private memory.
void detach(std::byte* begin, size_t size) noexcept;

// Allocates the pages now, because a failure later would be SIGBUS instead of an error. Throws BP_RESOURCE. Returns
// false if the kernel cannot (before Linux 5.14).
bool populate(std::byte* begin, size_t size, const char* what);
// The same for a part of a file, without a memory node. Throws BP_RESOURCE.
void reserve(int fd, uint64_t offset, uint64_t size, const char* what);

}  // namespace backplane::shm
