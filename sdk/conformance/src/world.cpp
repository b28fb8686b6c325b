// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>

namespace backplane::conformance {
namespace {

// Bytes of address space: pages are allocated when they are written. The store of a case contains only addresses.
constexpr uint64_t kArena = UINT64_C(1) << 30;
constexpr uint64_t kMapping = kArena + sizeof(World);

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Nanoseconds timeout) {
  const timespec limit = {timeout / kSecond, timeout % kSecond};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Nanoseconds now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// A key and its value in the arena. A value that exceeds the capacity gets a new entry, which hides the old one.
struct World::Entry {
  uint64_t next;  // offset of the next in the bucket, 0: none
  uint64_t capacity;
  uint64_t size;
  uint32_t key_size;
  uint32_t alive;

  char* bytes() { return reinterpret_cast<char*>(this + 1); }
  std::string_view key() { return {bytes(), key_size}; }
  char* data() { return bytes() + key_size; }
  std::string_view value() { return {data(), size}; }
};

// If the holder is killed, the next member gets the lock. Entries are linked only when they are complete.
class World::Lock {
 public:
  explicit Lock(World& world) : world_(world) {
    if (pthread_mutex_lock(&world_.mutex_) == EOWNERDEAD) pthread_mutex_consistent(&world_.mutex_);
  }
  ~Lock() { pthread_mutex_unlock(&world_.mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  World& world_;
};

World* World::make(int32_t ranks) {
  void* memory = mmap(nullptr, kMapping, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error(std::string("no memory for a case: ") + std::strerror(errno));
  auto* world = new (memory) World;  // the mapping is zeroed: no entries, all ranks alive
  world->ranks_ = ranks;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&world->mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return world;
}

void World::free(World* world) { munmap(world, kMapping); }

World::Entry* World::find(std::string_view key) {
  auto* arena = reinterpret_cast<char*>(this + 1);
  const size_t bucket = std::hash<std::string_view>()(key) % buckets_.size();
  for (uint64_t at = buckets_[bucket]; at != 0;) {
    auto* entry = reinterpret_cast<Entry*>(arena + at);
    if (entry->alive != 0 && entry->key() == key) return entry;
    at = entry->next;
  }
  return nullptr;
}

void World::put(std::string_view key, std::string_view value) {
  Entry* entry = find(key);
  if (entry != nullptr && value.size() <= entry->capacity) {
    if (!value.empty()) std::memcpy(entry->data(), value.data(), value.size());
    entry->size = value.size();
    return;
  }
  if (entry != nullptr) entry->alive = 0;
  const uint64_t at = (std::max<uint64_t>(used_, 64) + 63) / 64 * 64;
  const uint64_t capacity = std::max<uint64_t>(value.size(), 32);
  if (at + sizeof(Entry) + key.size() + capacity > kArena) throw std::bad_alloc();
  entry = reinterpret_cast<Entry*>(reinterpret_cast<char*>(this + 1) + at);
  const size_t bucket = std::hash<std::string_view>()(key) % buckets_.size();
  *entry = {buckets_[bucket], capacity, value.size(), static_cast<uint32_t>(key.size()), 1};
  if (!key.empty()) std::memcpy(entry->bytes(), key.data(), key.size());
  if (!value.empty()) std::memcpy(entry->data(), value.data(), value.size());
  used_ = at + sizeof(Entry) + key.size() + capacity;
  buckets_[bucket] = at;
}

void World::changed() { futex_wake(changes_); }

void World::set(std::string_view key, std::string_view value) {
  {
    const Lock lock(*this);
    put(key, value);
  }
  changed();
}

std::optional<std::string> World::look(std::string_view key) {
  const Lock lock(*this);
  Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  return std::string(entry->value());
}

World::Wait World::get(std::string_view key, std::string& value, Nanoseconds timeout,
                       const std::function<bool()>& give_up) {
  const Nanoseconds deadline = timeout < 0 ? INT64_MAX : now() + timeout;
  for (;;) {
    const uint32_t seen = changes_.load();
    if (give_up()) return Wait::kGivenUp;
    if (std::optional<std::string> found = look(key)) {
      value = std::move(*found);
      return Wait::kDone;
    }
    const Nanoseconds left = deadline - now();
    if (left <= 0) return Wait::kTimeout;
    futex_wait(changes_, seen, std::min(left, 20 * kMillisecond));
  }
}

int64_t World::add(std::string_view key, int64_t delta) {
  int64_t sum = delta;
  {
    const Lock lock(*this);
    if (Entry* entry = find(key)) sum += std::stoll(std::string(entry->value()));
    put(key, std::to_string(sum));
  }
  changed();
  return sum;
}

std::string World::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  std::string result;
  {
    const Lock lock(*this);
    Entry* entry = find(key);
    if (entry != nullptr ? entry->value() == expected : expected.empty()) put(key, desired);
    if ((entry = find(key)) != nullptr) result = entry->value();
  }
  changed();
  return result;
}

bool World::erase(std::string_view key) {
  const Lock lock(*this);
  Entry* entry = find(key);
  if (entry != nullptr) entry->alive = 0;
  return entry != nullptr;
}

bool World::barrier(Nanoseconds timeout) {
  const Nanoseconds deadline = now() + timeout;
  const uint32_t generation = generation_.load();
  if (arrived_.fetch_add(1) + 1 == static_cast<uint32_t>(ranks_)) {
    arrived_.store(0);
    generation_.fetch_add(1);
    changed();
    return true;
  }
  for (;;) {
    const uint32_t seen = changes_.load();
    if (generation_.load() != generation) return true;
    if (broken_.load() != 0) return false;
    const Nanoseconds left = deadline - now();
    if (left <= 0) return false;
    futex_wait(changes_, seen, std::min(left, 20 * kMillisecond));
  }
}

void World::break_barriers() {
  broken_.store(1);
  changed();
}

void World::leave(int32_t member) {
  members_[static_cast<size_t>(member)].has_left.store(true);
  changed();
}

void World::await_leaving(Nanoseconds timeout) {
  const Nanoseconds deadline = now() + timeout;
  const auto stays = [](const Member& rank) { return !rank.has_left.load() && rank.state.load() == RankState::kAlive; };
  for (;;) {
    const uint32_t seen = changes_.load();
    const Nanoseconds left = deadline - now();
    if (left <= 0 || std::none_of(members_.begin(), members_.begin() + ranks_, stays)) return;
    futex_wait(changes_, seen, std::min(left, 20 * kMillisecond));
  }
}

void World::set_step(int32_t member, std::string_view text) {
  auto& step = members_[static_cast<size_t>(member)].step;
  const size_t size = std::min(text.size(), step.size() - 1);
  for (size_t i = 0; i < size; ++i) step[i].store(text[i], std::memory_order_relaxed);
  step[size].store('\0', std::memory_order_relaxed);
}

std::string World::step(int32_t member) const {
  std::string text;
  for (const auto& c : members_[static_cast<size_t>(member)].step) {
    const char character = c.load(std::memory_order_relaxed);
    if (character == '\0') break;
    text += character;
  }
  return text;
}

void World::set_pid(int32_t member, pid_t pid) { members_[static_cast<size_t>(member)].pid.store(pid); }
pid_t World::pid(int32_t member) const { return members_[static_cast<size_t>(member)].pid.load(); }

void World::set_state(int32_t rank, RankState state) {
  if (state == RankState::kLost) mark_failed();
  members_[static_cast<size_t>(rank)].state.store(state);
  futex_wake(states_);
  changed();
}
RankState World::state(int32_t rank) const { return members_[static_cast<size_t>(rank)].state.load(); }
uint32_t World::states_version() const { return states_.load(); }
void World::wait_for_state_change(uint32_t seen) { futex_wait(states_, seen, 50 * kMillisecond); }

}  // namespace backplane::conformance
