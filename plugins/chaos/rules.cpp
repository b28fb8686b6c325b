// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "backplane/sdk/layer.hpp"

namespace backplane::chaos {
namespace {

constexpr uint64_t kMessages = BP_BIT(BP_SEND) | BP_BIT(BP_RECV);
constexpr uint64_t kCollectives = (BP_BIT(BP_OP_COUNT) - 1) & ~kMessages;

constexpr const char* kConditions =
    "any, a kind of operation (all_reduce, send, ..., collective, message; several joined by |), rank N, rank N-M, "
    "peer N, tag N, after N, every N, times N, once, chance P (0 to 1) or P%";
constexpr const char* kActions =
    "delay 5ms, delay 1ms..20ms, reorder 5ms, stall 3s, drop, error STATUS (timeout, cancelled, peer_lost, resource, "
    "internal, invalid or unsupported) or crash";

struct Word {
  std::string_view text;
  size_t at;  // offset in the whole text
};

bool separates(char c) { return c == ' ' || c == '\t' || c == '\r' || c == ',' || c == '+'; }

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  std::vector<Rule> parse() {
    for (size_t begin = 0; begin <= text_.size();) {
      size_t end = begin;
      size_t next = begin;
      find_end(begin, &end, &next);
      read_rule(begin, end);
      begin = next;
    }
    return std::move(rules_);
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& problem) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    const size_t line_begin = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    throw sdk::Failure(BP_INVALID,
                       fmt::format("chaos: {}, line {}, column {}: {}", source_, line, at - line_begin + 1, problem));
  }

  // A rule ends at ';', at the line's end or where a comment begins.
  void find_end(size_t begin, size_t* end, size_t* next) const {
    *end = std::min(text_.find_first_of(";\n#", begin), text_.size());
    *next = *end + 1;
    if (*end < text_.size() && text_[*end] == '#') *next = std::min(text_.find('\n', *end), text_.size()) + 1;
  }

  std::vector<Word> words(size_t begin, size_t end) const {
    std::vector<Word> result;
    for (size_t i = begin; i < end;) {
      if (separates(text_[i])) {
        ++i;
        continue;
      }
      const size_t from = i;
      while (i < end && !separates(text_[i])) ++i;
      result.push_back({text_.substr(from, i - from), from});
    }
    return result;
  }

  void read_rule(size_t begin, size_t end) {
    const size_t colon = std::min(text_.find(':', begin), end);
    words_ = words(begin, colon);
    if (colon == end) {
      if (words_.empty()) return;  // empty rule
      fail(words_.front().at,
           "this rule has no action; add ':' and an action after its conditions: " + std::string(kActions));
    }
    rule_ = Rule();
    rule_.number = rules_.size() + 1;
    for (next_ = 0; next_ < words_.size();) condition();
    words_ = words(colon + 1, end);
    if (words_.empty()) fail(colon, "no action after ':'; use " + std::string(kActions));
    next_ = 0;
    action();
    if (next_ < words_.size()) fail(words_[next_].at, quoted(words_[next_]) + " is unexpected after the action");
    const size_t first = text_.find_first_not_of(" \t\r", begin);
    const size_t last = text_.find_last_not_of(" \t\r", end - 1);
    rule_.text = std::string(text_.substr(first, last - first + 1));
    rules_.push_back(rule_);
  }

  static std::string quoted(const Word& word) { return "'" + std::string(word.text) + "'"; }

  const Word& argument(const Word& of, const char* what) {
    if (next_ == words_.size()) fail(of.at, quoted(of) + " needs " + what);
    return words_[next_++];
  }

