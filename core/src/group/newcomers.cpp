// SPDX-License-Identifier: Apache-2.0
#include "group/newcomers.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "group/group.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "rendezvous/rendezvous.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kWaiting = "waiting";
constexpr const char* kTaken = "join ";
constexpr int64_t kCallOffNs = INT64_C(2) * 1000000000;

std::string ask_key(int64_t id) { return fmt::format("ask/{}", id); }
std::string answer_key(int64_t id) { return fmt::format("answer/{}", id); }

int64_t parse_number(std::string_view text) {
  int64_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);  // "-", as written for none, leaves -1
  return number;
}

std::vector<Newcomers::Entry> parse_entries(const std::string& text) {
  std::vector<Newcomers::Entry> entries;
  for (const std::string& word : split(text, ' ')) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos) continue;
    entries.push_back({parse_number(word), parse_number(std::string_view(word).substr(colon + 1))});
  }
  return entries;
}

std::string encode_entries(const std::vector<Newcomers::Entry>& entries) {
  std::string text;
  for (const Newcomers::Entry& entry : entries) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", entry.id,
                        entry.attempt < 0 ? "-" : std::to_string(entry.attempt));
  }
  return text;
}

// "the newcomer (host, pid 17) is lost: its process ended", from the sentence about its number.
std::string newcomer_loss(const Loss& loss) {
  const size_t identity = loss.text.find('(');
  return identity == std::string::npos ? loss.text : "the newcomer " + loss.text.substr(identity);
}

// A newcomer's request, from asking until its start has ended.
class JoinRequest {
 public:
  JoinRequest(Newcomers& newcomers, const std::string& choices, Deadline deadline)
      : newcomers_(newcomers), id_(newcomers.new_id(deadline)), detector_(newcomers.enroll(id_, deadline)) {
    try {
      newcomers_.ask(id_, choices, deadline);
    } catch (...) {
      withdraw();
      throw;
    }
  }
  ~JoinRequest() { withdraw(); }
  JoinRequest(const JoinRequest&) = delete;
  JoinRequest& operator=(const JoinRequest&) = delete;

  int64_t id() const { return id_; }
  const std::shared_ptr<FailureDetector>& detector() const { return detector_; }

 private:
  void withdraw() noexcept {
    try {
      const auto entry = newcomers_.forget(id_, Deadline::after(kCallOffNs));
      if (!entry || entry->attempt < 0) return;
      call_off(*newcomers_.group_keys(entry->attempt),
               fmt::format("the newcomer ({}) has given up", process_identity()));
    } catch (const std::exception&) {
      // The store is lost.
    }
  }

  Newcomers& newcomers_;
  const int64_t id_;
  const std::shared_ptr<FailureDetector> detector_;
};

GroupConfig newcomer_config(GroupConfig config, int32_t rank, int32_t world_size, const Attempt& attempt,
                            Deadline deadline) {
  config.name = attempt.text;
  config.base_name = attempt.text.substr(0, attempt.text.rfind("-grown"));
  config.rank = rank;
  config.world_size = world_size;
  config.global_ranks.resize(static_cast<size_t>(world_size));
  std::iota(config.global_ranks.begin(), config.global_ranks.end(), 0);
  config.start_timeout_ns = deadline.infinite() ? BP_NO_TIMEOUT : std::max<int64_t>(deadline.left_ns(), 1);
  return config;
}

}  // namespace

std::string encode(const Attempt& attempt) {
  return fmt::format("{} {}\n{}", attempt.number, fmt::join(attempt.newcomers, " "), attempt.text);
}

Attempt decode_attempt(const std::string& text) {
  const size_t line = text.find('\n');
  Attempt attempt;
  attempt.number = parse_number(text);
  attempt.text = line == std::string::npos ? "" : text.substr(line + 1);
  const std::vector<std::string> words = split(std::string_view(text).substr(0, line), ' ');
  for (size_t i = 1; i < words.size(); ++i) {
    if (!words[i].empty()) attempt.newcomers.push_back(parse_number(words[i]));
  }
  return attempt;
}

Newcomers::Newcomers(const std::shared_ptr<Store>& store) : keys_(make_prefix_store(store, "grow/")) {}

std::shared_ptr<Store> Newcomers::group_keys(int64_t attempt) const {
  return make_prefix_store(keys_, fmt::format("group/{}/", attempt));
}

std::shared_ptr<FailureDetector> Newcomers::enroll(int64_t id, Deadline deadline) {
  return FailureDetector::enroll(*make_prefix_store(keys_, "asking/"), static_cast<int32_t>(id), deadline);
}

