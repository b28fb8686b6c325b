// SPDX-License-Identifier: Apache-2.0
#include "segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <string>
#include <system_error>

namespace backplane::nccl_double {

struct Segment::Head {
  uint64_t token;
  std::atomic<int32_t> attached;
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  Descriptor descriptors[kMaxRanks];
};

namespace {

constexpr uint64_t kMagic = 0x656c62756f64;  // "double"
constexpr uint64_t kPage = 4096;

uint64_t rounded(uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

void sleep_on(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit = {0, 1'000'000};  // checks for an abort at least this often
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

}  // namespace

bool Segment::make(Id* id) {
  *id = {kMagic, 0, ::getpid(), ::memfd_create("nccl-double", MFD_CLOEXEC)};
  return id->fd >= 0 && ::getrandom(&id->token, sizeof id->token, 0) == sizeof id->token &&
         ::pwrite(id->fd, &id->token, sizeof id->token, 0) == sizeof id->token;
}

Segment::Segment(const Id& id, int rank, int size) : size_(size) {
  static_cast<void>(rank);
  if (id.magic != kMagic || size > kMaxRanks) {
    errno = EINVAL;
    fail("the id is not of the test double");
  }
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("opening the communicator's memory");
  // All ranks set the same size.
  if (::ftruncate(fd, static_cast<off_t>(bytes(size))) == 0) {
    memory_ = ::mmap(nullptr, bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  } else {
    memory_ = MAP_FAILED;
  }
  const int error = errno;
  ::close(fd);
  errno = error;
  if (memory_ == MAP_FAILED) fail("mapping the communicator's memory");
  if (head().token != id.token) {
    ::munmap(memory_, bytes(size));
    errno = ESTALE;
    fail("the communicator's memory no longer exists");
  }
  ++head().attached;
}

Segment::~Segment() { ::munmap(memory_, bytes(size_)); }

uint64_t Segment::bytes(int size) {
  const auto n = static_cast<uint64_t>(size);
  return rounded(sizeof(Head)) + n * kSlot + n * n * rounded(sizeof(Pair));
}

bool Segment::complete() const { return head().attached.load() >= size_; }

bool Segment::barrier(const std::atomic<bool>& stop) {
  Head& h = head();
  const uint32_t generation = h.generation.load();
  if (h.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
    h.arrived.store(0);
    ++h.generation;
    ::syscall(SYS_futex, &h.generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return true;
  }
  while (h.generation.load() == generation) {
    if (stop.load()) return false;
    sleep_on(h.generation, generation);
  }
  return true;
}

Descriptor& Segment::descriptor(int rank) { return head().descriptors[rank]; }

std::byte* Segment::slot(int rank) {
  return static_cast<std::byte*>(memory_) + rounded(sizeof(Head)) + static_cast<uint64_t>(rank) * kSlot;
}

Pair& Segment::pair(int from, int to) {
  const auto n = static_cast<uint64_t>(size_);
  const uint64_t index = static_cast<uint64_t>(from) * n + static_cast<uint64_t>(to);
  return *reinterpret_cast<Pair*>(slot(0) + n * kSlot + index * rounded(sizeof(Pair)));
}

}  // namespace backplane::nccl_double
