// SPDX-License-Identifier: Apache-2.0
//
// A store in a file. Who waits looks at the size of the file in growing pauses; only when it has changed does it take
// the file's lock and read.
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
constexpr int64_t kLongestPauseNs = 50'000'000;
constexpr int64_t kLeastLockNs = 100'000'000;  // spent on the lock even when the deadline has passed

struct File {
  explicit File(const std::string& path) : log(path) {}

  std::mutex mutex;
  std::condition_variable free;     // a turn ended, or a handle was interrupted
  std::condition_variable changed;  // the table did, or a handle was interrupted
  bool taken = false;               // guarded by mutex: some thread has the turn
  // Only for the thread that has the turn, which does not hold the mutex meanwhile.
  FileLog log;
  Table table;
};

// One handle's way to the file: turns among the threads of this store, the lock among stores.
class Turn {
 public:
  Turn(File& file, const Interruption& interruption, const Deadline& deadline)
      : file_(file), interruption_(interruption), deadline_(at_least(deadline, kLeastLockNs)), allowance_(deadline) {
    std::unique_lock lock(file_.mutex);
    interruption_.check();
    while (file_.taken) {
      if (!wait_on(file_.free, lock, deadline_) && file_.taken) fail_busy();
      interruption_.check();
    }
    file_.taken = true;
    applied_ = file_.log.applied();
  }

  ~Turn() {
    if (locked_) file_.log.unlock();
    // Only then: those that wait for keys take turns to look for them, and would wake each other for ever.
    const bool changed = file_.log.applied() != applied_;
    const std::lock_guard lock(file_.mutex);
    file_.taken = false;
    file_.free.notify_all();
    if (changed) file_.changed.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Locks the file and brings the table up to date.
  Table& lock_file() {
    int64_t pause_ns = kFirstPauseNs;
    while (!file_.log.try_lock()) {
      if (deadline_.passed()) fail_busy();
      std::unique_lock lock(file_.mutex);
      interruption_.check();
      wait_on(file_.changed, lock, Deadline::after(pause_ns));
      interruption_.check();
      pause_ns = std::min(pause_ns * 2, kLongestPauseNs);
    }
    locked_ = true;
    file_.log.catch_up(file_.table);
    return file_.table;
  }

 private:
  [[noreturn]] void fail_busy() const {
    fail(BP_TIMEOUT, "could not lock the store {} within {}: another process holds it (is that one stopped?)",
         file_.log.path(), allowance_.text());
  }

  File& file_;
  const Interruption& interruption_;
  const Deadline deadline_;
  const Allowance allowance_;
  off_t applied_ = 0;  // when it began
  bool locked_ = false;
};

class FileStore final : public Store {
 public:
  FileStore(std::shared_ptr<File> file, std::shared_ptr<Interruption> interruption)
      : file_(std::move(file)), interruption_(std::move(interruption)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    Turn turn(*file_, *interruption_, deadline);
    put(turn.lock_file(), key, std::string(value));
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    return *await({std::string(key)}, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    Turn turn(*file_, *interruption_, deadline);
    Table& table = turn.lock_file();
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
    Turn turn(*file_, *interruption_, deadline);
    return turn.lock_file().contains_all(keys);
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    Turn turn(*file_, *interruption_, deadline);
    Table& table = turn.lock_file();
    if (table.matches(key, expected)) put(table, key, std::string(desired));
    const Bytes held = table.find(key);
    return held == nullptr ? std::string() : *held;
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    Turn turn(*file_, *interruption_, deadline);
    Table& table = turn.lock_file();
    if (!table.contains(key)) return false;
    file_->log.append_remove(key);
    return table.remove(key);
  }

  int64_t num_keys(Deadline deadline) override {
    Turn turn(*file_, *interruption_, deadline);
    return turn.lock_file().size();
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
        Turn turn(*file_, *interruption_, deadline);
        if (file_->log.grown()) turn.lock_file();
        if (file_->table.contains_all(keys)) return keys.empty() ? nullptr : file_->table.find(keys.front());
        if (last) missing = file_->table.missing(keys);
      }
      if (last) fail_missing(listed(missing), allowance, describe());
      pause(deadline, pause_ns);
      pause_ns = std::min(pause_ns * 2, kLongestPauseNs);
    }
  }

  // Ended early by a change that this process makes, and by an interruption.
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
