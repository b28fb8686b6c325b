// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>

#include "finalize.hpp"

namespace backplane::conformance {

const char* status_name(int32_t status) {
  switch (status) {
    case BP_OK:
      return "BP_OK";
    case BP_INVALID:
      return "BP_INVALID";
    case BP_UNSUPPORTED:
      return "BP_UNSUPPORTED";
    case BP_TIMEOUT:
      return "BP_TIMEOUT";
    case BP_CANCELLED:
      return "BP_CANCELLED";
    case BP_PEER_LOST:
      return "BP_PEER_LOST";
    case BP_RESOURCE:
      return "BP_RESOURCE";
    case BP_AGAIN:
      return "BP_AGAIN";
    case BP_INTERNAL:
      return "BP_INTERNAL";
    default:
      return "a status that does not exist";
  }
}

std::string Outcome::text() const {
  if (status == BP_OK || status == BP_AGAIN) return status_name(status);
  const std::string words(error.text, std::find(error.text, error.text + BP_ERROR_TEXT_SIZE, '\0'));
  std::string result = fmt::format("{} ({}): {}", status_name(status), status, words);
  if (error.peer_rank >= 0) result += fmt::format(" [peer rank {}]", error.peer_rank);
  return result;
}

bp_op make_op(uint32_t kind, uint32_t dtype) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = dtype;
  op.timeout_ns = 20 * kSecond;
  return op;
}

bp_op send_op(int32_t peer, uint64_t tag, const void* data, uint64_t bytes) {
  bp_op op = make_op(BP_SEND);
  op.peer = peer;
  op.tag = tag;
  op.input = {const_cast<void*>(data), bytes, BP_HOST, 0};
  return op;
}

bp_op recv_op(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result) {
  bp_op op = make_op(BP_RECV);
  op.peer = peer;
  op.tag = tag;
  op.output = {data, bytes, BP_HOST, 0};
  op.result = result;
  return op;
}

bp_result make_result() { return {sizeof(bp_result), -1, 0, 0}; }

uint64_t fit_tag(const bp_backend& backend, uint64_t tag) {
  const uint32_t bits = BP_HAS(&backend, tag_bits) ? backend.tag_bits : 0;
  if (tag == BP_ANY_TAG || bits == 0 || bits >= 64) return tag;
  const uint64_t internal = uint64_t{1} << (bits - 1);
  return (tag & (internal - 1)) | ((tag & BP_TAG_INTERNAL) != 0 ? internal : 0);
}

Pending::Pending(Agent* agent, const bp_op& given) : agent_(agent) {
  bp_op op = given;
  op.tag = fit_tag(agent->backend(), op.tag);
  if (agent->mirrors()) mirror_ = std::make_unique<DeviceMirror>(agent->mirrors(), &op);
  if (mirror_ && !mirror_->ok()) {
    submitted_.status = bp_error_set(&submitted_.error, BP_RESOURCE, 0, -1, "no memory of the device for the check");
    mirror_.reset();
    return;
  }
  submitted_.status = agent->api().submit(agent->self(), &op, &work_, &submitted_.error);
  if (submitted_.status != BP_OK) work_ = nullptr;
  if (work_ == nullptr) submitted_ = ended(submitted_);
}

Pending::Pending(Pending&& other) noexcept { *this = std::move(other); }

Pending& Pending::operator=(Pending&& other) noexcept {
  std::swap(agent_, other.agent_);
  std::swap(work_, other.work_);
  std::swap(submitted_, other.submitted_);
  std::swap(mirror_, other.mirror_);
  return *this;
}

Pending::~Pending() {
  if (work_ != nullptr && std::uncaught_exceptions() == 0) finish(0);
  // Leaks intentionally: the process ends after a failed case.
  if (work_ != nullptr || submitted_.status == BP_AGAIN) static_cast<void>(mirror_.release());
}

Outcome Pending::ended(Outcome outcome) {
  if (outcome.status == BP_AGAIN || !mirror_) return outcome;
  if (outcome.ok() && !mirror_->copy_back()) {
    outcome.status = bp_error_set(&outcome.error, BP_RESOURCE, 0, -1, "the device's copy back failed");
  }
  mirror_.reset();
  return outcome;
}

Outcome Pending::test() {
  if (work_ == nullptr) return submitted_;
  Outcome outcome;
  outcome.status = agent_->api().work_test(agent_->self(), work_, &outcome.error);
  return ended(outcome);
}

Outcome Pending::wait(Nanoseconds timeout) {
  if (work_ == nullptr) return submitted_;
  Outcome outcome;
  outcome.status = agent_->api().work_wait(agent_->self(), work_, timeout, &outcome.error);
  return ended(outcome);
}

void Pending::cancel() {
  if (work_ != nullptr) agent_->api().work_cancel(agent_->self(), work_);
}

Outcome Pending::finish(Nanoseconds timeout) {
  if (work_ == nullptr) return submitted_;
  Outcome outcome = wait(timeout);
  if (outcome.status == BP_AGAIN) {
    cancel();
    outcome = wait(5 * kSecond);
  }
  if (outcome.status != BP_AGAIN) release();
  work_ = nullptr;
  submitted_ = outcome;
  return outcome;
}

void Pending::release() {
  if (work_ != nullptr) agent_->api().work_release(agent_->self(), work_);
  work_ = nullptr;
}

