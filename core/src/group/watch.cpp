// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a group tell each other when it does not get on: positions, verdicts, fingerprints; and what is
// written down for the operator.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "group/exchange.hpp"
#include "group/group.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kSample = 64;  // every so many collectives one is compared

// How long the others may take to say where they are: a fraction of the time that was waited in vain.
int64_t time_to_answer(int64_t timeout_ns) {
  const int64_t tenth = timeout_ns < 0 ? INT64_MAX : timeout_ns / 10;
  return std::clamp<int64_t>(tenth, 80'000'000, 500'000'000);
}

Recorder::Entry entry_of(const ValidOp& valid) {
  Recorder::Entry entry;
  entry.seq = valid.op.seq;
  entry.count = valid.count;
  entry.kind = valid.op.kind;
  entry.dtype = valid.op.dtype;
  entry.reduce_op = valid.op.reduce_op;
  entry.rank = valid.other;
  return entry;
}

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

const char* trace_directory() {
  const char* directory = std::getenv("BACKPLANE_TRACE_DIR");
  return directory == nullptr || *directory == '\0' ? nullptr : directory;
}

}  // namespace

Fingerprints fingerprints_wanted() {
  const char* wish = std::getenv("BACKPLANE_FINGERPRINT");
  const std::string text = wish == nullptr ? "" : wish;
  if (text == "off") return Fingerprints::kOff;
  if (text == "always") return Fingerprints::kAlways;
  if (!text.empty() && text != "sampled") {
    write_log(BP_LOG_WARN, fmt::format("BACKPLANE_FINGERPRINT is '{}'; it must be off, sampled or always. Taking "
                                       "sampled",
                                       text));
  }
  return Fingerprints::kSampled;
}

void Group::take_seat() {
  if (config_.world_size == 1) return;
  if (!reporter_) reporter_ = std::make_shared<Reporter>(config_.store->view(), config_.world_size);
  seat_ = reporter_->enter({config_.key, config_.rank, [this](const Question& question) { return answer(question); },
                            [this] {
                              compare_fingerprint();
                              dump_if_asked();
                            }});
}

void Group::leave_seat() {
  if (seat_) reporter_->leave(*seat_);
  seat_.reset();
}

std::string Group::answer(const Question& question) {
  if (question.kind == Question::Kind::kWhere) {
    return encode(position(recorder_, question.seq, process_identity()));
  }
  if (question.kind == Question::Kind::kTrace) return trace_json(true);
  if (question.rank == config_.rank) return {};
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_) verdict_ = Verdict{question.text, question.culprit};
  }
  abort(Error(question.status, question.text, question.culprit));
  return {};
}

Verdict Group::find_out(const Error& error, const ValidOp& valid) {
  const Question question = {Question::Kind::kWhere, config_.key, config_.rank, valid.op.seq, 0, -1, ""};
  std::map<int32_t, Position> positions;
  const Deadline deadline = Deadline::after(time_to_answer(valid.op.timeout_ns));
  for (const auto& [rank, text] : reporter_->ask(question, config_.world_size, deadline)) {
    if (const auto told = decode_position(text)) positions[rank] = *told;
  }
  if (error.status() == BP_TIMEOUT) return judge(valid.op.seq, words(entry_of(valid)), config_.world_size, positions);
  const auto mismatch = find_mismatch(valid.op.seq, positions);
  const int32_t culprit = error.peer_rank() < 0 ? config_.rank : error.peer_rank();
  return mismatch ? *mismatch : Verdict{error.what(), culprit};
}

Error Group::agreed(const Error& error, const ValidOp& valid) {
  if (!reporter_) return error;
  try {
    std::optional<Verdict> known;
    {
      const std::lock_guard lock(mutex_);
      known = verdict_;
    }
    const Verdict verdict = known ? *known : agree_on(find_out(error, valid), error.status());
    const bool says_so = std::strstr(error.what(), verdict.text.c_str()) != nullptr;
    if (verdict.text == error.what() || (says_so && error.status() == BP_TIMEOUT)) return error;
    if (error.status() == BP_INVALID) {
      return labelled(Error(BP_INVALID, verdict.text, verdict.culprit, error.native_code()), valid);
    }
    return Error(error.status(), fmt::format("{}: {}", error.what(), verdict.text), verdict.culprit,
                 error.native_code());
  } catch (const Error&) {  // without the store there is nobody to ask
    return error;
  }
}

Verdict Group::agree_on(const Verdict& mine, int32_t status) {
  const std::string proposal = fmt::format("{} {}", mine.culprit, mine.text);
  const std::string agreed = config_.store->view()->compare_set("verdict", "", proposal, Deadline::after(kStoreTimeNs));
  const size_t space = agreed.find(' ');
  if (space == std::string::npos) return mine;
  const Verdict verdict = {agreed.substr(space + 1), static_cast<int32_t>(std::atoi(agreed.c_str()))};
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
  }
  if (agreed == proposal) {
    reporter_->tell({Question::Kind::kBroken, config_.key, config_.rank, 0, status, verdict.culprit, verdict.text});
  }
  write_log(BP_LOG_ERROR, fmt::format("group '{}' is broken: {}", config_.name, verdict.text));
  return verdict;
}

