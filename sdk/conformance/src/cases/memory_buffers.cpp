// SPDX-License-Identifier: Apache-2.0
//
// Operations on the backend's allocations and on ordinary memory, in any combination, give the same results.
#include <algorithm>
#include <cstring>
#include <span>

#include "../names.hpp"
#include "async_support.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"
#include "memory_support.hpp"

namespace backplane::conformance {
namespace {

using Numbers = std::span<int32_t>;

// Host memory, because these cases write into it themselves.
Source host_memory_of(Rank& rank, Agent& agent) {
  if (rank.run().on_device) rank.skip("all operations of this check have such memory");
  return memory_of(rank, agent);
}

// Elements in the backend's or in ordinary memory, between guard elements.
class GuardedNumbers {
 public:
  GuardedNumbers(Rank& rank, const Source& api, uint64_t count, bool own) : plain_(own ? 0 : count + 2 * kEdge) {
    if (own) piece_ = Piece(rank, api, (count + 2 * kEdge) * sizeof(int32_t));
    all_ = own ? Numbers(reinterpret_cast<int32_t*>(piece_.data()), count + 2 * kEdge) : Numbers(plain_);
    std::fill(all_.begin(), all_.end(), kUntouched);
  }
  Numbers part() const { return all_.subspan(kEdge, all_.size() - 2 * kEdge); }
  bool edges_hold() const {
    return std::all_of(all_.begin(), all_.end() - static_cast<ptrdiff_t>(all_.size() - kEdge), untouched) &&
           std::all_of(all_.end() - kEdge, all_.end(), untouched);
  }

 private:
  static constexpr uint64_t kEdge = 5;  // parts begin inside cache lines
  static constexpr int32_t kUntouched = -77;
  static bool untouched(int32_t number) { return number == kUntouched; }

  Piece piece_;
  std::vector<int32_t> plain_;
  Numbers all_;
};

// The operation of equal counts that corresponds to a v-variant; otherwise the operation itself.
uint32_t even(uint32_t kind) {
  switch (kind) {
    case BP_GATHERV:
      return BP_GATHER;
    case BP_SCATTERV:
      return BP_SCATTER;
    case BP_ALL_GATHERV:
      return BP_ALL_GATHER;
    case BP_REDUCE_SCATTERV:
      return BP_REDUCE_SCATTER;
    case BP_ALL_TO_ALLV:
      return BP_ALL_TO_ALL;
    default:
      return kind;
  }
}

// The value of rank `from`, as element i of its block for rank `to`.
int32_t given(int32_t from, uint64_t to, uint64_t i) {
  return from * 100'000 + static_cast<int32_t>(to) * 1'000 + static_cast<int32_t>(i % 997);
}

template <typename Expected>
void require_all(Rank& rank, Numbers numbers, const Expected& expected, const std::string& what) {
  uint64_t i = 0;
  while (i < numbers.size() && numbers[i] == expected(i)) ++i;
  if (i < numbers.size()) rank.fail(fmt::format("{}: {} at {}", what, expected(i), i), std::to_string(numbers[i]));
}

struct BufferRound {
  Rank& rank;
  Collectives& group;
  const Source& api;
  uint64_t count;  // elements of a block
  bool own_input;
  bool own_output;
  uint64_t ranks = static_cast<uint64_t>(rank.size());

