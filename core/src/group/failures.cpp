// SPDX-License-Identifier: Apache-2.0
#include "group/failures.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backplane/base/grace.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

// How long the other ranks may take to send their positions: a tenth of the operation's own timeout, within limits.
int64_t time_to_answer(int64_t timeout_ns) {
  const int64_t tenth = timeout_ns < 0 ? INT64_MAX : timeout_ns / 10;
  return std::clamp<int64_t>(tenth, 80'000'000, 500'000'000);
}

}  // namespace

Error Failures::labelled(const Error& error, const Operation& operation) const {
  std::string text = fmt::format("rank {} of group '{}': {} #{}: {}", config_.rank, config_.name, describe(operation),
                                 operation.op.seq, error.what());
  if (error.status() == BP_TIMEOUT) text += fmt::format(" (after {} s)", seconds(operation.op.timeout_ns));
  return Error(error.status(), text, error.peer_rank(), error.native_code());
}

Error Failures::explained(const Error& error) const {
  const int32_t status = error.status();
  const bool doubtful = status == BP_PEER_LOST || status == BP_INTERNAL || status == BP_RESOURCE;
  if (!job_.liveness || (!doubtful && status != BP_TIMEOUT)) return error;
  const bool waits = doubtful && state_.active();
  const int32_t peer = error.peer_rank();
  const bool named = peer >= 0 && peer < config_.world_size;
  const int32_t suspect = named ? config_.global_ranks[static_cast<size_t>(peer)] : -1;
  const auto loss =
      job_.liveness->await_loss(config_.global_ranks, suspect, Deadline::after(waits ? base::grace::kDeath : 0));
  return loss ? loss_error(*loss, config_.global_ranks) : error;
}

Error Failures::handle(const Error& error, const Operation& operation, bool begun) {
  const bool is_collective = collective(operation.op.kind);
  Error known = explained(error);
  if (job_.liveness && is_known_loss(known, *job_.liveness, config_.global_ranks)) {
    if (is_collective) state_.abort(known);
    return known;
  }
  const std::optional<Error> cause = cause_behind(error);
  Error whole = labelled(cause ? *cause : error, operation);
  if (is_collective && (whole.status() == BP_TIMEOUT || whole.status() == BP_INVALID)) {
    whole = diagnosed(whole, operation);
  }
  // A backend that returns BP_UNSUPPORTED has not begun. After any other error the operation may have succeeded on
  // other ranks.
  if (is_collective && (begun || error.status() != BP_UNSUPPORTED)) state_.abort(whole);
  return whole;
}

// A broken connection is often the first sign of a cause that all ranks are about to learn; then all report that cause.
std::optional<Error> Failures::cause_behind(const Error& error) const {
  if (!job_.reporter || (error.status() != BP_PEER_LOST && error.status() != BP_INTERNAL)) return std::nullopt;
  return state_.await_cause(base::grace::kCause);
}

Diagnosis Failures::investigate(const Error& error, const Operation& operation) {
  const uint64_t seq = operation.op.seq;
  const Query query = {Query::Kind::kPosition, config_.key, config_.rank, seq, 0, -1, ""};
  std::map<int32_t, Position> positions;
  const Deadline deadline = Deadline::after(time_to_answer(operation.op.timeout_ns));
  for (const auto& [rank, text] : job_.reporter->ask(query, config_.world_size, deadline)) {
    if (const auto answer = decode_position(text)) positions[rank] = *answer;
  }
  if (error.status() == BP_TIMEOUT) return diagnose(seq, signature(operation), config_.world_size, positions);
  const auto mismatch = find_mismatch(seq, positions);
  const int32_t culprit = error.peer_rank() < 0 ? config_.rank : error.peer_rank();
  return mismatch ? *mismatch : Diagnosis{error.what(), culprit};
}

Error Failures::diagnosed(const Error& error, const Operation& operation) {
  if (!job_.reporter) return error;
  try {
    std::optional<Diagnosis> known;
    {
      const std::lock_guard lock(mutex_);
      known = agreed_;
    }
    const Diagnosis diagnosis = known ? *known : agree_on(investigate(error, operation), error.status());
    const bool is_told = std::strstr(error.what(), diagnosis.text.c_str()) != nullptr;
    if (diagnosis.text == error.what() || (is_told && error.status() == BP_TIMEOUT)) return error;
    if (error.status() == BP_INVALID) {
      return labelled(Error(BP_INVALID, diagnosis.text, diagnosis.culprit, error.native_code()), operation);
    }
    return Error(error.status(), fmt::format("{}: {}", error.what(), diagnosis.text), diagnosis.culprit,
                 error.native_code());
  } catch (const Error&) {  // without the store no rank can be asked
    return error;
  }
}

Diagnosis Failures::agree_on(const Diagnosis& mine, int32_t status) {
  const std::string proposal = fmt::format("{} {}", mine.culprit, mine.text);
  const std::string agreed = config_.store->view()->compare_set("verdict", "", proposal, Deadline::after(kStoreTimeNs));
  const size_t space = agreed.find(' ');
  if (space == std::string::npos) return mine;
  const Diagnosis diagnosis = {agreed.substr(space + 1), static_cast<int32_t>(std::atoi(agreed.c_str()))};
  {
    const std::lock_guard lock(mutex_);
    agreed_ = diagnosis;
  }
  if (agreed == proposal) {
    job_.reporter->tell(
        {Query::Kind::kBroken, config_.key, config_.rank, 0, status, diagnosis.culprit, diagnosis.text});
  }
  write_log(BP_LOG_ERROR, fmt::format("group '{}' is broken: {}", config_.name, diagnosis.text));
  return diagnosis;
}

void Failures::report_mismatch(const std::string& text) {
  const Diagnosis diagnosis = agree_on({text, config_.rank}, BP_INVALID);
  state_.abort(Error(BP_INVALID, diagnosis.text, diagnosis.culprit));
}

void Failures::accept(const Query& query) {
  if (query.rank == config_.rank) return;
  {
    const std::lock_guard lock(mutex_);
    if (!agreed_) agreed_ = Diagnosis{query.text, query.culprit};
  }
  state_.abort(Error(query.status, query.text, query.culprit));
}

}  // namespace backplane::core
