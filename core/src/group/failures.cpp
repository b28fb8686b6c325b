// SPDX-License-Identifier: Apache-2.0
#include "group/failures.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backplane/base/grace.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kCausePollNs = 100'000'000;

// The time that the other ranks have to send their positions: a tenth of the operation's timeout, within limits.
int64_t position_timeout(int64_t timeout_ns) {
  const int64_t tenth = timeout_ns < 0 ? INT64_MAX : timeout_ns / 10;
  return std::clamp<int64_t>(tenth, 80'000'000, 500'000'000);
}

}  // namespace

Error Failures::with_context(const Error& error, const Operation& operation) const {
  std::string text = fmt::format("rank {} of group '{}': {} #{}: {}", config_.rank, config_.name, describe(operation),
                                 operation.op.seq, error.what());
  if (error.status() == BP_TIMEOUT) text += fmt::format(" (after {} s)", seconds(operation.op.timeout_ns));
  return Error(error.status(), text, error.peer_rank(), error.native_code());
}

bool Failures::is_known_loss(const Error& error) const {
  return job_.detector && job_.detector->is_known_loss(error, config_.global_ranks);
}

// A connection often breaks before its cause is known: the failure detector or another rank reports it soon.
std::optional<Error> Failures::cause_behind(const Error& error) const {
  const int32_t status = error.status();
  const bool may_be_report = status == BP_PEER_LOST || status == BP_INTERNAL;
  const bool may_be_loss = may_be_report || status == BP_RESOURCE;
  if (!may_be_loss && status != BP_TIMEOUT) return std::nullopt;
  const bool watches = job_.detector && job_.detector->watches();
  const int32_t peer = error.peer_rank();
  const bool is_named = peer >= 0 && peer < config_.world_size;
  const int32_t suspect = is_named ? config_.global_ranks[static_cast<size_t>(peer)] : -1;
  const int64_t longest = watches ? base::grace::kDeath : may_be_report && job_.reporter ? base::grace::kCause : 0;
  const Deadline deadline = Deadline::after(may_be_loss ? longest : 0);
  for (;;) {
    const auto loss = watches ? job_.detector->loss_among(config_.global_ranks) : std::nullopt;
    if (loss) return loss_error(*loss, config_.global_ranks);
    if (deadline.passed() || !state_.active() || (watches && job_.detector->has_left(suspect, deadline))) break;
    state_.await_cause(std::min(deadline.left_ns(), kCausePollNs));
  }
  return may_be_report ? state_.cause() : std::nullopt;
}

Error Failures::handle(const Error& error, const Operation& operation, bool begun) {
  const bool is_collective = collective(operation.op.kind);
  const std::optional<Error> cause = cause_behind(error);
  if (cause && is_known_loss(*cause)) {
    if (is_collective) state_.abort(*cause);
    return *cause;
  }
  // A backend that returns BP_UNSUPPORTED has not begun the operation. After any other error it may have succeeded on
  // other ranks.
  const bool breaks = is_collective && (begun || error.status() != BP_UNSUPPORTED);
  const bool has_diagnosis = is_collective && (error.status() == BP_TIMEOUT || error.status() == BP_INVALID);
  if (cause || !breaks || !has_diagnosis) {
    return with_context(cause ? *cause : breaks ? break_group(error) : error, operation);
  }
  Error result = diagnosed(with_context(error, operation), operation);
  state_.abort(result);
  return result;
}

Diagnosis Failures::investigate(const Error& error, const Operation& operation) {
  const uint64_t seq = operation.op.seq;
  const Query query = {Query::Kind::kPosition, config_.key, config_.rank, seq, 0, -1, ""};
  std::map<int32_t, Position> positions;
  const Deadline deadline = Deadline::after(position_timeout(operation.op.timeout_ns));
  for (const auto& [rank, text] : job_.reporter->ask(query, config_.world_size, deadline)) {
    if (const auto answer = decode_position(text)) positions[rank] = *answer;
  }
  if (error.status() == BP_TIMEOUT) return diagnose(seq, signature(operation), config_.world_size, positions);
  const auto mismatch = find_mismatch(seq, positions);
  const int32_t failed_rank = error.peer_rank() < 0 ? config_.rank : error.peer_rank();
  return mismatch ? *mismatch : Diagnosis{error.what(), failed_rank};
}