std::vector<Newcomers::Entry> Newcomers::entries(Deadline deadline) {
  if (!keys_->check({kWaiting}, deadline)) return {};
  return parse_entries(keys_->get(kWaiting, deadline));
}

int64_t Newcomers::count(Deadline deadline) {
  const auto all = entries(deadline);
  return std::count_if(all.begin(), all.end(), [](const Entry& entry) { return entry.attempt < 0; });
}

void Newcomers::update(const std::function<void(std::vector<Entry>&)>& change, Deadline deadline) {
  std::string held = keys_->check({kWaiting}, deadline) ? keys_->get(kWaiting, deadline) : "";
  for (;;) {
    std::vector<Entry> entries = parse_entries(held);
    change(entries);
    const std::string desired = encode_entries(entries);
    if (desired == held) return;
    const std::string found = keys_->compare_set(kWaiting, held, desired, deadline);
    if (found == desired) return;
    held = found;
    if (deadline.passed()) fail(BP_TIMEOUT, "the list of newcomers at {} changes too often", describe());
  }
}

void Newcomers::ask(int64_t id, const std::string& choices, Deadline deadline) {
  keys_->set(ask_key(id), fmt::format("{}\n{}", process_identity(), choices), deadline);
  update([id](std::vector<Entry>& entries) { entries.push_back({id, -1}); }, deadline);
}

Attempt Newcomers::answer(int64_t id, int32_t* rank, int32_t* world_size, Deadline deadline) {
  const Allowance allowance(deadline);
  std::string text;
  try {
    text = keys_->get(answer_key(id), deadline);
  } catch (const Error& e) {
    if (e.status() != BP_TIMEOUT) throw;
    fail(BP_TIMEOUT,
         "no group took this process within {} (at {}); let all members of the group call grow with this store",
         allowance.text(), describe());
  }
  if (!text.starts_with(kTaken)) throw Error(BP_INVALID, text);
  const std::vector<std::string> words = split(text, ' ');
  const size_t at = text.find(' ', text.find(' ', std::string_view(kTaken).size()) + 1) + 1;
  if (words.size() < 4 || at == 0) fail(BP_INTERNAL, "malformed answer to a newcomer: {}", core::quoted(text));
  *rank = static_cast<int32_t>(parse_number(words[1]));
  *world_size = static_cast<int32_t>(parse_number(words[2]));
  return decode_attempt(text.substr(at));
}

std::optional<Newcomers::Entry> Newcomers::forget(int64_t id, Deadline deadline) {
  std::optional<Entry> removed;
  update(
      [id, &removed](std::vector<Entry>& entries) {
        const auto found =
            std::find_if(entries.begin(), entries.end(), [id](const Entry& each) { return each.id == id; });
        removed = found == entries.end() ? std::nullopt : std::optional<Entry>(*found);
        if (removed) entries.erase(found);
      },
      deadline);
  keys_->remove(ask_key(id), deadline);
  keys_->remove(answer_key(id), deadline);
  return removed;
}

std::vector<int64_t> Newcomers::admit(std::vector<Entry>& entries, const Absences& absences, const std::string& choices,
                                      std::vector<std::string>* reasons, Deadline deadline) {
  std::vector<int64_t> admitted;
  std::vector<Entry> kept;
  for (const Entry& entry : entries) {
    const bool is_absent = absences.count(static_cast<int32_t>(entry.id)) != 0;
    const std::string asked =
        keys_->check({ask_key(entry.id)}, deadline) ? keys_->get(ask_key(entry.id), deadline) : "";
    const std::string identity = asked.substr(0, asked.find('\n'));
    if (is_absent || asked.empty()) {
      if (is_absent) reasons->push_back(fmt::format("the newcomer ({}) is lost", identity));
      keys_->remove(ask_key(entry.id), deadline);
      keys_->remove(answer_key(entry.id), deadline);
      continue;
    }
    const std::string theirs = asked.substr(identity.size() + 1);
    if (entry.attempt >= 0 && keys_->check({answer_key(entry.id)}, deadline)) {
      kept.push_back(entry);  // of an attempt that has ended; it is about to ask again
      continue;
    }
    if (theirs == choices) {
      admitted.push_back(entry.id);
      kept.push_back({entry.id, -1});
      continue;
    }
    reasons->push_back(
        fmt::format("the newcomer ({}) chose {}, the members of the group chose {}; start it with the "
                    "backend and options of the members",
                    identity, theirs, choices));
    keys_->set(answer_key(entry.id), reasons->back(), deadline);
  }
  entries = std::move(kept);
  return admitted;
}

