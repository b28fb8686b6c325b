// SPDX-License-Identifier: Apache-2.0
#include "group/fingerprint.hpp"

#include <cstdlib>

#include "group/schedule_run.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kSample = 64;  // every so many collectives one is compared

std::optional<Recorder::Entry> find_collective(const Recorder& recorder, uint64_t seq) {
  for (const Recorder::Entry& entry : recorder.entries()) {
    if (collective(entry.kind) && entry.seq == seq) return entry;
  }
  return std::nullopt;
}

// FNV-1a.
uint64_t hash(const std::string& text) {
  uint64_t value = UINT64_C(0xcbf29ce484222325);
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * UINT64_C(0x100000001b3);
  return value;
}

}  // namespace

FingerprintCheck::FingerprintCheck(const GroupConfig& config, GroupState& state, const Recorder& recorder,
                                   const Agents& agents, Failures& failures)
    : config_(config),
      state_(state),
      recorder_(recorder),
      agents_(agents),
      failures_(failures),
      mode_(mode_from_environment()) {}

FingerprintCheck::Mode FingerprintCheck::mode_from_environment() {
  const char* given = std::getenv("BACKPLANE_FINGERPRINT");
  const std::string text = given == nullptr ? "" : given;
  if (text == "off") return Mode::kOff;
  if (text == "always") return Mode::kAlways;
  if (!text.empty() && text != "sampled") {
    write_log(BP_LOG_WARN, fmt::format("BACKPLANE_FINGERPRINT is '{}'; it must be off, sampled or always. Taking "
                                       "sampled",
                                       text));
  }
  return Mode::kSampled;
}

// Each rank stores the signature of its collective #N, for an N that all ranks that are far enough choose alike; a
// rank that finds #N there compares.
void FingerprintCheck::compare_sampled() {
  if (mode_ == Mode::kOff || !state_.active()) return;
  const uint64_t count = recorder_.collectives();
  const bool rests = count == std::exchange(last_seen_, count);
  const uint64_t number = rests ? count : count - count % kSample;
  if (number == 0 || number == compared_) return;
  const std::optional<Recorder::Entry> entry = find_collective(recorder_, number);
  if (!entry) return;
  compared_ = number;
  const std::string key = fmt::format("fingerprint/{}", rests ? 0 : 1 + number / kSample % 8);
  const std::string mine = fmt::format("{} {} {}", number, config_.rank, signature(*entry));
  const std::shared_ptr<Store> store = config_.store->view();
  const std::string theirs = store->compare_set(key, "", mine, Deadline::after(kStoreTimeNs));
  char* rest = nullptr;
  const uint64_t their_number = std::strtoull(theirs.c_str(), &rest, 10);
  if (their_number < number) {
    store->compare_set(key, theirs, mine, Deadline::after(kStoreTimeNs));
  } else if (their_number == number) {
    const auto their_rank = static_cast<int32_t>(std::strtol(rest, &rest, 10));
    const std::string their_signature = *rest == ' ' ? rest + 1 : rest;
    if (their_signature == signature(*entry)) return;
    failures_.report_mismatch(fmt::format("rank {} ({}) entered {} as #{} where rank {} entered {}", config_.rank,
                                          process_identity(), signature(*entry), number, their_rank, their_signature));
  }
}

// The largest of all hashes and the largest of their complements tell whether all are equal.
void FingerprintCheck::compare_now(const Operation& operation) const {
  // Ranks that are in different collectives must meet all the same, whichever agents serve those.
  Agent& common = agents_.depends_on_size(operation.op.kind) ? agents_.of(BP_HOST) : *operation.agent;
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
  validate(op, config_.rank, config_.world_size, &check);
  check.agent = &common;
  check.op.seq = operation.op.seq;
  constexpr uint64_t kOwnTag = UINT64_C(1) << 62;  // apart from the messages of the collective itself
  run_collective(check, config_.rank, config_.world_size, kOwnTag | operation.op.seq, Deadline::after(op.timeout_ns));
  if (values[0] == ~values[1]) return;
  throw Error(BP_INVALID, "the ranks are not in the same collective");
}

}  // namespace backplane::core