// Once a second the ranks compare one collective that all of them have entered, if they get that far: each leaves what
// it did as number N, and whoever comes to the same number looks whether it was the same. Nothing is added to the
// operations themselves.
void Group::compare_fingerprint() {
  if (fingerprints_ == Fingerprints::kOff || state_.load() != State::kActive) return;
  const uint64_t count = collectives_.load();
  const bool rests = count == std::exchange(last_seen_, count);
  const uint64_t number = rests ? count : count - count % kSample;
  if (number == 0 || number == compared_) return;
  const std::optional<Recorder::Entry> entry = find_collective(recorder_, number);
  if (!entry) return;
  compared_ = number;
  const std::string key = fmt::format("fingerprint/{}", rests ? 0 : 1 + number / kSample % 8);
  const std::string mine = fmt::format("{} {} {}", number, config_.rank, words(*entry));
  const std::shared_ptr<Store> store = config_.store->view();
  const std::string theirs = store->compare_set(key, "", mine, Deadline::after(kStoreTimeNs));
  char* rest = nullptr;
  const uint64_t their_number = std::strtoull(theirs.c_str(), &rest, 10);
  if (their_number < number) {
    store->compare_set(key, theirs, mine, Deadline::after(kStoreTimeNs));
  } else if (their_number == number) {
    const auto their_rank = static_cast<int32_t>(std::strtol(rest, &rest, 10));
    const std::string their_words = *rest == ' ' ? rest + 1 : rest;
    if (their_words == words(*entry)) return;
    const Verdict verdict =
        agree_on({fmt::format("rank {} ({}) entered {} as #{} where rank {} entered {}", config_.rank,
                              process_identity(), words(*entry), number, their_rank, their_words),
                  config_.rank},
                 BP_INVALID);
    abort(Error(BP_INVALID, verdict.text, verdict.culprit));
  }
}

bool Group::compares_first(const bp_op& op) const {
  return fingerprints_ == Fingerprints::kAlways && config_.world_size > 1 && collective(op.kind);
}

// BACKPLANE_FINGERPRINT=always: nobody begins before all ranks have shown that they mean the same. The largest of all
// hashes and the largest of their complements tell whether they are equal.
void Group::check_fingerprint(Agent& agent, const ValidOp& valid) {
  if (!compares_first(valid.op)) return;
  // Ranks that are in different collectives must meet nevertheless, whatever serves those.
  const bool is_exempt = !exempt_[valid.op.kind].empty();
  Agent& common = is_exempt ? agent_of(BP_HOST) : agent;
  if (!common.can_complete()) return;
  const uint64_t mine = hash(words(entry_of(valid)));
  uint64_t values[2] = {mine, ~mine};
  ValidOp check;
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_U64;
  op.reduce_op = BP_MAX;
  op.timeout_ns = valid.op.timeout_ns;
  op.input = {values, 2, BP_HOST, 0};
  op.output = op.input;
  validate(op, config_.rank, config_.world_size, &check);
  check.op.seq = valid.op.seq;
  constexpr uint64_t kOwnTag = UINT64_C(1) << 62;  // beside that of the collective itself
  run_collective(common, check, config_.rank, config_.world_size, kOwnTag | valid.op.seq,
                 Deadline::after(op.timeout_ns));
  if (values[0] == ~values[1]) return;
  throw Error(BP_INVALID, "the ranks are not in the same collective");
}

void Group::dump(const std::string& why) const {
  const char* directory = trace_directory();
  if (directory == nullptr) return;
  const std::string path = fmt::format("{}/{}.rank{}.json", directory, config_.key, config_.rank);
  const std::string draft = fmt::format("{}.{}", path, getpid());
  std::FILE* file = std::fopen(draft.c_str(), "we");
  const std::string text = trace_json();
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed && std::rename(draft.c_str(), path.c_str()) == 0) return;
  write_log(BP_LOG_WARN, fmt::format("cannot write the trace of group '{}' to {} ({}): {}", config_.name, path, why,
                                     std::strerror(errno)));
  std::remove(draft.c_str());
}

// Whoever touches DIR/request gets a dump within a tick or two.
void Group::dump_if_asked() {
  const char* directory = trace_directory();
  struct stat status = {};
  if (directory == nullptr || stat(fmt::format("{}/request", directory).c_str(), &status) != 0) return;
  const int64_t asked = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
  if (asked == std::exchange(dumped_ns_, asked)) return;
  dump("requested");
}

}  // namespace backplane::core
