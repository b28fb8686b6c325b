// SPDX-License-Identifier: Apache-2.0
#include "group/composite.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "backplane/abi/ext/memory.h"
#include "error.hpp"
#include "group/agent.hpp"
#include "group/host_map.hpp"
#include "log.hpp"
#include "registry/choice.hpp"

namespace backplane::core {

// An operation in flight: of a part, or a receive of any source.
struct Composite::Work {
  CompositePart* part = nullptr;
  bp_work* work = nullptr;
  bp_result result = {sizeof(bp_result), -1, 0, 0};
  bp_result* given = nullptr;  // where the program wants it, may be NULL
  std::shared_ptr<AnySource::Receive> receive;

  // The result of the part's operation.
  void hand_over(int32_t status) const {
    if (given != nullptr && (status == BP_OK || status == BP_INVALID)) copy_result(*part, result, given);
  }
  static void copy_result(const CompositePart& part, bp_result from, bp_result* to) {
    part.result_in_group(&from);
    to->source = from.source;
    to->bytes = from.bytes;
    to->tag = from.tag;
  }
};

struct Composite::Message {
  CompositePart* part;
  bp_message* message;
};

struct Composite::Calls {
  static Composite& of(void* self) { return *static_cast<Composite*>(self); }
  static Work& work_of(bp_work* work) { return *reinterpret_cast<Work*>(work); }

  static int32_t submit(void* self, const bp_op* op, bp_work** work, bp_error* err) noexcept {
    int32_t status = BP_OK;
    const int32_t thrown = guarded(err, [&] { status = of(self).submit(*op, work, err); });
    return thrown != BP_OK ? thrown : status;
  }
  static int32_t work_wait(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) noexcept {
    int32_t status = BP_OK;
    const int32_t thrown = guarded(err, [&] { status = of(self).wait(work_of(work), timeout_ns, err); });
    return thrown != BP_OK ? thrown : status;
  }
  static int32_t work_test(void* self, bp_work* work, bp_error* err) noexcept { return work_wait(self, work, 0, err); }
  static void work_cancel(void* self, bp_work* work) noexcept {
    const Work& own = work_of(work);
    if (own.receive) return of(self).any_source_->cancel(*own.receive);
    own.part->api().work_cancel(own.part->self(), own.work);
  }
  static void work_release(void*, bp_work* work) noexcept {
    const std::unique_ptr<Work> own(&work_of(work));
    if (own->work != nullptr) own->part->api().work_release(own->part->self(), own->work);
  }
  static void abort(void* self, const bp_error* why) noexcept {
    for (CompositePart* part : {of(self).inside_.get(), of(self).between_.get()}) {
      if (part != nullptr) part->abort(*why);
    }
    if (of(self).any_source_) of(self).any_source_->abort(*why);
  }
  static void destroy(void*) noexcept {}  // the core owns the object
  static const void* extension(void* self, const char* id) noexcept { return of(self).forwarded(id); }

  static int32_t probe(void* ctx, int32_t peer, uint64_t tag, bp_message** message, bp_result* result,
                       bp_error* err) noexcept {
    int32_t status = BP_OK;
    const int32_t thrown = guarded(err, [&] { status = of(ctx).probe(peer, tag, message, result, err); });
    return thrown != BP_OK ? thrown : status;
  }
  static void drop(void*, bp_message* message) noexcept {
    const std::unique_ptr<Message> own(reinterpret_cast<Message*>(message));
    own->part->probe()->drop(own->part->probe()->ctx, own->message);
  }
  static int32_t on_end(void* ctx, bp_work* work, void (*ended)(void*), void* to, bp_error* err) noexcept {
    const Work& own = work_of(work);
    if (own.receive) {
      of(ctx).any_source_->on_end(*own.receive, ended, to);
      return BP_OK;
    }
    const bp_notify_api* const notify = own.part->notify();
    if (notify == nullptr) {
      return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "the backend of this message does not report its end");
    }
    return notify->on_end(notify->ctx, own.work, ended, to, err);
  }
  static void ask(void* ctx, int32_t (*interrupted)(void*), void* to) noexcept {
    for (CompositePart* part : {of(ctx).inside_.get(), of(ctx).between_.get()}) {
      if (part == nullptr) continue;
      const auto* const table = static_cast<const bp_interrupt_api*>(part->extension(BP_EXT_INTERRUPT));
      table->ask(table->ctx, interrupted, to);
    }
  }