  // The root is rank 0. Broadcast is always in place at the root. V-variants have the same count for each rank.
  void run(uint32_t kind, bool wants_in_place) const {
    const uint32_t like = even(kind);
    const bool in_place = wants_in_place || like == BP_BROADCAST;
    const bool many_in = like == BP_SCATTER || like == BP_REDUCE_SCATTER || like == BP_ALL_TO_ALL;
    const bool many_out = like == BP_GATHER || like == BP_ALL_GATHER || like == BP_ALL_TO_ALL;
    const bool gives = rank.id() == 0 || !(like == BP_BROADCAST || like == BP_SCATTER);
    const bool gets = rank.id() == 0 || !(like == BP_GATHER || like == BP_REDUCE);
    const GuardedNumbers in(rank, api, !gives || in_place ? 0 : (many_in ? count * ranks : count), own_input);
    const GuardedNumbers out(rank, api, !gets ? 0 : (many_out ? count * ranks : count), own_output);
    const Numbers input = in_place ? out.part() : in.part();
    for (uint64_t i = 0; gives && i < input.size(); ++i) input[i] = given(rank.id(), i / count, i % count);
    bp_op op = make_op(kind, BP_I32);
    op.reduce_op = BP_SUM;
    op.input = {gives ? input.data() : nullptr, gives ? input.size() : 0, BP_HOST, 0};
    op.output = {gets ? out.part().data() : nullptr, out.part().size(), BP_HOST, 0};
    op.seq = group.next_seq();
    op.timeout_ns = group.enough();
    const std::vector<uint64_t> counts(ranks, count);
    std::vector<uint64_t> displs;
    for (uint64_t to = 0; to < ranks; ++to) displs.push_back(to * count);
    if (kind != like && many_in && gives) op.in_counts = counts.data(), op.in_displs = displs.data();
    if (kind != like && many_out && gets) op.out_counts = counts.data(), op.out_displs = displs.data();
    const std::string what = fmt::format("{} of {} x i32, input in {} memory, output in {}", op_name(kind), count,
                                         own_input ? "the backend's" : "any", own_output ? "the backend's" : "any");
    rank.step(what);
    rank.require_ok(group.agent().run(op), what);
    require_all(
        rank, out.part(), [this, like](uint64_t i) { return result(like, i); }, what + ", output");
    if (gives && !in_place) {
      require_all(
          rank, input, [this](uint64_t i) { return given(rank.id(), i / count, i % count); }, what + ", input");
    }
    rank.require(in.edges_hold() && out.edges_hold(), fmt::format("{}: nothing written beside the output", what),
                 "something");
  }

