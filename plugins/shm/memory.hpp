// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes of one host can share, and that is gone when the last of them is: memory without a name
// however they end, a named file unless its maker is killed while others still have to open it.
#pragma once

#include <cstddef>
#include <string>

#include "backplane/sdk/sockets.hpp"
#include "layout.hpp"

namespace backplane::shm {

// A file of `size` zero bytes without a name, which cannot shrink. Throws BP_RESOURCE.
sdk::Descriptor make_anonymous(size_t size);

// The same with a random name in /dev/shm, mode 0600, for hosts where the former cannot be passed on. The name goes
// with the object, or, if its process is killed, when this user makes the next one.
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

// Opens what somebody else made. Empty (with errno) if it cannot be, or is not a file of this size.
sdk::Descriptor open_shared(const std::string& path, size_t size);

Token random_token();

// How many bytes of address space each of so many ranks can have for memory of its own, behind the `fixed` bytes of a
// file: as much as the host has memory, but not more of all together than a process can map; none where file sizes or
// address space are limited.
uint64_t heap_size(size_t fixed, int32_t world_size);

// Has this process so much address space left? Others may have their limits (ulimit -v) elsewhere.
bool has_room(uint64_t size) noexcept;

// Another descriptor of the same file. Throws BP_RESOURCE.
sdk::Descriptor another(int fd);

// A mapping. Neither children of a fork nor core dumps have it.
class Mapping {
 public:
  // `size` bytes of the file from `offset` on, a multiple of kPage. Throws BP_RESOURCE.
  Mapping(int fd, size_t size, uint64_t offset = 0);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_;
};

// Puts fresh private memory in the place of whole pages of a shared mapping.
void detach(std::byte* begin, size_t size) noexcept;

// Has the system provide the pages of this part now: later there would be a signal instead of an error. Throws
// BP_RESOURCE. False: it cannot, as before Linux 5.14.
bool provide(std::byte* begin, size_t size, const char* what);
// The same of a part of a file, and nowhere in particular. Throws BP_RESOURCE.
void reserve(int fd, uint64_t offset, uint64_t size, const char* what);

}  // namespace backplane::shm