  static constexpr bp_process_group_api kApi = {sizeof(bp_process_group_api),
                                                0,
                                                submit,
                                                work_test,
                                                work_wait,
                                                work_cancel,
                                                work_release,
                                                abort,
                                                destroy,
                                                extension};
};

Composite::Composite(const Member& member, const std::shared_ptr<const BackendOptions>& options,
                     const AgentConfig& config)
    : member_(member) {
  start(*options, config);
  own_ = {sizeof(bp_agent),
          BP_KIND_PROCESS_GROUP,
          &Calls::kApi,
          this,
          config.rank,
          config.world_size,
          member.backend->capabilities,
          member.backend->capability_count,
          0};
  offer_extensions();
  CompositePart& first = inside_ ? *inside_ : *between_;
  agent_ = topology_.is_flat() && first.is_like_group() ? first.instance().agent() : own_;
}

Composite::~Composite() = default;

void Composite::start(const BackendOptions& options, const AgentConfig& config) {
  const Deadline deadline = Deadline::after(config.timeout_ns);
  const auto own_rank = static_cast<size_t>(config.rank);
  const auto keys = make_prefix_store(config.store, "hosts/");
  const std::string host = host_identity(config.global_ranks[own_rank]);
  const std::vector<int32_t> hosts = host_numbers(*keys, config.rank, config.world_size, host, deadline);
  topology_.levels = {hosts};
  std::vector<int32_t> all(hosts.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> near;
  std::copy_if(all.begin(), all.end(), std::back_inserter(near),
               [&](int32_t rank) { return hosts[static_cast<size_t>(rank)] == hosts[own_rank]; });
  const auto start_part = [&](size_t part, const std::vector<int32_t>& ranks, const std::string& prefix,
                              const CompositePart* parent) {
    AgentConfig own = config;
    own.timeout_ns = deadline.left_ns();
    return std::make_unique<CompositePart>(*member_.parts[part], options.parts()[part], ranks, own, prefix,
                                           member_.backend->tag_bits, parent);
  };
  const bool is_one_host = near.size() == all.size();
  if (near.size() > 1 || is_one_host) {
    inside_ = start_part(0, near, fmt::format("inside/{}/", hosts[own_rank]), nullptr);
  }
  if (!is_one_host) {
    const bool has_parent = config.parent != nullptr && config.parent->api == &Calls::kApi;
    between_ = start_part(1, all, "between/", has_parent ? Calls::of(config.parent->self).between_.get() : nullptr);
  }
  if (inside_ && between_ && inside_->probe() != nullptr) {
    any_source_ = std::make_unique<AnySource>(std::vector<CompositePart*>{inside_.get()}, between_.get());
  }
}

void Composite::offer_extensions() {
  const auto all = [this](auto has) { return (!inside_ || has(*inside_)) && (!between_ || has(*between_)); };
  if (all([](const CompositePart& part) { return part.probe() != nullptr; })) {
    probe_ = {sizeof(bp_probe_api), 0, this, Calls::probe, Calls::drop};
  }
  notify_ = {sizeof(bp_notify_api), 0, this, Calls::on_end};
  const auto asks = [](const CompositePart& part) {
    const auto* const table = static_cast<const bp_interrupt_api*>(part.extension(BP_EXT_INTERRUPT));
    return table != nullptr && BP_HAS(table, ask) && table->ask != nullptr;
  };
  if (all(asks)) interrupt_ = {sizeof(bp_interrupt_api), 0, this, Calls::ask};
}

const void* Composite::forwarded(const char* id) const {
  const std::string_view wanted = id == nullptr ? "" : id;
  if (wanted == BP_EXT_PROBE) return probe_.probe == nullptr ? nullptr : &probe_;
  if (wanted == BP_EXT_NOTIFY) return &notify_;
  if (wanted == BP_EXT_INTERRUPT) return interrupt_.ask == nullptr ? nullptr : &interrupt_;
  // Memory helps most where it is read in place. Between hosts it is ordinary memory.
  if (wanted == BP_EXT_MEMORY) return (inside_ ? *inside_ : *between_).extension(BP_EXT_MEMORY);
  return nullptr;
}

bool Composite::hung() const {
  return (inside_ && inside_->instance().hung()) || (between_ && between_->instance().hung());
}

void Composite::request_abort(const std::string& why) {
  if (inside_) inside_->instance().request_abort(why);
  if (between_) between_->instance().request_abort(why);
}

CompositePart& Composite::part_of(int32_t peer) const {
  const bool is_near = inside_ && (!between_ || inside_->contains(peer));
  return is_near ? *inside_ : *between_;
}

int32_t Composite::submit(const bp_op& op, bp_work** work, bp_error* err) {
  if (op.kind != BP_RECV) return pass(part_of(op.peer), op, nullptr, work, err);
  if (BP_HAS(&op, message) && op.message != nullptr) {
    const std::unique_ptr<Message> probed(reinterpret_cast<Message*>(op.message));
    return pass(*probed->part, op, probed->message, work, err);
  }
  const bool has_two = inside_ && between_;
  if (op.peer == BP_ANY_SOURCE && has_two) return receive_any(op, nullptr, work, err);
  CompositePart& part = op.peer == BP_ANY_SOURCE ? (inside_ ? *inside_ : *between_) : part_of(op.peer);
  if (any_source_ && any_source_->must_queue(part, op)) return receive_any(op, &part, work, err);
  return pass(part, op, nullptr, work, err);
}

int32_t Composite::pass(CompositePart& part, const bp_op& op, bp_message* message, bp_work** work, bp_error* err) {
  auto own = std::make_unique<Work>();
  own->part = &part;
  own->given = op.kind == BP_RECV ? op.result : nullptr;
  bp_op passed = part.op_in_part(op, &own->result);
  passed.message = message;
  bp_error report;
  bp_error_init(&report);
  const int32_t status = part.api().submit(part.self(), &passed, &own->work, &report);
  if (status != BP_OK || own->work == nullptr) {
    own->hand_over(status);
    return part.error_in_group(status, report, err);
  }
  *work = reinterpret_cast<bp_work*>(own.release());
  return BP_OK;
}

int32_t Composite::receive_any(const bp_op& op, CompositePart* only, bp_work** work, bp_error* err) {
  if (!any_source_) {
    return bp_error_set(err, BP_UNSUPPORTED, 0, -1,
                        fmt::format("recv: backend {} cannot receive from any rank, because {} has no probes; name the "
                                    "sender, or {}",
                                    member_.id, member_.parts.front()->id, kMatchingHint)
                            .c_str());
  }
  auto own = std::make_unique<Work>();
  int32_t status = BP_OK;
  own->receive = any_source_->submit(op, only, &status, err);
  if (!own->receive) return status;
  *work = reinterpret_cast<bp_work*>(own.release());
  return BP_OK;
}

int32_t Composite::wait(Work& work, int64_t timeout_ns, bp_error* err) {
  if (work.receive) return any_source_->wait(*work.receive, Deadline::after(timeout_ns), err);
  bp_error report;
  bp_error_init(&report);
  const bp_process_group_api& api = work.part->api();
  const int32_t status = timeout_ns == 0 ? api.work_test(work.part->self(), work.work, &report)
                                         : api.work_wait(work.part->self(), work.work, timeout_ns, &report);
  if (status != BP_AGAIN) work.hand_over(status);
  return work.part->error_in_group(status, report, err);
}

int32_t Composite::probe(int32_t peer, uint64_t tag, bp_message** message, bp_result* result, bp_error* err) {
  auto own = std::make_unique<Message>(Message{nullptr, nullptr});
  int32_t status = BP_OK;
  if (any_source_) {
    status = any_source_->probe(peer, tag, &own->part, &own->message, result, err);
  } else {
    own->part = inside_ ? inside_.get() : between_.get();
    bp_error report;
    bp_error_init(&report);
    const bp_probe_api* const table = own->part->probe();
    status = table->probe(table->ctx, own->part->rank_in_part(peer), own->part->tag_in_part(tag), &own->message, result,
                          &report);
    if (status == BP_OK) own->part->result_in_group(result);
    own->part->error_in_group(status, report, err);
  }
  if (status == BP_OK) *message = reinterpret_cast<bp_message*>(own.release());
  return status;
}

}  // namespace backplane::core
