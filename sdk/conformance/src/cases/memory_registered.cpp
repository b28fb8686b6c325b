// SPDX-License-Identifier: Apache-2.0
//
// Registered memory of the program (bp_memory_api.register_memory). Operations give the same results in it, in parts of
// it, across its borders, and after it was deregistered.
#include <numeric>
#include <utility>

#include "async_support.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"
#include "memory_support.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kBytes = UINT64_C(400) << 10;

class Registration {
 public:
  Registration(Rank& rank, const bp_memory_api& api, std::byte* data, uint64_t bytes) : release_(api.release) {
    Outcome outcome;
    outcome.status = api.register_memory(api.ctx, data, bytes, BP_HOST, 0, &allocation_, &outcome.error);
    if (outcome.status == BP_UNSUPPORTED || outcome.status == BP_RESOURCE) {
      rank.skip(fmt::format("this memory cannot be registered: {}", outcome.text()));
    }
    rank.require_ok(outcome, fmt::format("registering {} bytes", bytes));
    rank.require(allocation_ != nullptr, "something for release", "NULL");
  }
  Registration(Registration&& other) noexcept
      : release_(other.release_), allocation_(std::exchange(other.allocation_, nullptr)) {}
  Registration& operator=(Registration&&) = delete;
  ~Registration() { release(); }
  void release() {
    if (allocation_ != nullptr) release_(std::exchange(allocation_, nullptr));
  }

 private:
  void (*const release_)(bp_allocation*);
  bp_allocation* allocation_ = nullptr;
};

const bp_memory_api& registry_of(Rank& rank, Agent& agent) {
  if (rank.run().on_device) rank.skip("all operations of this check have the backend's own memory");
  const auto* api = static_cast<const bp_memory_api*>(agent.api().extension(agent.self(), BP_EXT_MEMORY));
  if (api == nullptr || !BP_HAS(api, register_memory) || api->register_memory == nullptr) {
    rank.skip(fmt::format("the backend registers no memory ({})", BP_EXT_MEMORY));
  }
  return *api;
}

// Messages around the ring between any two places, and all_reduce where it is native.
class Use {
 public:
  Use(Rank& rank, Collectives& group) : rank_(rank), group_(group) {}

  void run(std::byte* from, std::byte* to, uint64_t bytes, const std::string& where) {
    ++round_;
    rank_.step(fmt::format("in operations on {} bytes {}", bytes, where));
    message(from, to, bytes, where);
    reduction(from, to, bytes / 4, where);
  }

 private:
  void message(std::byte* from, std::byte* to, uint64_t bytes, const std::string& where) {
    const uint64_t mine = message_name(rank_.id(), rank_.next(), 1, round_);
    fill_pattern(from, bytes, mine);
    Agent& agent = group_.agent();
    Pending recv = agent.irecv(rank_.previous(), 1, to, bytes);
    Pending send = agent.isend(rank_.next(), 1, from, bytes);
    rank_.require_ok(recv.finish(rank_.hang_limit(kEndLimit)), "a recv " + where);
    rank_.require_ok(send.finish(rank_.hang_limit(kEndLimit)), "a send " + where);
    const uint64_t theirs = message_name(rank_.previous(), rank_.id(), 1, round_);
    const int64_t wrong = first_wrong_byte(to, bytes, theirs);
    rank_.require(wrong < 0, fmt::format("the message that was received {}", where),
                  fmt::format("a wrong byte at {}", wrong));
    rank_.require(first_wrong_byte(from, bytes, mine) < 0, fmt::format("the message that was sent {}", where),
                  "it has changed");
  }

