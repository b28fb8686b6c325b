// SPDX-License-Identifier: Apache-2.0
//
// What belongs to one process. A child made by fork has a copy of its parent's memory, but none of its threads, and
// shares its sockets: it must not use what the parent made.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace backplane::core {

// Identifies the process that made an object. Two processes of one line of descent differ, also if they have the same
// number in different pid namespaces: the mark also counts the forks.
class ProcessMark {
 public:
  static ProcessMark current() { return ProcessMark(current_.load(std::memory_order_relaxed)); }
  // The mark of a word of `bits`, which may be anything.
  static ProcessMark from(uint64_t bits) { return ProcessMark(bits); }

  uint64_t bits() const { return bits_; }
  // False for words that no process has as its mark.
  bool is_valid() const { return bits_ >> 48 == kMagic; }
  int32_t pid() const { return static_cast<int32_t>(bits_ & UINT32_MAX); }
  bool operator==(const ProcessMark&) const = default;

 private:
  // 16 bits each: the magic number, the forks; 32 bits: the process number.
  static constexpr uint64_t kMagic = 0x6c70;
  static const bool is_watched_;
  static bool watch();
  static void on_fork();
  static uint64_t make(uint64_t forks);

  explicit ProcessMark(uint64_t bits) : bits_(bits) {}

  static inline constinit std::atomic<uint64_t> current_ = kMagic << 48;
  uint64_t bits_;
};

// Why this process cannot use an object that it inherited: "was made in process 17, of which process 18 is a fork; make
// a new one in this process".
std::string inherited_text(ProcessMark made_in);

// A variable of which each process has its own. Made at its first use in a process, and never destroyed: other threads
// may use it while the process ends. Locks that a thread of the parent held at a fork do not exist in the child.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    Instance* found = newest_.load(std::memory_order_acquire);
    while (found == nullptr || !(found->process == ProcessMark::current())) {
      auto* const made = new Instance{ProcessMark::current(), found, {}};
      if (newest_.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made->value;
      delete made;
    }
    return found->value;
  }
  T& operator*() { return get(); }
  T* operator->() { return &get(); }

 private:
  struct Instance {
    const ProcessMark process;
    Instance* const parents;  // keeps the parent's reachable for leak checkers
    T value;
  };

  std::atomic<Instance*> newest_ = nullptr;
};

}  // namespace backplane::core