  template <typename Number>
  Number number(const Word& word, std::string_view text, Number least, Number most) const {
    Number value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || !(value >= least && value <= most)) {
      fail(word.at, fmt::format("{} is not a number from {} to {}", quoted(word), least, most));
    }
    return value;
  }

  template <typename T>
  void once(const Word& word, std::optional<T>* field, T value) const {
    if (field->has_value()) fail(word.at, quoted(word) + " repeats a condition of this rule");
    *field = value;
  }

  void condition() {
    constexpr uint64_t kMost = INT64_MAX;
    const Word word = words_[next_++];
    if (word.text == "any") return;
    if (word.text == "rank") return ranks(argument(word, "a rank"));
    if (word.text == "peer") {
      const Word& which = argument(word, "a rank");
      return once(word, &rule_.peer, number<int32_t>(which, which.text, 0, INT32_MAX));
    }
    if (word.text == "tag") {
      const Word& which = argument(word, "a tag");
      return once(word, &rule_.tag, number<uint64_t>(which, which.text, 0, UINT64_MAX));
    }
    if (word.text == "once") return once(word, &rule_.times, UINT64_C(1));
    if (word.text == "chance") {
      const Word& share = argument(word, "a probability");
      return once(word, &rule_.chance, number<double>(share, share.text, 0, 1));
    }
    if (word.text.ends_with('%')) {
      const std::string_view digits = word.text.substr(0, word.text.size() - 1);
      return once(word, &rule_.chance, number<double>(word, digits, 0, 100) / 100);
    }
    for (const auto& [name, field, least] :
         {std::tuple{"after", &Rule::after, UINT64_C(0)}, std::tuple{"every", &Rule::every, UINT64_C(1)},
          std::tuple{"times", &Rule::times, UINT64_C(0)}}) {
      if (word.text != name) continue;
      const Word& count = argument(word, "a number");
      return once(word, &(rule_.*field), number<uint64_t>(count, count.text, least, kMost));
    }
    kinds(word);
  }

  void ranks(const Word& word) {
    const size_t dash = std::min(word.text.find('-'), word.text.size());
    once(word, &rule_.first_rank, number<int32_t>(word, word.text.substr(0, dash), 0, INT32_MAX));
    rule_.last_rank = *rule_.first_rank;
    if (dash < word.text.size()) {
      rule_.last_rank = number<int32_t>(word, word.text.substr(dash + 1), *rule_.first_rank, INT32_MAX);
    }
  }

  void kinds(const Word& word) {
    for (size_t begin = 0; begin <= word.text.size();) {
      const size_t end = std::min(word.text.find('|', begin), word.text.size());
      const Word one = {word.text.substr(begin, end - begin), word.at + begin};
      uint64_t bits = one.text == "message" ? kMessages : one.text == "collective" ? kCollectives : 0;
      for (uint32_t kind = 0; kind < BP_OP_COUNT; ++kind) {
        if (one.text == sdk::op_name(kind)) bits = BP_BIT(kind);
      }
      if (bits == 0) fail(one.at, quoted(one) + " is not a condition; use " + kConditions);
      rule_.kinds |= bits;
      begin = end + 1;
    }
  }

  void action() {
    const Word word = words_[next_++];
    if (word.text == "drop") {
      rule_.action = Action::kDrop;
    } else if (word.text == "crash") {
      rule_.action = Action::kCrash;
    } else if (word.text == "error") {
      rule_.action = Action::kError;
      status(argument(word, "a status such as timeout"));
    } else if (word.text == "delay") {
      rule_.action = Action::kDelay;
      durations(argument(word, "a duration such as 5ms"));
    } else if (word.text == "reorder") {
      if (rule_.kinds != BP_BIT(BP_SEND)) fail(word.at, "'reorder' applies to sends only; begin the rule with send");
      rule_.action = Action::kReorder;
      durations(argument(word, "a duration such as 5ms"));
    } else if (word.text == "stall") {
      rule_.action = Action::kStall;
      durations(argument(word, "a duration such as 3s"));
    } else {
      fail(word.at, quoted(word) + " is not an action; use " + kActions);
    }
  }

  void status(const Word& word) {
    for (const int32_t status :
         {BP_INVALID, BP_UNSUPPORTED, BP_TIMEOUT, BP_CANCELLED, BP_PEER_LOST, BP_RESOURCE, BP_INTERNAL}) {
      if (word.text == sdk::status_name(status)) rule_.status = status;
    }
    if (rule_.status == BP_OK) {
      fail(word.at, quoted(word) +
                        " is not a status; use timeout, cancelled, peer_lost, resource, internal, invalid or "
                        "unsupported");
    }
  }

  void durations(const Word& word) {
    const size_t dots = std::min(word.text.find(".."), word.text.size());
    rule_.least_ns = rule_.most_ns = duration(word, word.text.substr(0, dots));
    if (dots == word.text.size()) return;
    rule_.most_ns = duration(word, word.text.substr(dots + 2));
    if (rule_.most_ns < rule_.least_ns) fail(word.at, quoted(word) + " has an end before its beginning");
  }

  int64_t duration(const Word& word, std::string_view text) const {
    constexpr std::pair<std::string_view, double> kUnits[] = {{"ns", 1},  {"us", 1e3}, {"ms", 1e6},
                                                              {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};
    constexpr double kLongest = 8.64e13;  // a day
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit = text.substr(static_cast<size_t>(stop - text.data()));
    for (const auto& [name, factor] : kUnits) {
      const double ns = value * factor;
      if (error == std::errc() && unit == name && ns >= 0 && ns <= kLongest) return std::llround(ns);
    }
    fail(word.at, quoted(word) + " is not a duration such as 250us, 5ms or 3s, of a day at most");
  }

  const std::string_view text_;
  const std::string& source_;
  std::vector<Rule> rules_;
  Rule rule_;  // being parsed
  std::vector<Word> words_;
  size_t next_ = 0;
};