Error Failures::diagnosed(const Error& error, const Operation& operation) {
  if (!job_.reporter) return error;
  try {
    std::optional<Error> known;
    {
      const std::lock_guard lock(mutex_);
      known = agreed_;
    }
    if (!known) {
      const Diagnosis diagnosis = investigate(error, operation);
      const Error mine(error.status(), diagnosis.text, diagnosis.failed_rank);
      known = agree_on(mine, Deadline::after(kStoreTimeNs)).value_or(mine);
      write_log(BP_LOG_ERROR, fmt::format("group '{}' is broken: {}", config_.name, known->what()));
    }
    const bool is_included = std::strstr(error.what(), known->what()) != nullptr;
    if (std::strcmp(known->what(), error.what()) == 0 || (is_included && error.status() == BP_TIMEOUT)) return error;
    if (error.status() == BP_INVALID) {
      return with_context(Error(BP_INVALID, known->what(), known->peer_rank(), error.native_code()), operation);
    }
    return Error(error.status(), fmt::format("{}: {}", error.what(), known->what()), known->peer_rank(),
                 error.native_code());
  } catch (const Error&) {  // the store is lost
    return error;
  }
}

Error Failures::break_group(const Error& cause) {
  Error agreed = cause;
  const bool is_shared = cause.status() != BP_CANCELLED && cause.status() != BP_AGAIN;
  if (state_.active() && is_shared && job_.reporter) {
    try {
      const int32_t failed_rank = cause.peer_rank() < 0 ? config_.rank : cause.peer_rank();
      const std::string text = fmt::format("{} (reported by rank {})", cause.what(), config_.rank);
      agreed = agree_on(Error(cause.status(), text, failed_rank), Deadline::after(kStoreTimeNs)).value_or(cause);
    } catch (const Error&) {
      // The store is lost.
    }
  }
  state_.abort(agreed);
  return agreed;
}

std::optional<Error> Failures::agree_on(const Error& mine, Deadline deadline) {
  const std::string proposal = fmt::format("{} {} {}", mine.status(), mine.peer_rank(), mine.what());
  const std::string first = config_.store->view()->compare_set("failure", "", proposal, deadline);
  const size_t rank = first.find(' ') + 1;
  const size_t text = first.find(' ', rank) + 1;
  std::optional<Error> other;
  if (first != proposal && rank != 0 && text != 0) {
    other.emplace(static_cast<int32_t>(std::atoi(first.c_str())), first.substr(text),
                  static_cast<int32_t>(std::atoi(first.c_str() + rank)));
  }
  {
    const std::lock_guard lock(mutex_);
    agreed_ = other.value_or(mine);
  }
  if (!other) {
    job_.reporter->tell(
        {Query::Kind::kBroken, config_.key, config_.rank, 0, mine.status(), mine.peer_rank(), mine.what()}, deadline);
  }
  return other;
}

void Failures::report(const Error& error) {
  const std::optional<Error> cause = cause_behind(error);
  if (!cause) break_group(error);
  if (cause) state_.abort(*cause);
}

void Failures::abort(const Error& cause) {
  const UseGuard use(state_);  // keeps job_
  if (state_.active() && state_.started() && job_.reporter) {
    try {
      const std::string text = fmt::format("rank {} aborted the group: {}", config_.rank, cause.what());
      agree_on(Error(cause.status(), text, config_.rank), Deadline::after(base::grace::kCause));
    } catch (const Error&) {
      // The store is busy or lost. The other ranks see that their connections break.
    }
  }
  state_.abort(cause);
}

void Failures::report_mismatch(const std::string& text) {
  const Error mine(BP_INVALID, text, config_.rank);
  Error agreed = mine;
  try {
    agreed = agree_on(mine, Deadline::after(kStoreTimeNs)).value_or(mine);
  } catch (const Error&) {
    // The store is busy or lost.
  }
  write_log(BP_LOG_ERROR, fmt::format("group '{}' is broken: {}", config_.name, agreed.what()));
  state_.abort(Error(BP_INVALID, agreed.what(), agreed.peer_rank()));
}

void Failures::accept(const Query& query) {
  if (query.rank == config_.rank) return;
  const Error cause(query.status, query.text, query.failed_rank);
  {
    const std::lock_guard lock(mutex_);
    if (!agreed_) agreed_ = cause;
  }
  state_.abort(cause);
}

}  // namespace backplane::core