Attempt Newcomers::take(const GroupConfig& config, Deadline deadline) {
  if (entries(deadline).empty()) return {-1, {}, fmt::format("no process has asked to join (at {})", describe())};
  const std::string choices = requested_choices(config);
  const auto detector = enroll(-1, deadline);
  const int64_t number = keys_->add("attempts", 1, deadline) - 1;
  Attempt attempt = {number, {}, fmt::format("{}-grown{}", base_name(config), number)};
  std::vector<std::string> reasons;
  std::vector<int64_t> unfinished;  // attempts whose member that decided died meanwhile
  update(
      [&](std::vector<Entry>& entries) {
        reasons.clear();
        unfinished.clear();
        for (const Entry& entry : entries) {
          if (entry.attempt >= 0) unfinished.push_back(entry.attempt);
        }
        attempt.newcomers = admit(entries, detector->absences(deadline), choices, &reasons, deadline);
        for (Entry& entry : entries) {
          const auto& taken = attempt.newcomers;
          if (std::find(taken.begin(), taken.end(), entry.id) != taken.end()) entry.attempt = number;
        }
      },
      deadline);
  for (const int64_t earlier : unfinished) call_off(*group_keys(earlier), "the members gave up this attempt to grow");
  for (const std::string& reason : reasons) log(BP_LOG_WARN, "grow of group '{}': {}", config.name, reason);
  if (attempt.newcomers.empty()) {
    if (reasons.empty()) reasons.push_back("the newcomers of an earlier attempt have not asked again yet");
    return {-1, {}, fmt::format("{}", fmt::join(reasons, "; "))};
  }
  const size_t world_size = static_cast<size_t>(config.world_size) + attempt.newcomers.size();
  for (size_t i = 0; i < attempt.newcomers.size(); ++i) {
    keys_->set(
        answer_key(attempt.newcomers[i]),
        fmt::format("{}{} {} {}", kTaken, static_cast<size_t>(config.world_size) + i, world_size, encode(attempt)),
        deadline);
  }
  return attempt;
}

std::string call_off(Store& group_keys, const std::string& why) {
  try {
    const Deadline deadline = Deadline::after(kCallOffNs);
    if (!decline(group_keys, why, deadline)) return {};
    const std::string first = group_keys.get(kJoinedKey, deadline);
    if (!group_keys.removes_prefixes()) return first;
    // A rank that comes late still finds the reason. No other key is needed: the ranks have not all joined.
    group_keys.remove_prefix("", deadline);
    decline(group_keys, first, deadline);
    return first;
  } catch (const Error&) {  // the store is lost
    return why;
  }
}

AttemptWatch::AttemptWatch(std::shared_ptr<FailureDetector> detector, const Attempt& attempt,
                           std::shared_ptr<Store> group_keys)
    : detector_(std::move(detector)), newcomers_(attempt.newcomers), group_keys_(std::move(group_keys)) {
  detector_->add(this);
}

std::string AttemptWatch::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

void AttemptWatch::on_loss(const Loss& loss) {
  if (std::find(newcomers_.begin(), newcomers_.end(), loss.rank) == newcomers_.end()) return;
  const std::string text = newcomer_loss(loss);
  {
    const std::lock_guard lock(mutex_);
    if (loss_.empty()) loss_ = text;
  }
  call_off(*group_keys_, text);
}

std::shared_ptr<Group> join_as_newcomer(const GroupConfig& config, const std::shared_ptr<Store>& store,
                                        Deadline deadline) {
  Newcomers newcomers(store);
  for (;;) {
    JoinRequest request(newcomers, requested_choices(config), deadline);
    int32_t rank = -1;
    int32_t world_size = 0;
    const Attempt attempt = newcomers.answer(request.id(), &rank, &world_size, deadline);
    const std::shared_ptr<Store> keys = newcomers.group_keys(attempt.number);
    const AttemptWatch watch(request.detector(), attempt, keys);
    GroupConfig made = newcomer_config(config, rank, world_size, attempt, deadline);
    made.store = keys;
    try {
      return Group::start(std::move(made));
    } catch (const Error& e) {
      // Unless the start failed for reasons of a backend, this process asks again.
      const bool failed_early = !call_off(*keys, fmt::format("rank {} cannot start: {}", rank, e.what())).empty();
      const bool is_retried = (failed_early && e.status() == BP_INVALID) || e.status() == BP_PEER_LOST;
      if (!is_retried || deadline.passed()) throw;
      log(BP_LOG_INFO, "group '{}' did not start ({}); this process asks to join again", attempt.text, e.what());
    }
  }
}

}  // namespace backplane::core
