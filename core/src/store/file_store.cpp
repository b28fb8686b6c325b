// SPDX-License-Identifier: Apache-2.0
//
// A store in a file. A waiting call polls the size of the file at increasing intervals, and locks and reads the file
// only when it has changed.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "liveness/file_membership.hpp"
#include "store/checks.hpp"
#include "store/file_log.hpp"
#include "store/interruption.hpp"
#include "store/store.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kFirstPauseNs = 1'000'000;
constexpr int64_t kMaxPauseNs = 50'000'000;
constexpr int64_t kMinLockNs = 100'000'000;  // for the lock, also when the deadline has passed

struct File {
  explicit File(const std::string& path) : log(path) {}

  std::mutex mutex;
  std::condition_variable free;     // an access ended, or a handle was interrupted
  std::condition_variable changed;  // the table did, or a handle was interrupted
  bool in_use = false;              // guarded by mutex: a thread has access
  // Only for the thread that has access, without the mutex.
  FileLog log;
  Table table;
};

// Exclusive access to the file: `in_use` among the threads of this store, the lock among stores.
class Access {
 public:
  Access(File& file, const Interruption& interruption, const Deadline& deadline)
      : file_(file), interruption_(interruption), deadline_(at_least(deadline, kMinLockNs)), allowance_(deadline) {
    std::unique_lock lock(file_.mutex);
    interruption_.check();
    while (file_.in_use) {
      if (!wait_on(file_.free, lock, deadline_) && file_.in_use) fail_busy();
      interruption_.check();
    }
    file_.in_use = true;
    applied_ = file_.log.applied();
  }

  ~Access() {
    if (locked_) file_.log.unlock();
    // Only if it changed: calls that wait for keys would otherwise wake each other endlessly.
    const bool changed = file_.log.applied() != applied_;
    const std::lock_guard lock(file_.mutex);
    file_.in_use = false;
    file_.free.notify_all();
    if (changed) file_.changed.notify_all();
  }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  // Locks the file and brings the table up to date.
  Table& lock_file() {
    int64_t pause_ns = kFirstPauseNs;
    while (!file_.log.try_lock()) {
      if (deadline_.passed()) fail_busy();
      std::unique_lock lock(file_.mutex);
      interruption_.check();
      wait_on(file_.changed, lock, Deadline::after(pause_ns));
      interruption_.check();
      pause_ns = std::min(pause_ns * 2, kMaxPauseNs);
    }
    locked_ = true;
    file_.log.catch_up(file_.table);
    return file_.table;
  }

 private:
  [[noreturn]] void fail_busy() const {
    fail(BP_TIMEOUT, "could not lock the store {} within {}: another process holds the lock; it may be suspended",
         file_.log.path(), allowance_.text());
  }

  File& file_;
  const Interruption& interruption_;
  const Deadline deadline_;
  const Allowance allowance_;
  off_t applied_ = 0;  // at the start
  bool locked_ = false;
};

class FileStore final : public Store {
 public:
  FileStore(std::shared_ptr<File> file, std::shared_ptr<Interruption> interruption)
      : file_(std::move(file)), interruption_(std::move(interruption)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    Access access(*file_, *interruption_, deadline);
    put(access.lock_file(), key, std::string(value));
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    return *await({std::string(key)}, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    Access access(*file_, *interruption_, deadline);
    Table& table = access.lock_file();
    const int64_t sum = table.sum(key, delta);
    put(table, key, std::to_string(sum));
    return sum;
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    await(keys, deadline);
  }

  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    Access access(*file_, *interruption_, deadline);
    return access.lock_file().contains_all(keys);
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    Access access(*file_, *interruption_, deadline);
    Table& table = access.lock_file();
    if (table.matches(key, expected)) put(table, key, std::string(desired));
    const Bytes held = table.find(key);
    return held == nullptr ? std::string() : *held;
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    Access access(*file_, *interruption_, deadline);
    Table& table = access.lock_file();
    if (!table.contains(key)) return false;
    file_->log.append_remove(key);
    return table.remove(key);
  }

  bool removes_prefixes() const override { return true; }
  void remove_prefix(std::string_view prefix, Deadline deadline) override {
    check_key(prefix);
    Access access(*file_, *interruption_, deadline);
    Table& table = access.lock_file();
    file_->log.append_remove_prefix(prefix);
    table.remove_prefix(prefix);
    file_->log.compact(table);
  }

  int64_t num_keys(Deadline deadline) override {
    Access access(*file_, *interruption_, deadline);
    return access.lock_file().size();
  }

  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                     Deadline deadline) override {
    return enroll_in_file(view(), file_->log.path(), enrolment, std::move(on_loss), deadline);
  }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  bool interrupted() const override { return interruption_->raised(); }

  std::shared_ptr<Store> view() override { return std::make_shared<FileStore>(file_, interruption_->child()); }

  std::string describe() const override { return "file://" + file_->log.path(); }

 private:
  void put(Table& table, std::string_view key, std::string value) {
    file_->log.append_set(key, value);
    table.set(key, make_bytes(std::move(value)));
  }

  // Waits until the keys exist; the value of the first.
  Bytes await(const std::vector<std::string>& keys, const Deadline& deadline) {
    const Allowance allowance(deadline);
    int64_t pause_ns = kFirstPauseNs;
    for (;;) {
      const bool last = deadline.passed();
      std::vector<std::string> missing;
      {
        Access access(*file_, *interruption_, deadline);
        if (file_->log.grown()) access.lock_file();
        if (file_->table.contains_all(keys)) return keys.empty() ? nullptr : file_->table.find(keys.front());
        if (last) missing = file_->table.missing(keys);
      }
      if (last) fail_missing(listed(missing), allowance, describe());
      pause(deadline, pause_ns);
      pause_ns = std::min(pause_ns * 2, kMaxPauseNs);
    }
  }

  // Waits. A change by this process or an interruption ends the wait early.
  void pause(const Deadline& deadline, int64_t pause_ns) {
    std::unique_lock lock(file_->mutex);
    interruption_->check();
    wait_on(file_->changed, lock, std::min(deadline, Deadline::after(pause_ns)));
    interruption_->check();
  }

  const std::shared_ptr<File> file_;
  const std::shared_ptr<Interruption> interruption_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& path) {
  auto file = std::make_shared<File>(path);
  auto interruption = std::make_shared<Interruption>([file] {
    const std::lock_guard lock(file->mutex);
    file->free.notify_all();
    file->changed.notify_all();
  });
  return std::make_shared<FileStore>(std::move(file), std::move(interruption));
}

}  // namespace backplane::core