  void reduction(std::byte* from, std::byte* to, uint64_t count, const std::string& where) {
    const bp_capability* const native = group_.native(BP_ALL_REDUCE);
    if (native == nullptr || !declares(*native, BP_I32, BP_SUM)) return;
    auto* const in = reinterpret_cast<int32_t*>(from);
    auto* const out = reinterpret_cast<int32_t*>(to);
    std::iota(in, in + count, rank_.id());
    bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
    op.reduce_op = BP_SUM;
    op.input = {in, count, BP_HOST, 0};
    op.output = {out, count, BP_HOST, 0};
    op.seq = group_.next_seq();
    op.timeout_ns = group_.enough();
    rank_.require_ok(group_.agent().run(op), "all_reduce " + where);
    const int32_t ranks = rank_.size();
    for (uint64_t i = 0; i < count; ++i) {
      const int32_t sum = ranks * static_cast<int32_t>(i) + ranks * (ranks - 1) / 2;
      if (out[i] != sum) rank_.fail(fmt::format("all_reduce {}: {} at {}", where, sum, i), std::to_string(out[i]));
    }
  }

  Rank& rank_;
  Collectives& group_;
  uint64_t round_ = 0;
};

// Input and output of 4 * kBytes each, of which the middle is registered.
void registered(Rank& rank) {
  Collectives group(rank);
  const bp_memory_api& api = registry_of(rank, group.agent());
  Guarded inputs(4 * kBytes);
  Guarded outputs(4 * kBytes);
  std::byte* const in = inputs.data();
  std::byte* const out = outputs.data();
  Use use(rank, group);
  Registration first(rank, api, in + kBytes, 2 * kBytes);
  Registration second(rank, api, out + kBytes, 2 * kBytes);
  for (const uint64_t bytes : {UINT64_C(64), kBytes}) {
    use.run(in + kBytes, out + kBytes, bytes, "at the beginning of registered memory");
    use.run(in + kBytes + 68, out + kBytes + 4, bytes, "amid registered memory");
    use.run(in + kBytes - 4 * (bytes / 8), out + kBytes - 4 * (bytes / 8), bytes,
            "across the beginning of registered memory");
    use.run(in + 3 * kBytes - 4 * (bytes / 8), out + 3 * kBytes - 4 * (bytes / 8), bytes,
            "across the end of registered memory");
    use.run(in + kBytes, out, bytes, "from registered to other memory");
    use.run(in, out + kBytes, bytes, "from other to registered memory");
  }
  rank.require(inputs.damage().empty() && outputs.damage().empty(), "nothing written beside the memory", "something");
}

// Releases memory and registers it again in overlapping parts, which are released one by one.
void registered_again(Rank& rank) {
  Collectives group(rank);
  const bp_memory_api& api = registry_of(rank, group.agent());
  Guarded inputs(3 * kBytes);
  Guarded outputs(3 * kBytes);
  std::byte* const in = inputs.data();
  std::byte* const out = outputs.data();
  Use use(rank, group);
  Registration(rank, api, in, kBytes).release();
  use.run(in, out, kBytes, "in memory that was registered once");
  for (int i = 0; i < 5; ++i) {
    Registration whole(rank, api, out, kBytes);
    use.run(in, out, kBytes, "in memory that was registered again");
    whole.release();
    use.run(in, out + 8, kBytes, "in memory that was deregistered after operations");
  }
  std::vector<Registration> parts;
  parts.emplace_back(rank, api, out, 2 * kBytes);
  parts.emplace_back(rank, api, out + kBytes, 2 * kBytes);
  parts.emplace_back(rank, api, out + kBytes, kBytes);
  parts.emplace_back(rank, api, out, 2 * kBytes);
  use.run(in, out + kBytes / 2, 2 * kBytes, "in registrations that overlap");
  for (const size_t next : {size_t{1}, size_t{0}, size_t{3}, size_t{2}}) {
    parts[next].release();
    use.run(in, out + kBytes / 2, 2 * kBytes, "in memory with overlapping registrations");
  }
  rank.require(inputs.damage().empty() && outputs.damage().empty(), "nothing written beside the memory", "something");
}

}  // namespace

std::vector<Case> memory_registered_cases() {
  return {
      Case("registered", "operations give the same results in registered memory, in parts of it and across its borders",
           registered),
      Case("registered-again",
           "operations give the same results after memory is deregistered, and where registrations overlap",
           registered_again),
  };
}

}  // namespace backplane::conformance
