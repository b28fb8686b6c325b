// SPDX-License-Identifier: Apache-2.0
//
// Group `options`: values that the schema permits. A group starts with them, or names the option that it
// refuses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "groups.hpp"
#include "init_plan.hpp"
#include "load_bare.hpp"
#include "load_open.hpp"
#include "output_capture.hpp"

namespace backplane::conformance::options {
namespace {

std::string shortened(const std::string& value) {
  return value.size() <= 40 ? "'" + value + "'" : fmt::format("of {} bytes", value.size());
}

// Starts and ends groups with some values, the same on all ranks.
class Attempts {
 public:
  explicit Attempts(Rank& rank) : rank_(rank) {}

  // The outcome on this rank.
  Outcome start(const std::map<std::string, std::string>& values) {
    Outcome outcome;
    const Plan plan = init::plan_in(fmt::format("attempt/{}", number_++), values, 2 * kSecond);
    if (const auto agent = rank_.try_open(plan, outcome)) {
      rank_.step("in destroy");
      agent->close();
    }
    return outcome;
  }

  // Starts with one value, and checks a refusal.
  Outcome with(const std::string& key, const std::string& value) {
    const Outcome outcome = start({{key, value}});
    const std::string what = fmt::format("with {} {}: ", key, shortened(value));
    rank_.check(outcome.status != BP_AGAIN && outcome.status != BP_INTERNAL,
                what + "success, or an error of the caller", outcome.text());
    rank_.check(std::memchr(outcome.error.text, '\0', sizeof outcome.error.text) != nullptr, "an error text that ends",
                "it has no NUL");
    // If only some ranks get a resource that all request (a port), the others time out.
    rank_.publish(fmt::format("attempt/{}/{}", number_, rank_.id()), outcome.ok() ? "" : outcome.text());
    bool refused = false;
    bool named = false;
    for (int32_t peer = 0; peer < rank_.size(); ++peer) {
      const std::string text = rank_.await_value(fmt::format("attempt/{}/{}", number_, peer));
      refused = refused || !text.empty();
      named = named || text.find(key) != std::string::npos;
    }
    rank_.check(!refused || named, what + "success, or a refusal that names " + key, outcome.text());
    return outcome;
  }

 private:
  Rank& rank_;
  int number_ = 0;
};

// The keys of options that take any text; a skip if there are none.
std::vector<std::string> text_keys(Rank& rank) {
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    if (rank.backend().options[i]->type == BP_OPTION_STRING) keys.emplace_back(rank.backend().options[i]->key);
  }
  if (keys.empty()) rank.skip("the backend has no option that takes a text");
  return keys;
}

void empty(Rank& rank) {
  Attempts attempts(rank);
  for (const std::string& key : text_keys(rank)) attempts.with(key, "");
}

void one_mib(Rank& rank) {
  const std::string value(size_t{1} << 20, 'a');
  Attempts attempts(rank);
  for (const std::string& key : text_keys(rank)) attempts.with(key, value);
}

// Characters of two bytes, from even and from odd offsets: each cut of a text splits one of them.
void non_utf8(Rank& rank) {
  Attempts attempts(rank);
  for (const std::string& key : text_keys(rank)) {
    for (std::string value : {"", "x"}) {
      while (value.size() < 5000) value += "\xc3\xa4";
      const Outcome outcome = attempts.with(key, value);
      const std::string text(outcome.error.text, strnlen(outcome.error.text, sizeof outcome.error.text));
      rank.check(load::valid_utf8(text), "an error text about " + key + " that is valid UTF-8",
                 "one cut within a character, " + std::to_string(text.size()) + " bytes long");
    }
  }
  rank.check(load::valid_utf8(rank.logged()), "log lines in valid UTF-8", "others");
}

// The texts of an option's extremes, in normal form.
std::vector<std::string> extremes(const bp_option& option) {
  std::vector<std::string> values;
  switch (option.type) {
    case BP_OPTION_INT:
    case BP_OPTION_DURATION:
    case BP_OPTION_BYTES:
      if (option.min == 0 && option.max == 0) break;
      for (const double bound : {std::ceil(option.min), std::floor(option.max)}) {
        values.push_back(std::to_string(static_cast<int64_t>(std::clamp(bound, -9.2e18, 9.2e18))));
      }
      break;
    case BP_OPTION_FLOAT:
      if (option.min == 0 && option.max == 0) break;
      for (const double bound : {option.min, option.max}) values.push_back(fmt::format("{:g}", bound));
      break;
    case BP_OPTION_BOOL:
      return {"true", "false"};
    case BP_OPTION_ENUM:
      values.emplace_back();
      for (const char* c = option.choices; c != nullptr && *c != '\0'; ++c) {
        if (*c == '|') {
          values.emplace_back();
        } else {
          values.back() += *c;
        }
      }
      break;
    default:
      break;
  }
  return values;
}

void readback(Rank& rank) {
  Attempts attempts(rank);
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    const bp_option& option = *rank.backend().options[i];
    for (const std::string& value : extremes(option)) {
      // Values normalised by the harness must be in the unit of the option.
      attempts.with(option.key, option.type == BP_OPTION_DURATION ? value + "ns" : value);
    }
  }
}

