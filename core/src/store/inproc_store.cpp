// SPDX-License-Identifier: Apache-2.0
//
// The store of ranks that are threads of one process.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "liveness/membership_table.hpp"
#include "store/checks.hpp"
#include "store/interruption.hpp"
#include "store/store.hpp"
#include "store/table.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

struct Memory {
  std::mutex mutex;
  std::condition_variable changed;  // a key was set, or a handle was interrupted
  Table table;                      // guarded by mutex
  // Guarded by mutex. Ranks leave but are never lost, because they are threads of one process.
  MembershipTable members{[](ClientId, const std::string&, const Loss&) {}};
  ClientId last_client = 0;
};

class InprocMembership final : public Membership {
 public:
  InprocMembership(std::shared_ptr<Memory> memory, const Enrolment& enrolment)
      : memory_(std::move(memory)), scope_(enrolment.scope), rank_(enrolment.rank) {
    const std::lock_guard lock(memory_->mutex);
    client_ = ++memory_->last_client;
    memory_->members.enroll(client_, scope_, rank_, enrolment.identity);
  }
  ~InprocMembership() override {
    const std::lock_guard lock(memory_->mutex);
    memory_->members.withdraw(client_, scope_, rank_);
  }
  InprocMembership(const InprocMembership&) = delete;
  InprocMembership& operator=(const InprocMembership&) = delete;

  bool watches() const override { return false; }

  Absences absences(Deadline) override {
    const std::lock_guard lock(memory_->mutex);
    return memory_->members.absences(scope_);
  }

 private:
  const std::shared_ptr<Memory> memory_;
  const std::string scope_;
  const int32_t rank_;
  ClientId client_ = 0;
};

class InprocStore final : public Store {
 public:
  InprocStore(std::shared_ptr<Memory> memory, std::shared_ptr<Interruption> interruption)
      : memory_(std::move(memory)), interruption_(std::move(interruption)) {}

  void set(std::string_view key, std::string_view value, Deadline) override {
    check_value(key, value);
    Bytes bytes = make_bytes(std::string(value));
    const auto lock = enter();
    memory_->table.set(key, std::move(bytes));
    memory_->changed.notify_all();
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    auto lock = enter();
    await({std::string(key)}, lock, deadline);
    return *memory_->table.find(key);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline) override {
    check_key(key);
    const auto lock = enter();
    const int64_t sum = memory_->table.sum(key, delta);
    memory_->table.set(key, make_bytes(std::to_string(sum)));
    memory_->changed.notify_all();
    return sum;
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    auto lock = enter();
    await(keys, lock, deadline);
  }

  bool check(const std::vector<std::string>& keys, Deadline) override {
    check_keys(keys);
    const auto lock = enter();
    return memory_->table.contains_all(keys);
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline) override {
    check_values(key, expected, desired);
    const auto lock = enter();
    if (memory_->table.matches(key, expected)) {
      memory_->table.set(key, make_bytes(std::string(desired)));
      memory_->changed.notify_all();
    }
    const Bytes held = memory_->table.find(key);
    return held == nullptr ? std::string() : *held;
  }

  bool remove(std::string_view key, Deadline) override {
    check_key(key);
    const auto lock = enter();
    return memory_->table.remove(key);
  }

  bool removes_prefixes() const override { return true; }
  void remove_prefix(std::string_view prefix, Deadline) override {
    check_key(prefix);
    const auto lock = enter();
    memory_->table.remove_prefix(prefix);
  }

  int64_t num_keys(Deadline) override {
    const auto lock = enter();
    return memory_->table.size();
  }

  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)>, Deadline) override {
    return std::make_unique<InprocMembership>(memory_, enrolment);
  }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  bool interrupted() const override { return interruption_->raised(); }

  std::shared_ptr<Store> view() override { return std::make_shared<InprocStore>(memory_, interruption_->child()); }

  std::string describe() const override { return "the store of this process"; }

 private:
  std::unique_lock<std::mutex> enter() {
    std::unique_lock lock(memory_->mutex);
    interruption_->check();
    return lock;
  }

  void await(const std::vector<std::string>& keys, std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
    const Allowance allowance(deadline);
    while (!memory_->table.contains_all(keys)) {
      if (deadline.passed()) {
        fail_missing(listed(memory_->table.missing(keys)), allowance, describe());
      }
      wait_on(memory_->changed, lock, deadline);
      interruption_->check();
    }
  }

  const std::shared_ptr<Memory> memory_;
  const std::shared_ptr<Interruption> interruption_;
};

}  // namespace

std::shared_ptr<Store> make_inproc_store() {
  auto memory = std::make_shared<Memory>();
  auto interruption = std::make_shared<Interruption>([memory] {
    const std::lock_guard lock(memory->mutex);
    memory->changed.notify_all();
  });
  return std::make_shared<InprocStore>(std::move(memory), std::move(interruption));
}

}  // namespace backplane::core
