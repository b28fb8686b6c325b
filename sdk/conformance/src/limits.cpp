// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "proc.hpp"

extern "C" {
__attribute__((weak)) void __sanitizer_symbolize_pc(void* pc, const char* format, char* out, size_t size);
}

namespace backplane::conformance {
namespace {

// Makes a sanitizer read the symbols of all libraries now. Later it might have no descriptor for that, and could not
// apply its suppressions.
void read_symbols() {
  if (__sanitizer_symbolize_pc == nullptr) return;
  char name[256];
  __sanitizer_symbolize_pc(reinterpret_cast<void*>(&read_symbols), "%f", name, sizeof name);
}

#if defined(__x86_64__)
constexpr uint32_t kAuditArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kAuditArch = AUDIT_ARCH_AARCH64;
#elif defined(__riscv) && __riscv_xlen == 64
constexpr uint32_t kAuditArch = AUDIT_ARCH_RISCV64;
#else
constexpr uint32_t kAuditArch = 0;  // no kernel reports it: the filters below let everything pass
#endif

using Filter = std::vector<sock_filter>;

sock_filter filter_load(size_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
sock_filter result(uint32_t value) { return BPF_STMT(BPF_RET | BPF_K, value); }
// Skips the next instruction unless the loaded word is `value`.
sock_filter if_equal(uint32_t value) { return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1); }

Filter begin_filter() {
  return {filter_load(offsetof(seccomp_data, arch)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kAuditArch, 1, 0),
          result(SECCOMP_RET_ALLOW), filter_load(offsetof(seccomp_data, nr))};
}

void refuse(Filter& filter, uint32_t call, uint32_t error) {
  filter.push_back(if_equal(call));
  filter.push_back(result(SECCOMP_RET_ERRNO | error));
}

int install_filter(Filter filter, unsigned flags, std::string& why_not) {
  filter.push_back(result(SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (kAuditArch == 0) {
    why_not = "the harness does not know this processor's system calls";
    return -1;
  }
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const long descriptor = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (descriptor < 0) why_not = fmt::format("this machine permits no filter of system calls: {}", std::strerror(errno));
  return static_cast<int>(descriptor);
}

}  // namespace

DescriptorLimit::DescriptorLimit(int highest) {
  read_symbols();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  before_ = limit.rlim_cur;
  limit.rlim_cur = static_cast<rlim_t>(highest);
  setrlimit(RLIMIT_NOFILE, &limit);
}

DescriptorLimit::~DescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = before_;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool deny_shared_memory(std::string& why_not) {
  Filter filter = begin_filter();
  for (const uint32_t call : {SYS_ftruncate, SYS_fallocate, SYS_memfd_create}) refuse(filter, call, ENOSPC);
  return install_filter(std::move(filter), 0, why_not) >= 0;
}

// Denies clone3, whose flags are in memory that a filter cannot read. The C library then uses clone.
ThreadLimit* ThreadLimit::install(std::string& why_not) {
  Filter filter = begin_filter();
  refuse(filter, SYS_clone3, ENOSYS);
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
  filter.push_back(filter_load(offsetof(seccomp_data, args)));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1));
  filter.push_back(result(SECCOMP_RET_USER_NOTIF));

  // The thread that answers must not be under the filter, so it starts before.
  std::promise<ThreadLimit*> made;
  std::thread([limit = made.get_future()]() mutable {
    if (ThreadLimit* const known = limit.get()) known->answer();
  }).detach();
  const int listener = install_filter(std::move(filter), SECCOMP_FILTER_FLAG_NEW_LISTENER, why_not);
  auto* limit = listener < 0 ? nullptr : new ThreadLimit(listener);
  made.set_value(limit);
  return limit;
}

void ThreadLimit::allow(int more) { most_.store(more < 0 ? SIZE_MAX : threads().size() + static_cast<size_t>(more)); }

// The kernel may still list a joined thread for a short time.
bool ThreadLimit::has_room() const {
  const size_t most = most_.load();
  const Nanoseconds deadline = now() + 20 * kMillisecond;
  while (most != SIZE_MAX && threads().size() >= most) {
    if (now() >= deadline) return false;
    sched_yield();
  }
  return true;
}

void ThreadLimit::answer() {
  for (;;) {
    seccomp_notif request = {};
    if (ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) {
      if (errno == EINTR || errno == ENOENT) continue;
      return;
    }
    seccomp_notif_resp response = {};
    response.id = request.id;
    if (has_room()) {
      response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    } else {
      response.error = -EAGAIN;
    }
    ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);
  }
}

}  // namespace backplane::conformance