// Several options objects exist at the same time and are destroyed in any order, between starts of groups.
void order_independent(Rank& rank) {
  const bp_backend& backend = rank.backend();
  if (backend.construct_options == nullptr) rank.skip("the backend has no construct_options");
  const OptionValues values(backend, rank.run().options);
  const bp_options_request request = {sizeof(bp_options_request), values.count(), values.data(), 60 * kSecond,
                                      "env://"};
  Attempts attempts(rank);
  bp_options* made[3] = {};
  for (bp_options*& each : made) {
    rank.step("in construct_options");
    Outcome outcome;
    outcome.status = backend.construct_options(&backend, &request, &each, &outcome.error);
    rank.require_ok(outcome, "construct_options");
  }
  rank.require(made[0] == nullptr || (made[0] != made[1] && made[1] != made[2] && made[0] != made[2]),
               "an object for each construct_options", "the same one again");
  rank.step("in destroy_options");
  backend.destroy_options(&backend, made[1]);
  rank.require_ok(attempts.start({}), "init while other options exist");
  rank.step("in destroy_options");
  backend.destroy_options(&backend, made[0]);
  rank.require_ok(attempts.start({}), "init while other options exist");
  backend.destroy_options(&backend, made[2]);
}

void destroyed_first(Rank& rank) {
  // BareAgent drops the options and all that bp_init pointed to as soon as init has returned.
  load::BareAgent agent(rank, rank.backend(), "main", rank.id(), rank.size(), load::Shape::kUsual, BP_ABI_MINOR,
                        load::Shape::kUsual);
  agent.send_and_receive();
  rank.step("waiting for the other ranks before the end");
  rank.barrier();
  agent.close();
}

std::string in_hex(const std::string& bytes, const char* digits) {
  std::string text;
  for (const unsigned char byte : bytes) text += {digits[byte / 16], digits[byte % 16]};
  return text;
}

// RFC 4648, section 4, of the whole groups of three bytes: what follows depends on the bytes behind.
std::string in_base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) group = group << 8 | static_cast<unsigned char>(bytes[j]);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[group >> shift & 63];
  }
  return text;
}

void look_for(Rank& rank, const std::string& secret, const std::string& text, const std::string& where) {
  const std::pair<const char*, std::string> forms[] = {{"as it is", secret},
                                                       {"in hex", in_hex(secret, "0123456789abcdef")},
                                                       {"in hex", in_hex(secret, "0123456789ABCDEF")},
                                                       {"in base64", in_base64(secret)}};
  for (const auto& [form, value] : forms) {
    rank.check(text.find(value) == std::string::npos, "the value of a secret option is nowhere in " + where,
               fmt::format("it is there, {}", form));
  }
}

void secret_redacted(Rank& rank) {
  const std::string secret = fmt::format("hush{}hush", rank.run().seed);
  std::map<std::string, std::string> values;
  std::vector<std::string> others;
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    const bp_option& option = *rank.backend().options[i];
    if (option.type != BP_OPTION_STRING) continue;
    if ((option.flags & BP_OPTION_SECRET) != 0) {
      values[option.key] = secret;
    } else {
      others.emplace_back(option.key);
    }
  }
  if (values.empty()) rank.skip("the backend has no secret option that takes a text");
  std::string texts;
  Attempts attempts(rank);
  const OutputCapture capture;
  const auto try_with = [&](const std::map<std::string, std::string>& given) {
    texts += attempts.start(given).text() + "\n";
  };
  try_with(values);
  for (const std::string& key : others) {  // to make init fail
    std::map<std::string, std::string> given = values;
    given[key] = "no such thing";
    try_with(given);
  }
  for (auto& [key, value] : values) value = secret + std::string(2000, 'x');
  try_with(values);
  Outcome outcome;  // no other rank joins
  Plan alone = init::plan_in("alone", values, kSecond / 4);
  alone.world_size = 2;
  if (const auto agent = rank.try_open(alone, outcome)) {
    uint32_t nothing = 0;
    bp_op op = recv_op(1, 1, &nothing, sizeof nothing);
    op.timeout_ns = kSecond / 10;
    if (rank.capability(BP_RECV) != nullptr) {
      texts += agent->run(op).text() + "\n";
    }
    agent->abort(BP_CANCELLED, -1, "the harness is done with it");
  }
  texts += outcome.text();
  look_for(rank, secret, texts, "error texts");
  look_for(rank, secret, rank.logged(), "the log");
  look_for(rank, secret, capture.text(), "stdout and stderr");
}

}  // namespace

std::vector<Case> values_cases() {
  const Needs any = {.ops = 0};
  const Execution both = {.worlds = {1, 2}};  // a group of one may not use most options
  return {
      Case("empty", "an empty text is accepted, or refused with the option's name", empty, any, both),
      Case("one-mib", "a text of 1 MiB is accepted, or refused with the option's name", one_mib, any, both),
      Case("non-utf-8", "no error text or log line is cut within a character of a value", non_utf8, any, both),
      Case("order-independent", "options objects are independent of each other", order_independent, any,
           {.worlds = {1}}),
      Case("readback", "each bound and each choice is accepted, or refused with the option's name", readback,
           {.ops = 0, .without = BP_BACKEND_BLOCKING_INIT}, both),
      Case("secret-redacted", "a secret option value appears in no error text, log line or output", secret_redacted,
           {.ops = 0, .without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT}, {.worlds = {1}}),
      Case("destroyed-first", "options, values and bp_init may be freed before the agent is destroyed",
           destroyed_first),
  };
}

}  // namespace backplane::conformance::options
