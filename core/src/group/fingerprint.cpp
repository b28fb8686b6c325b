// SPDX-License-Identifier: Apache-2.0
#include "group/fingerprint.hpp"

#include <cstdlib>

#include "environment.hpp"
#include "group/group.hpp"
#include "group/schedule_run.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

constexpr const char* kAnnounced = "fingerprint/next";
constexpr uint64_t kSlots = 8;  // keys of signatures; the first is for groups that pause

std::string text_of(uint64_t number) { return number == 0 ? "" : std::to_string(number); }

// FNV-1a.
uint64_t hash(const std::string& text) {
  uint64_t value = UINT64_C(0xcbf29ce484222325);
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * UINT64_C(0x100000001b3);
  return value;
}

}  // namespace

FingerprintCheck::FingerprintCheck(Group& group)
    : group_(group),
      mode_(mode_from_environment()),
      checks_each_(mode_ == Mode::kAlways && group.config().world_size > 1) {}

FingerprintCheck::Mode FingerprintCheck::mode_from_environment() {
  const char* given = std::getenv("BACKPLANE_FINGERPRINT");
  const std::string text = given == nullptr ? "" : given;
  if (text == "off") return Mode::kOff;
  if (text == "always") return Mode::kAlways;
  if (!text.empty() && text != "sampled") {
    warn_of_value("BACKPLANE_FINGERPRINT", text, "off, sampled or always", "sampled");
  }
  return Mode::kSampled;
}

// All ranks compare the same collectives: those that a rank announces in the store before any rank enters them and, in
// a group that pauses, the last one.
void FingerprintCheck::compare_sampled() {
  if (mode_ == Mode::kOff || !group_.state().active()) return;
  const uint64_t count = group_.recorder().collectives();
  const uint64_t recent = count - std::exchange(last_seen_, count);
  if (recent == 0) return compare(count, 0);
  if (count <= announced_) return;
  compare(announced_, 1 + announced_ % (kSlots - 1));
  announce_next(count + 2 * recent);
}

// The first rank after the announced collective announces the next: `number`, which the ranks enter after the next call
// on each of them.
void FingerprintCheck::announce_next(uint64_t number) {
  const std::string before = text_of(announced_);
  const std::string now =
      group_.config().store->view()->compare_set(kAnnounced, before, text_of(number), Deadline::after(kStoreTimeNs));
  announced_ = std::strtoull(now.c_str(), nullptr, 10);
  group_.recorder().keep_collective(announced_);
}

// Each rank stores the signature of its collective #number, unless another rank has; then it compares the two.
void FingerprintCheck::compare(uint64_t number, uint64_t slot) {
  if (number == 0 || number == compared_) return;
  const std::optional<Recorder::Entry> entry = group_.recorder().find_collective(number);
  if (!entry) return;
  compared_ = number;
  const GroupConfig& config = group_.config();
  const std::string key = fmt::format("fingerprint/{}", slot);
  const std::string mine = fmt::format("{} {} {}", number, config.rank, signature(*entry));
  const std::shared_ptr<Store> store = config.store->view();
  const std::string theirs = store->compare_set(key, "", mine, Deadline::after(kStoreTimeNs));
  char* rest = nullptr;
  const uint64_t their_number = std::strtoull(theirs.c_str(), &rest, 10);
  if (their_number < number) {
    store->compare_set(key, theirs, mine, Deadline::after(kStoreTimeNs));
  } else if (their_number == number) {
    const auto their_rank = static_cast<int32_t>(std::strtol(rest, &rest, 10));
    const std::string their_signature = *rest == ' ' ? rest + 1 : rest;
    if (their_signature == signature(*entry)) return;
    group_.failures().report_mismatch(fmt::format("rank {} ({}) entered {} as #{} where rank {} entered {}",
                                                  config.rank, process_identity(), signature(*entry), number,
                                                  their_rank, their_signature));
  }
}

// All hashes are equal if the maximum of the hashes is the complement of the maximum of their complements.
void FingerprintCheck::compare_now(const Operation& operation) const {
  const GroupConfig& config = group_.config();
  // The agent must be the same on ranks that are in different collectives.
  const Agents& agents = group_.agents();
  Agent& common = agents.depends_on_size(operation.op.kind) ? agents.of(BP_HOST) : *operation.agent;
  if (!common.supports_schedules()) return;
  const uint64_t mine = hash(signature(operation));
  uint64_t values[2] = {mine, ~mine};
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_U64;
  op.reduce_op = BP_MAX;
  op.timeout_ns = operation.op.timeout_ns;
  op.input = {values, 2, BP_HOST, 0};
  op.output = op.input;
  Operation check;
  validate(op, config.rank, config.world_size, &check);
  check.agent = &common;
  check.op.seq = operation.op.seq;
  run_collective(check, config.rank, config.world_size, kOwnMessages | operation.op.seq,
                 Deadline::after(op.timeout_ns));
  if (values[0] == ~values[1]) return;
  throw Error(BP_INVALID, "the ranks are not in the same collective");
}

}  // namespace backplane::core
