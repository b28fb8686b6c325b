// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace backplane::shm {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif

[[noreturn]] void fail(std::string what) {
  const int code = errno;
  what += ": errno ";
  what += std::to_string(code);
  what += " (";
  what += ::strerrordesc_np(code);
  what += ")";
  throw sdk::Failure(BP_RESOURCE, what, -1, code);
}

[[noreturn]] void fail_for_memory(const char* what) {
  fail(std::string("no memory for ") + what + " in the shared segment; is /dev/shm or the memory limit too small?");
}

void set_size(int fd, size_t size) {
  // Exceeding the limit would raise SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) {
    throw sdk::Failure(BP_RESOURCE, "the file size limit (ulimit -f) is too low for a shared segment of " +
                                        std::to_string(size >> 20) + " MiB");
  }
  if (::ftruncate(fd, static_cast<off_t>(size)) != 0) fail("cannot set the size of the shared segment");
}

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::string_view kPrefix = "/dev/shm/backplane-";

std::string random_name() {
  std::string name(kPrefix);
  for (const unsigned char byte : random_token()) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

bool is_random_name(const std::string& path) {
  return path.size() == kPrefix.size() + 2 * std::tuple_size_v<Token> && path.starts_with(kPrefix) &&
         path.find_first_not_of(kDigits, kPrefix.size()) == std::string::npos;
}

// The creator of a file holds a lock on it for the life of its process.
bool try_lock_file(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

// Removes files of this user without a lock: their creators were killed.
void remove_orphans() {
  std::error_code error;
  for (std::filesystem::directory_iterator each("/dev/shm", error), end; !error && each != end; each.increment(error)) {
    const std::string path = each->path();
    if (!is_random_name(path)) continue;
    const sdk::Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW));
    struct stat facts {};
    if (!fd || ::fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid()) continue;
    if (try_lock_file(fd.get())) ::unlink(path.c_str());
  }
}

}  // namespace

Token random_token() {
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    fail("getrandom failed");
  }
  return token;
}

uint64_t heap_size(size_t fixed, int32_t world_size) {
  const auto ranks = static_cast<uint64_t>(world_size);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  const uint64_t size = std::min(memory, kMaxHeapBytes / ranks) / kPage * kPage;
  rlimit files{};
  rlimit addresses{};
  if (::getrlimit(RLIMIT_FSIZE, &files) != 0 || ::getrlimit(RLIMIT_AS, &addresses) != 0) return 0;
  return files.rlim_cur < fixed + ranks * size || addresses.rlim_cur != RLIM_INFINITY ? 0 : size;
}

bool can_map_heaps(uint64_t size) noexcept {
  if (size == 0) return true;
  void* const at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at != MAP_FAILED && ::munmap(at, size) == 0;
}

sdk::Descriptor make_anonymous(size_t size) {
  sdk::Descriptor fd(::memfd_create("backplane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail("cannot create shared memory (memfd_create)");
  set_size(fd.get(), size);
  // Shrinking would kill the other ranks by SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail("cannot seal the segment");
  return fd;
}

NamedFile::NamedFile(size_t size) {
  remove_orphans();
  for (int left = 3;; --left) {
    path_ = random_name();
    fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd_) fail("cannot create the file " + path_);
    // Between creation and locking, another process may take the file for an orphan. If locks are unsupported, no file
    // is removed.
    const bool is_mine = try_lock_file(fd_.get()) || errno != EWOULDBLOCK;
    struct stat facts {};
    if (is_mine && ::fstat(fd_.get(), &facts) == 0 && facts.st_nlink > 0) break;
    ::unlink(path_.c_str());
    if (left == 1) {
      throw sdk::Failure(
          BP_RESOURCE,
          "the file " + path_ + " was removed right after its creation; does another program clean up /dev/shm?");
    }
  }
  try {
    set_size(fd_.get(), size);
  } catch (...) {
    ::unlink(path_.c_str());
    throw;
  }
}

NamedFile::~NamedFile() { ::unlink(path_.c_str()); }

sdk::Descriptor open_shared(const std::string& path, size_t size) {
  sdk::Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat facts {};
  if (!fd || ::fstat(fd.get(), &facts) != 0) return {};
  if (!S_ISREG(facts.st_mode) || facts.st_size != static_cast<off_t>(size)) {
    errno = EINVAL;
    return {};
  }
  return fd;
}

sdk::Descriptor duplicate(int fd) {
  sdk::Descriptor copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) fail("cannot duplicate the descriptor of the shared segment");
  return copy;
}

Mapping::Mapping(int fd, size_t size, uint64_t offset) : size_(size) {
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) fail("cannot map the shared segment of " + std::to_string(size >> 20) + " MiB");
  data_ = static_cast<std::byte*>(at);
  ::madvise(at, size, MADV_DONTFORK);  // otherwise a child of fork would keep the memory alive
  ::madvise(at, size, MADV_DONTDUMP);  // otherwise a core dump would allocate every page
}

Mapping::~Mapping() { ::munmap(data_, size_); }

void detach(std::byte* begin, size_t size) noexcept {
  ::mmap(begin, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

bool populate(std::byte* begin, size_t size, const char* what) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  std::byte* const first = begin - address % kPage;
  const size_t whole = (size + address % kPage + kPage - 1) / kPage * kPage;
  if (::madvise(first, whole, MADV_POPULATE_WRITE) == 0) return true;
  if (errno == EINVAL) return false;
  if (errno == EFAULT) errno = ENOSPC;
  fail_for_memory(what);
}

void reserve(int fd, uint64_t offset, uint64_t size, const char* what) {
  int result = 0;
  do result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size));
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP) fail_for_memory(what);
}

}  // namespace backplane::shm
