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

#include "error.hpp"
#include "liveness/exit_handler.hpp"
#include "liveness/membership_table.hpp"
#include "liveness/rank_list.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kLookNs = 200'000'000;            // how often the locks of the others are looked at
constexpr int64_t kStepNs = 1'000'000'000;          // for a call of the store about this rank
constexpr const char* kNextByte = "bp/alive/next";  // in the store: how many bytes are given out
constexpr std::string_view kDeparted = "departed";
constexpr std::string_view kLost = "lost";

// The file of locks.
class LockFile {
 public:
  explicit LockFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600)) {
    if (fd_ < 0) fail_io("open");
    struct stat info = {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      fail(BP_INVALID, "{} is not a regular file; give the store a file of its own", path_);
    }
  }
  ~LockFile() { ::close(fd_); }  // and with it all its locks
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  void lock(int64_t byte) const {
    struct flock range = at(byte);
    if (::fcntl(fd_, F_OFD_SETLK, &range) != 0) fail_io("lock");
  }
  // Does anybody hold the lock of this byte? Not to be asked about this file's own.
  bool locked(int64_t byte) const {
    struct flock range = at(byte);
    if (::fcntl(fd_, F_OFD_GETLK, &range) != 0) fail_io("look at the locks of");
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
  const int fd_;
};

// What the store says of one rank: "17 host, pid 4" (its byte and its identity), or "departed", or "lost" and the
// sentence about it.
struct Entry {
  int64_t byte = -1;
  std::string identity;
  std::optional<Fate> fate;
  std::string text;
};

std::optional<Entry> parse(const std::string& value) {
  Entry entry;
  const size_t space = value.find(' ');
  const std::string_view first = std::string_view(value).substr(0, space);
  const std::string rest = space == std::string::npos ? "" : value.substr(space + 1);
  if (first == kDeparted) {
    entry.fate = Fate::kDeparted;
  } else if (first == kLost) {
    entry.fate = Fate::kLost;
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
        exit_handler_(ExitHandler::Turn::kClients, [this](const Deadline&) { depart(); }) {
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
    depart();
  }
  FileMembership(const FileMembership&) = delete;
  FileMembership& operator=(const FileMembership&) = delete;

  bool watches() const override { return true; }

  Fates fates(Deadline deadline) override {
    Fates fates;
    for (const auto& [rank, entry] : entries(deadline)) {
      if (entry.fate) fates.emplace(rank, *entry.fate);
    }
    return fates;
  }

 private:
  std::string key(int32_t rank) const { return fmt::format("{}bp/alive/rank/{}", scope_, rank); }
  std::string losses_key() const { return scope_ + "bp/alive/losses"; }
  std::string ranks_key() const { return scope_ + "bp/alive/ranks"; }

  // The lock comes first, so that nobody sees an entry of a living rank without it.
  void enter(const std::string& identity, const Deadline& deadline) {
    const int64_t byte = store_->add(kNextByte, 1, deadline);
    locks_.lock(byte);
    const std::string mine = fmt::format("{} {}", byte, identity);
    const std::string held = store_->compare_set(key(rank_), "", mine, deadline);
    holds_ =
        held == mine || (held.starts_with(kDeparted) && store_->compare_set(key(rank_), held, mine, deadline) == mine);
    mine_ = mine;
    if (holds_) append_rank(*store_, ranks_key(), rank_, deadline);  // whoever looks needs to know whom to look for
  }

  void depart() noexcept {
    if (departed_.exchange(true) || !holds_) return;
    try {
      store_->compare_set(key(rank_), mine_, kDeparted, Deadline::after(kStepNs));
    } catch (const std::exception&) {
      // The file is gone or locked for good: nobody is left to read it.
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
        look();
      } catch (const std::exception&) {
        // The store was interrupted or is busy; there is another look.
      }
      lock.lock();
      stopped_.wait_for(lock, std::chrono::nanoseconds(kLookNs), [this] { return stop_; });
    }
  }

  // Notes who has died, and tells what is new. The order of losses is that of the store, the same for all.
  void look() {
    const Deadline deadline = Deadline::after(kStepNs);
    for (const auto& [rank, entry] : entries(deadline)) {
      bool lost = entry.fate == Fate::kLost && told_.count(rank) == 0;
      if (!entry.fate && rank != rank_ && !locks_.locked(entry.byte)) {
        const std::string alive = fmt::format("{} {}", entry.byte, entry.identity);
        const std::string news = fmt::format("{} {}", kLost, loss_text(rank, entry.identity, "its process ended"));
        lost = store_->compare_set(key(rank), alive, news, deadline) == news;
      }
      if (lost) append_rank(*store_, losses_key(), rank, deadline);
    }
    tell(deadline);
  }

  void tell(const Deadline& deadline) {
    for (const int32_t rank : read_ranks(*store_, losses_key(), deadline)) {
      if (!told_.insert(rank).second) continue;
      const auto entry = parse(store_->get(key(rank), deadline));
      if (entry && entry->fate == Fate::kLost && !departed_) on_loss_({rank, false, entry->text});
    }
  }

  const std::shared_ptr<KeyValueSpace> store_;
  const LockFile locks_;
  const std::string scope_;
  const int32_t rank_;
  const std::function<void(const Loss&)> on_loss_;
  bool holds_ = false;  // is this rank's entry its own?
  std::string mine_;
  std::atomic<bool> departed_ = false;
  std::set<int32_t> told_;  // only for the thread
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
