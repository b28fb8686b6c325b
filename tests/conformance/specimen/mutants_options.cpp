// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "mutants_init.hpp"

namespace backplane::specimen {
namespace {

constexpr uint32_t kMostOptions = 32;

// The option with this key, in a copy of the schema that may be written to.
bp_option& writable(bp_backend& backend, std::string_view key) {
  static std::array<bp_option, kMostOptions> copies;
  static std::array<const bp_option*, kMostOptions> pointers;
  for (uint32_t i = 0; i < backend.option_count; ++i) {
    copies[i] = *backend.options[i];
    pointers[i] = &copies[i];
  }
  backend.options = pointers.data();
  return *std::find_if(copies.begin(), copies.begin() + backend.option_count - 1,
                       [key](const bp_option& option) { return key == option.key; });
}

void capital_key(bp_backend& backend) { writable(backend, "secret").key = "Secret"; }
void unexplained(bp_backend& backend) { writable(backend, "backlog").help = ""; }
void dashed_key(bp_backend& backend) { writable(backend, "linger").key = "lin-ger"; }
void crossed_bounds(bp_backend& backend) {
  std::swap(writable(backend, "backlog").min, writable(backend, "backlog").max);
}
void default_outside(bp_backend& backend) { writable(backend, "backlog").default_value = "5000"; }
void default_no_choice(bp_backend& backend) { writable(backend, "order").default_value = "random"; }
void choice_twice(bp_backend& backend) { writable(backend, "order").choices = "ascending|descending|ascending"; }
void unknown_type(bp_backend& backend) { writable(backend, "secret").type = 77; }
void required_default(bp_backend& backend) { writable(backend, "address").flags |= BP_OPTION_REQUIRED; }
void default_no_number(bp_backend& backend) { writable(backend, "linger").default_value = "a while"; }
void bound_nan(bp_backend& backend) { writable(backend, "backlog").max = std::nan(""); }
void key_twice(bp_backend& backend) { writable(backend, "secret").key = "address"; }

const char* value_of(const bp_init& init, std::string_view key) {
  for (uint32_t i = 0; i < init.value_count; ++i) {
    if (key == init.values[i].key) return init.values[i].value;
  }
  return "";
}

int32_t silent_about_empty(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (*value_of(*init, "address") == '\0') return bp_error_set(err, BP_INVALID, 0, -1, "something is not right");
  return plain_init(self, init, agent, err);
}
int32_t breaks_on_empty(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (*value_of(*init, "address") == '\0') return bp_error_set(err, BP_INTERNAL, 0, -1, "address: assertion failed");
  return plain_init(self, init, agent, err);
}

// Copies into a fixed buffer.
int32_t small_buffer(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (std::strlen(value_of(*init, "secret")) >= 4096) __builtin_trap();
  return plain_init(self, init, agent, err);
}

int32_t cuts_characters(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  if (status == BP_OK || err == nullptr) return status;
  const std::string text = std::string("the option address is '") + value_of(*init, "address") + "'";
  err->text[text.copy(err->text, BP_ERROR_TEXT_SIZE - 1)] = '\0';
  return status;
}
int32_t logs_half_characters(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const std::string text = value_of(*init, "secret");
  if (!text.empty()) init->host->log(init->host->ctx, BP_LOG_DEBUG, text.substr(0, 101).c_str());
  return plain_init(self, init, agent, err);
}

int32_t no_descent(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (std::string_view(value_of(*init, "order")) == "descending") {
    return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this cannot be done");
  }
  return plain_init(self, init, agent, err);
}
int32_t no_window(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (std::strtoll(value_of(*init, "eager_window"), nullptr, 10) / 1024 == 0) __builtin_trap();
  return plain_init(self, init, agent, err);
}

int32_t logs_secret(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  for (uint32_t i = 0; i < init->value_count; ++i) {
    const std::string line = std::string(init->values[i].key) + "=" + init->values[i].value;
    init->host->log(init->host->ctx, BP_LOG_DEBUG, line.c_str());
  }
  return plain_init(self, init, agent, err);
}
int32_t prints_secret(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  std::fprintf(stderr, "secret: %s\n", value_of(*init, "secret"));
  return plain_init(self, init, agent, err);
}
std::string hex_of(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += {"0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]};
  return text;
}
std::string base64_of(const std::string& bytes) {  // without the incomplete group at the end
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 2; i < bytes.size(); i += 3) {
    const auto at = [&bytes](size_t index) { return static_cast<unsigned char>(bytes[index]); };
    text += {kDigits[at(i - 2) >> 2], kDigits[(at(i - 2) & 3) << 4 | at(i - 1) >> 4],
             kDigits[(at(i - 1) & 15) << 2 | at(i) >> 6], kDigits[at(i) & 63]};
  }
  return text;
}
template <auto Encode>
int32_t logs_encoded_secret(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  init->host->log(init->host->ctx, BP_LOG_DEBUG, ("secret: " + Encode(value_of(*init, "secret"))).c_str());
  return plain_init(self, init, agent, err);
}
int32_t tells_secret(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  if (status == BP_OK || err == nullptr) return status;
  const std::string text = std::string("with secret=") + value_of(*init, "secret") + ": " + err->text;
  return bp_error_set(err, status, 0, err->peer_rank, text.c_str());
}

// An options object that notices when it is used after its end: it is never freed.
struct Kept {
  bool alive;
};
int32_t construct_kept(const bp_backend*, const bp_options_request*, bp_options** options, bp_error*) {
  *options = reinterpret_cast<bp_options*>(new Kept{true});
  return BP_OK;
}
void destroy_kept(const bp_backend*, bp_options* options) { reinterpret_cast<Kept*>(options)->alive = false; }

Kept*& last_used() {
  static Kept* kept = nullptr;
  return kept;
}
int32_t keeps_options(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  static std::vector<Kept*> all;  // keeps the leak checker quiet
  last_used() = const_cast<Kept*>(reinterpret_cast<const Kept*>(init->options));
  all.push_back(last_used());
  return plain_init(self, init, agent, err);
}
int32_t looks_options_up(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  if (!last_used()->alive) return bp_error_set(err, BP_INTERNAL, 0, -1, "the options are gone");
  return sdk::detail::submit(self, op, work, err);
}
void patch_kept(bp_backend& backend) {
  starting<keeps_options>(backend);
  backend.construct_options = construct_kept;
  backend.destroy_options = destroy_kept;
}

const bp_key_value*& last_values() {
  static const bp_key_value* values = nullptr;
  return values;
}
int32_t keeps_values(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  last_values() = init->values;
  return plain_init(self, init, agent, err);
}
int32_t looks_values_up(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  if (*last_values()[0].value == '\x01') return BP_INTERNAL;
  return sdk::detail::submit(self, op, work, err);
}

template <auto Submit>
void submitting(bp_agent& agent) {
  static const bp_process_group_api table = [] {
    bp_process_group_api changed = sdk::detail::kProcessGroupApi;
    changed.submit = Submit;
    return changed;
  }();
  agent.api = &table;
}

// Returns the same object to all callers.
int32_t construct_same(const bp_backend*, const bp_options_request*, bp_options** options, bp_error*) {
  static Kept only = {true};
  *options = reinterpret_cast<bp_options*>(&only);
  return BP_OK;
}
void destroy_nothing(const bp_backend*, bp_options*) {}
void patch_same(bp_backend& backend) {
  backend.construct_options = construct_same;
  backend.destroy_options = destroy_nothing;
}

// Permits one object at a time.
bool& taken() {
  static bool value = false;
  return value;
}
int32_t construct_one(const bp_backend*, const bp_options_request*, bp_options** options, bp_error* err) {
  if (taken()) return bp_error_set(err, BP_RESOURCE, 0, -1, "there are options already");
  taken() = true;
  *options = reinterpret_cast<bp_options*>(new Kept{true});
  return BP_OK;
}
void destroy_one(const bp_backend*, bp_options* options) {
  taken() = false;
  delete reinterpret_cast<Kept*>(options);
}
void patch_one(bp_backend& backend) {
  backend.construct_options = construct_one;
  backend.destroy_options = destroy_one;
}

}  // namespace

std::vector<Mutant> options_mutants() {
  return {
      {.name = "options.unknown-names-nearest-key", .bug = "a key with a capital", .patch_backend = capital_key},
      {.name = "options.unknown-names-nearest-key:2", .bug = "a key without help", .patch_backend = unexplained},
      {.name = "options.unknown-names-nearest-key:3", .bug = "a key with a dash", .patch_backend = dashed_key},
      {.name = "options.bad-value-names-range", .bug = "bounds crossed", .patch_backend = crossed_bounds},
      {.name = "options.bad-value-names-range:2", .bug = "default out of bounds", .patch_backend = default_outside},
      {.name = "options.bad-value-names-range:3", .bug = "default no choice", .patch_backend = default_no_choice},
      {.name = "options.bad-value-names-range:4", .bug = "a choice twice", .patch_backend = choice_twice},
      {.name = "options.bad-value-names-range:5", .bug = "an unknown type", .patch_backend = unknown_type},
      {.name = "options.bad-value-names-range:6", .bug = "required, with default", .patch_backend = required_default},
      {.name = "options.bad-value-names-range:7", .bug = "default no number", .patch_backend = default_no_number},
      {.name = "options.bad-value-names-range:8", .bug = "a bound is NaN", .patch_backend = bound_nan},
      {.name = "options.duplicate", .bug = "a key twice", .patch_backend = key_twice},
      {.name = "options.empty", .bug = "does not name the option", .patch_backend = starting<silent_about_empty>},
      {.name = "options.empty:2", .bug = "reports BP_INTERNAL", .patch_backend = starting<breaks_on_empty>},
      {.name = "options.one-mib", .bug = "has a small buffer", .patch_backend = starting<small_buffer>},
      {.name = "options.non-utf-8", .bug = "cuts characters", .patch_backend = starting<cuts_characters>},
      {.name = "options.non-utf-8:2", .bug = "logs half of one", .patch_backend = starting<logs_half_characters>},
      {.name = "options.order-independent", .bug = "one object for all", .patch_backend = patch_same},
      {.name = "options.order-independent:2", .bug = "one object at a time", .patch_backend = patch_one},
      {.name = "options.readback", .bug = "refuses a choice without a name", .patch_backend = starting<no_descent>},
      {.name = "options.readback:2", .bug = "crashes on a bound", .patch_backend = starting<no_window>},
      {.name = "options.secret-redacted", .bug = "logs it", .patch_backend = starting<logs_secret>},
      {.name = "options.secret-redacted:2", .bug = "prints it", .patch_backend = starting<prints_secret>},
      {.name = "options.secret-redacted:4",
       .bug = "logs it in hex",
       .patch_backend = starting<logs_encoded_secret<hex_of>>},
      {.name = "options.secret-redacted:5",
       .bug = "logs it in base64",
       .patch_backend = starting<logs_encoded_secret<base64_of>>},
      {.name = "options.secret-redacted:3", .bug = "shows it in errors", .patch_backend = starting<tells_secret>},
      {.name = "options.destroyed-first",
       .bug = "uses its options later",
       .patch_backend = patch_kept,
       .patch_agent = submitting<looks_options_up>},
      {.name = "options.destroyed-first:2",
       .bug = "uses values later",
       .patch_backend = starting<keeps_values>,
       .patch_agent = submitting<looks_values_up>},
  };
}

}  // namespace backplane::specimen
