// SPDX-License-Identifier: Apache-2.0
#include "init_raw.hpp"

#include <numeric>
#include <utility>

namespace backplane::conformance::init {

// The host's functions. Their context is the RawInit. Records calls of the functions that a waiting init must call.
struct RawInit::Watched {
  class Inside {
   public:
    explicit Inside(void* ctx) : count_(static_cast<RawInit*>(ctx)->inside_) { ++count_; }
    ~Inside() { --count_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::atomic<int>& count_;
  };
  static const bp_host& real(RawInit& self) { return *self.host_.table(); }
  // For a call of the store.
  static const bp_host& store_of(void* ctx) {
    auto& self = *static_cast<RawInit*>(ctx);
    if (++self.calls_ == self.stop_at_.load()) {
      self.stopped_.store(true);
      self.released_.wait(false);
    }
    return real(self);
  }

  static void log(void* ctx, uint32_t level, const char* text) {
    const bp_host& host = real(*static_cast<RawInit*>(ctx));
    host.log(host.ctx, level, text);
  }
  static int32_t abort_requested(void* ctx) {
    auto& self = *static_cast<RawInit*>(ctx);
    self.asked_.store(true);
    return real(self).abort_requested(real(self).ctx);
  }
  static int32_t set(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err) {
    const bp_host& host = store_of(ctx);
    return host.store_set(host.ctx, key, value, size, err);
  }
  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    const Inside inside(ctx);
    const bp_host& host = store_of(ctx);
    return host.store_get(host.ctx, key, buffer, capacity, size, timeout_ns, err);
  }
  static int32_t add(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err) {
    const bp_host& host = store_of(ctx);
    return host.store_add(host.ctx, key, delta, sum, err);
  }
  static int32_t wait(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
    const Inside inside(ctx);
    const bp_host& host = store_of(ctx);
    return host.store_wait(host.ctx, keys, count, timeout_ns, err);
  }
  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                             uint64_t* size, bp_error* err) {
    const bp_host& host = store_of(ctx);
    return host.store_compare_set(host.ctx, key, expected, expected_size, desired, desired_size, buffer, capacity, size,
                                  err);
  }
  static int32_t erase(void* ctx, const char* key, int32_t* existed, bp_error* err) {
    const bp_host& host = store_of(ctx);
    return host.store_delete(host.ctx, key, existed, err);
  }
  static void report_failure(void* ctx, const bp_error* why) {
    const bp_host& host = real(*static_cast<RawInit*>(ctx));
    host.report_failure(host.ctx, why);
  }
  static const void* extension(void* ctx, const char* id) {
    const bp_host& host = real(*static_cast<RawInit*>(ctx));
    return host.extension(host.ctx, id);
  }
};

RawInit::RawInit(Rank& rank, std::string space, int32_t rank_in_group, int32_t world_size, Nanoseconds timeout)
    : backend_(rank.backend()),
      space_(std::move(space)),
      values_(backend_, rank.run().options),
      global_ranks_(kMaxRanks),
      world_(rank.world()),
      host_(world_, space_, [](uint32_t, const char*) {}),
      table_(*host_.table()) {
  expect_world(rank, rank_in_group, world_size);
  table_.ctx = this;
  table_.log = Watched::log;
  table_.abort_requested = Watched::abort_requested;
  table_.store_set = Watched::set;
  table_.store_get = Watched::get;
  table_.store_add = Watched::add;
  table_.store_wait = Watched::wait;
  table_.store_compare_set = Watched::compare_set;
  table_.store_delete = Watched::erase;
  table_.extension = Watched::extension;
  table_.report_failure = Watched::report_failure;
  std::iota(global_ranks_.begin(), global_ranks_.end(), 0);
  init_.struct_size = sizeof init_;
  init_.rank = rank_in_group;
  init_.world_size = world_size;
  init_.device = -1;
  init_.name = space_.c_str();
  init_.host = &table_;
  init_.values = values_.data();
  init_.value_count = values_.count();
  init_.kind = BP_KIND_PROCESS_GROUP;
  init_.timeout_ns = timeout;
  init_.global_ranks = global_ranks_.data();
  agent_.struct_size = sizeof agent_;
}

RawInit::~RawInit() { close(); }

Outcome RawInit::run() {
  Outcome outcome;
  if (backend_.construct_options != nullptr) {
    const bp_options_request request = {sizeof(bp_options_request), values_.count(), values_.data(), 60 * kSecond,
                                        "env://"};
    outcome.status = backend_.construct_options(&backend_, &request, &options_, &outcome.error);
    if (!outcome.ok()) return outcome;
  }
  init_.options = options_;
  outcome.status = backend_.init(&backend_, &init_, &agent_, &outcome.error);
  started_ = outcome.ok();
  if (!started_) world_.mark_failed();
  return outcome;
}

void RawInit::close() {
  if (std::exchange(started_, false)) {
    host_.request_abort();
    static_cast<const bp_process_group_api*>(agent_.api)->destroy(agent_.self);
  }
  if (options_ != nullptr) backend_.destroy_options(&backend_, std::exchange(options_, nullptr));
}

}  // namespace backplane::conformance::init
