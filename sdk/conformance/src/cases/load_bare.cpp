// SPDX-License-Identifier: Apache-2.0
#include "load_bare.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "../names.hpp"
#include "collectives_call.hpp"

namespace backplane::conformance::load {
namespace {

// Bytes that InitArguments take.
size_t paper_size(const std::string& name, int32_t world_size, const OptionValues& values) {
  size_t size = name.size() + 1 + static_cast<size_t>(world_size) * sizeof(int32_t);
  for (uint32_t i = 0; i < values.count(); ++i) {
    size += sizeof(bp_key_value) + std::strlen(values.data()[i].key) + std::strlen(values.data()[i].value) + 2;
  }
  return (size + 7) / 8 * 8;
}

bp_host with_minor(bp_host table, uint32_t minor) {
  table.abi_minor = minor;
  return table;
}

}  // namespace

GuardedMemory::GuardedMemory(size_t size) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t usable = (size + page - 1) / page * page;
  mapped_ = usable + page;
  offset_ = usable - size;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(static_cast<char*>(mapping_) + usable, page, PROT_NONE);
}

GuardedMemory::~GuardedMemory() { munmap(mapping_, mapped_); }

InitArguments::InitArguments(const std::string& name, int32_t world_size, const OptionValues& values)
    : memory_(paper_size(name, world_size, values)),
      count_(values.count()),
      values_(static_cast<bp_key_value*>(memory_.data())),
      ranks_(reinterpret_cast<int32_t*>(values_ + count_)),
      name_(reinterpret_cast<char*>(ranks_ + world_size)) {
  std::iota(ranks_, ranks_ + world_size, 0);
  char* text = name_;
  const auto put = [&text](const char* source) {
    const size_t size = std::strlen(source) + 1;
    std::memcpy(text, source, size);
    text += size;
    return text - size;
  };
  put(name.c_str());
  for (uint32_t i = 0; i < count_; ++i) values_[i] = {put(values.data()[i].key), put(values.data()[i].value)};
}

BareAgent::BareAgent(Rank& rank, const bp_backend& backend, std::string space, int32_t rank_in_group,
                     int32_t world_size, Shape host_shape, uint32_t host_minor, Shape shape)
    : rank_(rank),
      backend_(backend),
      space_(std::move(space)),
      own_(rank_in_group),
      size_(world_size),
      shape_(shape),
      host_(rank.world(), space_, [](uint32_t, const char*) {}),
      table_(host_shape, with_minor(*host_.table(), host_minor)),
      agent_(shape, bp_agent{}) {
  const InitArguments arguments(space_, size_, OptionValues(backend, rank.run().options));
  construct(arguments);
  start(arguments);
}

BareAgent::~BareAgent() {
  if (std::uncaught_exceptions() == 0) close();
}

bp_error BareAgent::fresh_error() const {
  bp_error error;
  std::memset(&error, 0, sizeof error);
  bp_error_init(&error);
  return error;
}

void BareAgent::require(int32_t status, const Shaped<bp_error>& error, const std::string& what) {
  Outcome outcome;
  outcome.status = status;
  if (status != BP_OK) std::memcpy(&outcome.error, error.get(), sizeof outcome.error);
  rank_.require_ok(outcome, what);
  rank_.require(error.untouched(), what + " writes only the fields of bp_error that it knows",
                "bytes behind them have changed");
}

void BareAgent::construct(const InitArguments& arguments) {
  if (backend_.construct_options == nullptr) return;
  rank_.step("in construct_options");
  const Shaped<bp_options_request> request(
      shape_, {sizeof(bp_options_request), arguments.value_count(), arguments.values(), 60 * kSecond, "env://"});
  const Shaped<bp_error> error(shape_, fresh_error());
  require(backend_.construct_options(&backend_, request.get(), &options_, error.get()), error, "construct_options");
}

void BareAgent::start(const InitArguments& arguments) {
  rank_.step("in init");
  bp_init init = {};
  init.rank = own_;
  init.world_size = size_;
  init.device = -1;
  init.name = arguments.name();
  init.host = table_.get();
  init.options = options_;
  init.values = arguments.values();
  init.value_count = arguments.value_count();
  init.kind = BP_KIND_PROCESS_GROUP;
  init.timeout_ns = rank_.hang_limit(15 * kSecond);
  init.global_ranks = arguments.global_ranks();
  const Shaped<bp_init> shaped(shape_, init);
  const Shaped<bp_error> error(shape_, fresh_error());
  require(backend_.init(&backend_, shaped.get(), agent_.get(), error.get()), error, "init");
  rank_.require(agent_.untouched(), "init writes only the fields of bp_agent that it knows",
                "bytes behind them, or struct_size, have changed");
  api_ = static_cast<const bp_process_group_api*>(agent_->api);
  rank_.require(api_ != nullptr, "an agent with a table", "api is NULL");
  if (rank_.run().on_device) {
    mirrors_ = std::make_shared<MirrorMemory>(*api_, agent_->self);
    rank_.require(mirrors_->usable(), "an agent that hands out memory of its device", "none");
  }
  if (options_ != nullptr && backend_.destroy_options != nullptr) {
    backend_.destroy_options(&backend_, std::exchange(options_, nullptr));
  }
}

