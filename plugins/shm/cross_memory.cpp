// SPDX-License-Identifier: Apache-2.0
#include "cross_memory.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backplane/sdk/failure.hpp"
#include "memory.hpp"

namespace backplane::shm {
namespace {

uint64_t random_word() {
  uint64_t word = 0;
  const Token token = random_token();
  std::memcpy(&word, token.data(), sizeof word);
  return word;
}

struct flock byte_of(int32_t rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

// The process that holds the lock of a rank. 0: in another pid namespace; -1: none, or this process.
pid_t holder(int file, int32_t rank) {
  struct flock lock = byte_of(rank);
  if (::fcntl(file, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return -1;
  return lock.l_pid;
}

iovec part(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

}  // namespace

Cma cma_of(const sdk::Options& options) {
  const std::string& text = options.text("cma");
  return text == "on" ? Cma::kOn : text == "off" ? Cma::kOff : Cma::kAuto;
}

std::optional<ReadLimits> read_limits(Cma use, bool is_amd, bool spins) {
  // Above this the second copy of staging, by another processor, costs less than the pages of a read.
  constexpr uint64_t kLongestMessage = UINT64_C(512) << 10;
  if (use == Cma::kOn) return ReadLimits{};
  if (use == Cma::kOff || is_amd) return std::nullopt;
  return ReadLimits{spins ? kEagerLimit : kMaxEager, kLongestMessage};
}

CrossMemory::CrossMemory(const View& view, int32_t rank, int file, const ReadLimits& limits)
    : view_(view), rank_(rank), file_(file), limits_(limits), cookie_(random_word()), others_(view.layout().ranks()) {
  Member& mine = view_.member(rank);
  mine.cookie = cookie_;
  mine.cookie_address = reinterpret_cast<uintptr_t>(&cookie_);
  struct flock lock = byte_of(rank);
  if (file_ >= 0) ::fcntl(file_, F_SETLK, &lock);  // if it fails, no rank reads this one
}

void CrossMemory::query(Other& other, const Member& member, pid_t process) noexcept {
  other.process = process;
  other.cookie = member.cookie;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
  other.cookie_address = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(member.cookie_address));
  std::byte nothing{};
  const bool can_read = process > 0 && read_in(other, other.cookie_address, &nothing, 1) == Outcome::kRead;
  other.access.store(can_read ? Access::kYes : Access::kNo);
}

bool CrossMemory::can_read(int32_t rank) noexcept {
  Other& other = others_[static_cast<size_t>(rank)];
  if (other.access.load() == Access::kUnknown) {
    const std::lock_guard lock(query_mutex_);
    if (other.access.load() != Access::kUnknown) return other.access.load() == Access::kYes;
    const pid_t process = file_ < 0 ? ::getpid() : holder(file_, rank);
    if (process < 0) return false;  // has not started yet
    query(other, view_.member(rank), process);
  }
  return other.access.load() == Access::kYes;
}

void CrossMemory::check_can_read(int32_t rank) {
  if (can_read(rank)) return;
  throw sdk::Failure(BP_PEER_LOST,
                     "the process of rank " + std::to_string(rank) +
                         " can no longer be read; if it is alive, set shm's option cma to off",
                     rank);
}

bool CrossMemory::read(int32_t rank, const std::byte* address, std::byte* to, uint64_t size) noexcept {
  Other& other = others_[static_cast<size_t>(rank)];
  const Outcome outcome = read_in(other, address, to, size);
  if (outcome == Outcome::kRejected) other.access.store(Access::kNo);
  return outcome == Outcome::kRead;
}

CrossMemory::Outcome CrossMemory::read_in(const Other& other, const std::byte* address, std::byte* to,
                                          uint64_t size) noexcept {
  uint64_t cookie = 0;
  const std::array<iovec, 2> here = {part(&cookie, sizeof cookie), part(to, size)};
  const std::array<iovec, 2> there = {part(other.cookie_address, sizeof cookie), part(address, size)};
  const ssize_t got = ::process_vm_readv(other.process, here.data(), here.size(), there.data(), there.size(), 0);
  if (got == static_cast<ssize_t>(sizeof cookie + size) && cookie == other.cookie) return Outcome::kRead;
  const int code = got < 0 ? errno : EFAULT;
  error_.store(code);
  // Some buffers cannot be read in any process, such as device memory.
  return code == EFAULT && cookie == other.cookie ? Outcome::kUnreadable : Outcome::kRejected;
}

bool CrossMemory::can_read_all() noexcept {
  for (int32_t rank = 0; rank < static_cast<int32_t>(others_.size()); ++rank) {
    if (rank != rank_ && !can_read(rank)) return false;
  }
  return true;
}

bool CrossMemory::can_expose(const std::byte* data, uint64_t size) noexcept {
  if (data == exposable_ && size == exposable_size_) return true;
  std::array<std::byte, 2> ends{};
  const iovec here = part(ends.data(), ends.size());
  const std::array<iovec, 2> there = {part(data, 1), part(data + size - 1, 1)};
  if (::process_vm_readv(::getpid(), &here, 1, there.data(), there.size(), 0) != 2) return false;
  exposable_ = data;
  exposable_size_ = size;
  return true;
}

std::string CrossMemory::refusal() const {
  for (size_t rank = 0; rank < others_.size(); ++rank) {
    if (others_[rank].access.load() != Access::kNo) continue;
    std::string text = "process_vm_readv: memory of rank ";
    text.append(std::to_string(rank)).append(" is staged instead of read: ");
    if (others_[rank].process <= 0) return text.append("its process is in another pid namespace");
    return text.append(::strerrordesc_np(error_.load()));
  }
  return {};
}

}  // namespace backplane::shm