 private:
  int32_t result(uint32_t kind, uint64_t i) const {
    const auto mine = static_cast<uint64_t>(rank.id());
    if (kind == BP_BROADCAST) return given(0, 0, i);
    if (kind == BP_SCATTER) return given(0, mine, i);
    if (kind == BP_GATHER || kind == BP_ALL_GATHER) return given(static_cast<int32_t>(i / count), 0, i % count);
    if (kind == BP_ALL_TO_ALL) return given(static_cast<int32_t>(i / count), mine, i % count);
    int32_t sum = 0;
    for (int32_t from = 0; from < rank.size(); ++from) sum += given(from, kind == BP_REDUCE_SCATTER ? mine : 0, i);
    return sum;
  }
};

std::vector<uint32_t> native_kinds(const Collectives& group) {
  std::vector<uint32_t> kinds;
  for (const uint32_t kind :
       {BP_ALL_REDUCE, BP_BROADCAST, BP_ALL_GATHER, BP_REDUCE_SCATTER, BP_ALL_TO_ALL, BP_REDUCE, BP_GATHER, BP_GATHERV,
        BP_SCATTER, BP_SCATTERV, BP_ALL_GATHERV, BP_REDUCE_SCATTERV, BP_ALL_TO_ALLV}) {
    const bp_capability* const native = group.native(kind);
    const bool sums = reduces(kind);
    if (native == nullptr || (native->dtypes & BP_BIT(BP_I32)) == 0) continue;
    if (!sums || declares(*native, BP_I32, BP_SUM)) kinds.push_back(kind);
  }
  return kinds;
}

void any_buffer(Rank& rank) {
  Collectives group(rank);
  const Source api = host_memory_of(rank, group.agent());
  const std::vector<uint32_t> kinds = native_kinds(group);
  if (kinds.empty()) rank.skip("no collective is native for i32 in host memory");
  for (const uint64_t count : {UINT64_C(7), UINT64_C(3'000), UINT64_C(60'000)}) {
    // First all ranks with both, then each rank with a different choice than its neighbours.
    for (int mix = 0; mix < 5; ++mix) {
      const int bits = mix == 0 ? 3 : mix + rank.id();
      const BufferRound round{rank, group, api, count, (bits & 1) != 0, (bits & 2) != 0};
      for (const uint32_t kind : kinds) round.run(kind, false);
      for (const uint32_t kind : kinds) {
        if (kind != BP_ALL_REDUCE && kind != BP_ALL_TO_ALL) continue;
        round.run(kind, true);
        round.run(kind, rank.id() % 2 == 0);
      }
    }
  }
}

void in_messages(Rank& rank) {
  const auto agent = rank.open();
  const Source api = host_memory_of(rank, *agent);
  for (const uint64_t bytes : {UINT64_C(1), UINT64_C(3'000), UINT64_C(2) << 20}) {
    for (int mix = 0; mix < 4; ++mix) {
      const Piece sent(rank, api, bytes + 8);
      const Piece got(rank, api, bytes + 8);
      std::vector<std::byte> plain_sent(bytes + 8);
      std::vector<std::byte> plain_got(bytes + 8);
      std::byte* const from = ((mix & 1) != 0 ? sent.data() : plain_sent.data()) + 3;
      std::byte* const to = ((mix & 2) != 0 ? got.data() : plain_got.data()) + 3;
      for (uint64_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 + static_cast<uint64_t>(rank.id()));
      rank.step(fmt::format("sending and receiving {} bytes in the backend's memory", bytes));
      Pending recv = agent->irecv(rank.previous(), 1, to, bytes);
      rank.require_ok(agent->isend(rank.next(), 1, from, bytes).finish(rank.hang_limit(kEndLimit)), "a send");
      rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "a recv");
      const auto sent_to_me = [&rank](uint64_t i) {
        return static_cast<std::byte>(i * 7 + static_cast<uint64_t>(rank.previous()));
      };
      uint64_t i = 0;
      while (i < bytes && to[i] == sent_to_me(i)) ++i;
      rank.require(i == bytes, "the bytes that were sent", fmt::format("another one at {} of {}", i, bytes));
    }
  }
}

// Once an operation is terminal, no rank reads or writes its buffer.
void mine_again(Rank& rank) {
  Collectives group(rank);
  const Source api = host_memory_of(rank, group.agent());
  const bp_capability& native = group.require_native(BP_ALL_REDUCE);
  if (!declares(native, BP_I32, BP_SUM)) rank.skip("all_reduce is not native for sums of i32");
  constexpr uint64_t kCount = 50'000;
  std::vector<Piece> pieces;
  for (int i = 0; i < 3; ++i) pieces.emplace_back(rank, api, kCount * sizeof(int32_t));
  for (uint64_t round = 0; round < 40; ++round) {
    const Piece& piece = pieces[round % 3];
    auto* const numbers = reinterpret_cast<int32_t*>(piece.data());
    for (uint64_t i = 0; i < kCount; ++i) numbers[i] = given(rank.id(), round, i);
    bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
    op.reduce_op = BP_SUM;
    op.input = op.output = {numbers, kCount, BP_HOST, 0};
    op.seq = group.next_seq();
    op.timeout_ns = group.enough();
    rank.require_ok(group.agent().run(op), "all_reduce in the backend's memory");
    int32_t sum = 0;
    for (int32_t from = 0; from < rank.size(); ++from) sum += given(from, round, 0);
    const auto expected = [&rank, sum](uint64_t i) { return sum + rank.size() * static_cast<int32_t>(i % 997); };
    require_all(rank, Numbers(numbers, kCount), expected, "all_reduce in the backend's memory");
    piece.fill(round);  // at once, while other ranks may still be inside
    if (round > 0) {
      require_kept(rank, pieces[(round - 1) % 3], round - 1, "after an operation, and through the next one");
    }
  }
}

}  // namespace

std::vector<Case> memory_buffer_cases() {
  return {
      Case("any-buffer",
           "collectives give the same results in the backend's and in other memory, at any offset, in any "
           "combination of ranks",
           any_buffer, {}, {.deadline = 60 * kSecond}),
      Case("in-messages", "messages are sent from and received into the backend's memory", in_messages),
      Case("mine-again", "no rank reads or writes the buffers of a terminal operation", mine_again, {},
           {.deadline = 60 * kSecond}),
  };
}

}  // namespace backplane::conformance