// splitmix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t mix(uint64_t value) {
  value += UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
  return value ^ (value >> 31);
}

}  // namespace

std::vector<Rule> parse_rules(std::string_view text, const std::string& source) { return Parser(text, source).parse(); }

Faults::Faults(std::vector<Rule> rules, uint64_t seed, int32_t rank, std::string_view group)
    : seed_(mix(seed ^ mix(static_cast<uint64_t>(rank)))) {
  for (const char c : group) seed_ = mix(seed_ ^ static_cast<unsigned char>(c));
  for (Rule& rule : rules) {
    if (rule.first_rank && (rank < *rule.first_rank || rank > rule.last_rank)) continue;
    rules_.push_back(std::make_unique<Counted>(std::move(rule)));
  }
}

double Faults::draw(const Rule& rule, uint64_t count, uint64_t purpose) const {
  const uint64_t bits = mix(mix(mix(seed_ ^ rule.number) ^ count) ^ purpose);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool Faults::triggers(Counted* counted, uint64_t count) const {
  const Rule& rule = counted->rule;
  const uint64_t after = rule.after.value_or(0);
  if (count <= after || (count - after) % rule.every.value_or(1) != 0) return false;
  if (rule.chance && draw(rule, count, 1) >= *rule.chance) return false;
  return !rule.times || counted->triggered.fetch_add(1) < *rule.times;
}

std::optional<Fault> Faults::match(const bp_op& op) {
  const bool message = (BP_BIT(op.kind) & kMessages) != 0;
  std::optional<Fault> fault;
  for (const auto& counted : rules_) {
    const Rule& rule = counted->rule;
    if (rule.kinds != 0 && (rule.kinds & BP_BIT(op.kind)) == 0) continue;
    if (rule.peer && (!message || op.peer != *rule.peer)) continue;
    if (rule.tag && (!message || op.tag != *rule.tag)) continue;
    const uint64_t count = counted->matched.fetch_add(1) + 1;
    if (fault || !triggers(counted.get(), count)) continue;
    const double range = static_cast<double>(rule.most_ns - rule.least_ns);
    fault = Fault{&rule, &counted->log_limit, rule.least_ns + static_cast<int64_t>(draw(rule, count, 2) * range)};
  }
  return fault;
}

}  // namespace backplane::chaos
