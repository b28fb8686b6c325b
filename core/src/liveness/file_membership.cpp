// SPDX-License-Identifier: Apache-2.0
#include "liveness/file_membership.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "error.hpp"
#include "liveness/exit_handler.hpp"
#include "liveness/membership_table.hpp"
#include "liveness/rank_list.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kPollNs = 200'000'000;            // between checks of the other ranks' locks
constexpr int64_t kStepNs = 1'000'000'000;          // for one store call
constexpr const char* kNextByte = "bp/alive/next";  // in the store: the number of bytes in use
constexpr std::string_view kLeftEntry = "departed";
constexpr std::string_view kLostEntry = "lost";

// The file of the locks.
class LockFile {
 public:
  explicit LockFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600)) {
    if (!fd_) fail_io("open");
    struct stat info = {};
    if (::fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      fail(BP_INVALID, "{} is not a regular file; give the store a file of its own", path_);
    }
  }

  void lock(int64_t byte) const {
    struct flock range = at(byte);
    if (::fcntl(fd_.get(), F_OFD_SETLK, &range) != 0) fail_io("lock");
  }
  // Whether another process or file description holds the lock of this byte.
  bool locked(int64_t byte) const {
    struct flock range = at(byte);
    if (::fcntl(fd_.get(), F_OFD_GETLK, &range) != 0) fail_io("query the locks of");
    return range.l_type != F_UNLCK;
  }

 private:
  static struct flock at(int64_t byte) {
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = byte;
    range.l_len = 1;
    return range;
  }
  [[noreturn]] void fail_io(const char* what) const {
    const int error = errno;
    throw Error(BP_RESOURCE, fmt::format("cannot {} {}: {}", what, path_, std::generic_category().message(error)), -1,
                error);
  }

  const std::string path_;
  const base::Descriptor fd_;  // holds the locks
};

// The record of one rank in the store: "17 host, pid 4" (its byte and its identity), "departed", or "lost" and the text
// of the loss.
struct Entry {
  int64_t byte = -1;
  std::string identity;
  std::optional<Absence> absence;
  std::string text;
};

std::optional<Entry> parse(const std::string& value) {
  Entry entry;
  const size_t space = value.find(' ');
  const std::string_view first = std::string_view(value).substr(0, space);
  const std::string rest = space == std::string::npos ? "" : value.substr(space + 1);
  if (first == kLeftEntry) {
    entry.absence = Absence::kLeft;
  } else if (first == kLostEntry) {
    entry.absence = Absence::kLost;
    entry.text = rest;
  } else {
    const auto parsed = std::from_chars(first.data(), first.data() + first.size(), entry.byte);
    if (parsed.ec != std::errc() || parsed.ptr != first.data() + first.size() || entry.byte < 0) return std::nullopt;
    entry.identity = rest;
  }
  return entry;
}

class FileMembership final : public Membership {
 public:
  FileMembership(std::shared_ptr<KeyValueSpace> store, const std::string& path, const Enrolment& enrolment,
                 std::function<void(const Loss&)> on_loss, Deadline deadline)
      : store_(std::move(store)),
        locks_(path + ".alive"),
        scope_(enrolment.scope),
        rank_(enrolment.rank),
        on_loss_(std::move(on_loss)),
        exit_handler_(ExitHandler::Order::kClients, [this](const Deadline&) { leave(); }) {
    if (rank_ >= 0) enter(enrolment.identity, deadline);
    thread_ = start_quiet_thread("bp-store-watch", [this] { run(); });
  }

  ~FileMembership() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
    leave();
  }
  FileMembership(const FileMembership&) = delete;
  FileMembership& operator=(const FileMembership&) = delete;

  bool watches() const override { return true; }

  Absences absences(Deadline deadline) override {
    Absences absences;
    for (const auto& [rank, entry] : entries(deadline)) {
      if (entry.absence) absences.emplace(rank, *entry.absence);
    }
    return absences;
  }

 private:
  std::string key(int32_t rank) const { return fmt::format("{}bp/alive/rank/{}", scope_, rank); }
  std::string losses_key() const { return scope_ + "bp/alive/losses"; }
  std::string ranks_key() const { return scope_ + "bp/alive/ranks"; }

  // The lock comes first: an entry without a lock means that its rank is lost.
  void enter(const std::string& identity, const Deadline& deadline) {
    const int64_t byte = store_->add(kNextByte, 1, deadline);
    locks_.lock(byte);
    const std::string mine = fmt::format("{} {}", byte, identity);
    const std::string held = store_->compare_set(key(rank_), "", mine, deadline);
    holds_ =
        held == mine || (held.starts_with(kLeftEntry) && store_->compare_set(key(rank_), held, mine, deadline) == mine);
    own_entry_ = mine;
    if (holds_) append_rank(*store_, ranks_key(), rank_, deadline);  // the ranks to check
  }

  void leave() noexcept {
    if (left_.exchange(true) || !holds_) return;
    try {
      store_->compare_set(key(rank_), own_entry_, kLeftEntry, Deadline::after(kStepNs));
    } catch (const std::exception&) {
      // The file was removed or stays locked: no rank can read the entry.
    }
  }

  std::map<int32_t, Entry> entries(const Deadline& deadline) {
    std::map<int32_t, Entry> all;
    for (const int32_t rank : read_ranks(*store_, ranks_key(), deadline)) {
      if (auto entry = parse(store_->get(key(rank), deadline))) all.emplace(rank, std::move(*entry));
    }
    return all;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      lock.unlock();
      try {
        check_others();
      } catch (const std::exception&) {
        // The store was interrupted or is busy; try again later.
      }
      lock.lock();
      stopped_.wait_for(lock, std::chrono::nanoseconds(kPollNs), [this] { return stop_; });
    }
  }

  // Records deaths in the store and reports new losses in the order of the store, which is the same on all ranks.
  void check_others() {
    const Deadline deadline = Deadline::after(kStepNs);
    for (const auto& [rank, entry] : entries(deadline)) {
      bool lost = entry.absence == Absence::kLost && reported_.count(rank) == 0;
      if (!entry.absence && rank != rank_ && !locks_.locked(entry.byte)) {
        const std::string alive = fmt::format("{} {}", entry.byte, entry.identity);
        const std::string news = fmt::format("{} {}", kLostEntry, loss_text(rank, entry.identity, "its process ended"));
        lost = store_->compare_set(key(rank), alive, news, deadline) == news;
      }
      if (lost) append_rank(*store_, losses_key(), rank, deadline);
    }
    report_losses(deadline);
  }

  void report_losses(const Deadline& deadline) {
    for (const int32_t rank : read_ranks(*store_, losses_key(), deadline)) {
      if (!reported_.insert(rank).second) continue;
      const auto entry = parse(store_->get(key(rank), deadline));
      if (entry && entry->absence == Absence::kLost && !left_) on_loss_({rank, false, entry->text});
    }
  }

  const std::shared_ptr<KeyValueSpace> store_;
  const LockFile locks_;
  const std::string scope_;
  const int32_t rank_;
  const std::function<void(const Loss&)> on_loss_;
  bool holds_ = false;  // this process holds the rank
  std::string own_entry_;
  std::atomic<bool> left_ = false;
  std::set<int32_t> reported_;  // only for the thread
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
  const ExitHandler exit_handler_;
};

}  // namespace

std::unique_ptr<Membership> enroll_in_file(std::shared_ptr<KeyValueSpace> store, const std::string& path,
                                           const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                           Deadline deadline) {
  return std::make_unique<FileMembership>(std::move(store), path, enrolment, std::move(on_loss), deadline);
}

}  // namespace backplane::core