void BareAgent::finish(bp_work* work, int32_t status, const Shaped<bp_error>& error, const std::string& what) {
  if (status == BP_OK && work != nullptr) {
    status = api_->work_test(agent_->self, work, error.get());
    if (status == BP_AGAIN) status = api_->work_wait(agent_->self, work, rank_.hang_limit(15 * kSecond), error.get());
  }
  require(status, error, what);
  if (work != nullptr) api_->work_release(agent_->self, work);
}

void BareAgent::exchange(uint64_t flags) {
  rank_.step(flags == 0 ? "sending around the ring" : "sending around the ring, with BP_OP_SYNC");
  const int32_t next = (own_ + 1) % size_;
  const int32_t previous = (own_ + size_ - 1) % size_;
  const uint32_t sent = 0x5eed0000U + static_cast<uint32_t>(own_);
  uint32_t received = 0;
  const Shaped<bp_result> result(shape_, bp_result{});
  const Shaped<bp_error> send_error(shape_, fresh_error());
  const Shaped<bp_error> recv_error(shape_, fresh_error());
  bp_op plain_send = send_op(next, 7, &sent, sizeof sent);
  bp_op plain_recv = recv_op(previous, 7, &received, sizeof received, result.get());
  const auto send_twin = mirror(rank_, mirrors_, &plain_send);
  const auto recv_twin = mirror(rank_, mirrors_, &plain_recv);
  const Shaped<bp_op> send(shape_, plain_send);
  const Shaped<bp_op> recv(shape_, plain_recv);
  recv->flags = flags;
  bp_work* sending = nullptr;
  const int32_t started = api_->submit(agent_->self, send.get(), &sending, send_error.get());
  require(started, send_error, "submit of a send");
  bp_work* receiving = nullptr;
  const int32_t status = api_->submit(agent_->self, recv.get(), &receiving, recv_error.get());
  finish(receiving, status, recv_error, "a recv");
  finish(sending, BP_OK, send_error, "a send");
  if (recv_twin) rank_.require(recv_twin->copy_back(), "a copy from the device", "a refusal");
  rank_.require(received == 0x5eed0000U + static_cast<uint32_t>(previous), "the message of the rank before",
                fmt::format("0x{:x}", received));
  rank_.require(result->source == previous && result->bytes == sizeof received,
                fmt::format("a result with source {} and {} bytes", previous, sizeof received),
                fmt::format("source {}, {} bytes", result->source, result->bytes));
  rank_.require(result.untouched(), "a recv writes only the fields of bp_result that it knows",
                "bytes behind them, or struct_size, have changed");
}

void BareAgent::collective(const bp_capability& capability, uint64_t seq) {
  const std::string what = op_name(capability.op);
  rank_.step("in " + what);
  const Call call(usual_shape(capability, 100), own_, size_);
  bp_op plain = call.op();
  plain.seq = seq;
  const auto twin = mirror(rank_, mirrors_, &plain);
  const Shaped<bp_op> op(shape_, plain);
  const Shaped<bp_error> error(shape_, fresh_error());
  bp_work* work = nullptr;
  const int32_t status = api_->submit(agent_->self, op.get(), &work, error.get());
  finish(work, status, error, what);
  if (twin) rank_.require(twin->copy_back(), "a copy from the device", "a refusal");
  for (const std::string& wrong : {call.output_error(), call.guard_error()}) {
    rank_.require(wrong.empty(), "the result of " + what, wrong);
  }
}

void BareAgent::send_and_receive() {
  exchange(0);
  exchange(BP_OP_SYNC);
  const bp_agent& agent = *agent_.get();
  const bool narrowed = BP_HAS(&agent, capability_count) && agent.capabilities != nullptr;
  const bp_capability* const* const all = narrowed ? agent.capabilities : backend_.capabilities;
  const uint32_t count = narrowed ? agent.capability_count : backend_.capability_count;
  uint64_t seq = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t op = all[i]->op;
    if (op == BP_SEND || op == BP_RECV || op >= BP_OP_COUNT) continue;
    if (op == BP_BARRIER || (all[i]->memory & rank_.memory()) != 0) collective(*all[i], ++seq);
  }
}

void BareAgent::close() {
  if (api_ == nullptr) return;
  rank_.step("in destroy");
  host_.request_abort();
  std::exchange(api_, nullptr)->destroy(agent_->self);
  mirrors_.reset();
}

}  // namespace backplane::conformance::load