Agent::Agent(const bp_backend& backend, World& world, const Plan& plan, LogSink log, Outcome& outcome)
    : rank_(plan.rank),
      size_(plan.world_size < 0 ? world.ranks() : plan.world_size),
      world_(world),
      host_(std::make_unique<Host>(world, plan.space, std::move(log), plan.secure.value_or(named_secret()))),
      backend_(backend) {
  const OptionValues values(backend, plan.options);
  if (backend.construct_options != nullptr) {
    const bp_options_request request = {sizeof(bp_options_request), values.count(), values.data(), 60 * kSecond,
                                        "env://"};
    outcome.status = backend.construct_options(&backend, &request, &options_, &outcome.error);
    if (!outcome.ok()) return;
  }
  std::vector<int32_t> ranks = plan.global_ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(std::max(size_, 1)));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  bp_init init = {};
  init.struct_size = sizeof init;
  init.rank = rank_;
  init.world_size = size_;
  init.device = -1;
  init.name = plan.space.c_str();
  init.host = host_->table();
  init.options = options_;
  init.values = values.data();
  init.value_count = values.count();
  init.kind = BP_KIND_PROCESS_GROUP;
  init.timeout_ns = plan.timeout.value_or(20 * kSecond);
  init.global_ranks = ranks.data();
  if (plan.parent != nullptr) {
    init.parent = &plan.parent->raw();
    init.parent_ranks = plan.parent_ranks.data();
  }
  agent_.struct_size = sizeof agent_;
  outcome.status = backend.init(&backend, &init, &agent_, &outcome.error);
  if (outcome.ok()) {
    api_ = static_cast<const bp_process_group_api*>(agent_.api);
    agent_started();
  } else {
    world.mark_failed();
  }
  if (api_ == nullptr || !plan.on_device || use_device_memory()) return;
  outcome.status = bp_error_set(&outcome.error, BP_UNSUPPORTED, 0, -1,
                                "buffers on a device are to be checked, and this agent hands out none of its memory "
                                "(" BP_EXT_MEMORY ", " BP_EXT_DEVICE ")");
}

bool Agent::use_device_memory() {
  if (!mirrors_) mirrors_ = std::make_shared<MirrorMemory>(*api_, agent_.self);
  if (!mirrors_->usable()) mirrors_.reset();
  return mirrors_ != nullptr;
}

Agent::~Agent() {
  if (std::uncaught_exceptions() > 0) {
    static_cast<void>(host_.release());  // the plugin's threads may still use it
    return;
  }
  close();
}

Outcome Agent::run(const bp_op& op) { return submit(op).finish(op.timeout_ns); }

Outcome Agent::send(int32_t peer, uint64_t tag, const void* data, uint64_t bytes) {
  return run(send_op(peer, tag, data, bytes));
}
Outcome Agent::recv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result) {
  return run(recv_op(peer, tag, data, bytes, result));
}
Pending Agent::isend(int32_t peer, uint64_t tag, const void* data, uint64_t bytes) {
  return submit(send_op(peer, tag, data, bytes));
}
Pending Agent::irecv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result) {
  return submit(recv_op(peer, tag, data, bytes, result));
}

void Agent::abort(int32_t status, int32_t peer_rank, const std::string& text) {
  bp_error why;
  bp_error_init(&why);
  bp_error_set(&why, status, 0, peer_rank, text.c_str());
  world_.mark_failed();
  host_->request_abort();
  api_->abort(agent_.self, &why);
}

void Agent::close() {
  if (before_close) std::exchange(before_close, nullptr)();
  if (api_ != nullptr) {
    host_->request_abort();
    std::exchange(api_, nullptr)->destroy(agent_.self);
    agent_destroyed();
    if (after_close) after_close(*host_);
  }
  mirrors_.reset();
  if (options_ != nullptr && backend_.destroy_options != nullptr) {
    backend_.destroy_options(&backend_, std::exchange(options_, nullptr));
  }
}

namespace {

struct Unit {
  const char* name;
  double factor;
};

// "1.5s" with units {..., {"s", 1e9}} -> "1500000000".
std::string scaled_number(const std::string& text, std::initializer_list<Unit> units) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str()) return text;
  for (const Unit& unit : units) {
    if (std::string(end) == unit.name) return std::to_string(std::llround(number * unit.factor));
  }
  return text;
}

}  // namespace

std::string normal_form(uint32_t type, const std::string& text) {
  if (type == BP_OPTION_DURATION) {
    return scaled_number(text,
                         {{"", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}});
  }
  if (type == BP_OPTION_BYTES)
    return scaled_number(text, {{"", 1}, {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}});
  if (type == BP_OPTION_BOOL) {
    for (const char* yes : {"true", "1", "yes", "on"}) {
      if (text == yes) return "true";
    }
    return "false";
  }
  return text;
}

OptionValues::OptionValues(const bp_backend& backend, const std::map<std::string, std::string>& replaced) {
  for (uint32_t i = 0; i < backend.option_count; ++i) {
    const bp_option& option = *backend.options[i];
    const auto given = replaced.find(option.key);
    const std::string text =
        given != replaced.end() ? given->second : (option.default_value == nullptr ? "" : option.default_value);
    texts_.push_back(normal_form(option.type, text));
  }
  for (uint32_t i = 0; i < backend.option_count; ++i) pairs_.push_back({backend.options[i]->key, texts_[i].c_str()});
}

}  // namespace backplane::conformance
