// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

// Sizes around the protocol thresholds of common transports.
const std::vector<uint64_t>& message_sizes() {
  static const std::vector<uint64_t> sizes = [] {
    std::vector<uint64_t> all = {0, 1, 2, 3, 7, 13, 31, 33, 997, 100'003};
    for (const int power : {6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 20, 22}) {
      const uint64_t size = uint64_t{1} << power;
      all.insert(all.end(), {size - 1, size, size + 1});
    }
    return all;
  }();
  return sizes;
}

void sizes(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : message_sizes()) {
    rank.step(fmt::format("sending {} bytes to the next rank and receiving as many from the previous one", size));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 1, size));
    bp_result result = make_result();
    verified.exchange(rank.next(), output, rank.previous(), input, 1, &result);
    verified.expect_report("the recv", result, rank.previous(), size);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 1, size));
  }
}

// Every length up to 9,000 bytes, and lengths up to 1 MiB as the seed has them.
void every_length(Rank& rank) {
  constexpr uint64_t kEvery = 9'001;
  constexpr uint64_t kDrawn = 500;
  constexpr size_t kAtOnce = 50;
  VerifiedAgent verified(rank);
  std::vector<uint64_t> lengths(kEvery);
  std::iota(lengths.begin(), lengths.end(), uint64_t{0});
  while (lengths.size() < kEvery + kDrawn) lengths.push_back(rank.shared_random()() % (kMiB >> lengths.size() % 6));
  for (size_t begin = 0; begin < lengths.size(); begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, lengths.size());
    rank.step(fmt::format("receiving messages of {} to {} bytes", lengths[begin], lengths[end - 1]));
    std::vector<Guarded> outputs;
    std::vector<Guarded> inputs;
    std::vector<bp_result> results(end - begin, make_result());
    std::vector<Pending> pending;
    for (size_t i = begin; i < end; ++i) {
      const Guarded& output = outputs.emplace_back(lengths[i], i);
      const Guarded& input = inputs.emplace_back(lengths[i], i * 3);
      fill_pattern(output.data(), output.size(), message_name(rank.id(), rank.next(), 8, i));
      pending.push_back(verified.recv(rank.previous(), 8, input.data(), input.size(), &results[i - begin]));
      pending.push_back(verified.send(rank.next(), 8, output.data(), output.size()));
    }
    verified.finish_all(pending, "message");
    for (size_t i = begin; i < end; ++i) {
      const Guarded& input = inputs[i - begin];
      verified.expect_report("the recv", results[i - begin], rank.previous(), lengths[i]);
      verified.expect("the message", input.data(), lengths[i], message_name(rank.previous(), rank.id(), 8, i));
      verified.expect_guards(fmt::format("the recv's buffer of {} bytes", lengths[i]), input);
    }
  }
}

void zero_bytes(Rank& rank) {
  VerifiedAgent verified(rank);
  for (uint64_t number = 0; number < 20; ++number) {
    rank.step(fmt::format("sending an empty message between others, round {}", number));
    const uint64_t size = number % 2 == 0 ? 0 : 24;
    Guarded output(size);
    Guarded input(24);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 5, number));
    bp_result result = make_result();
    // An empty message and its recv may have no memory.
    const bool bare = number % 4 == 0;
    Pending receiving = verified.recv(rank.previous(), 5, bare ? nullptr : input.data(), bare ? 0 : 24, &result);
    Pending sending = verified.send(rank.next(), 5, size == 0 ? nullptr : output.data(), size);
    verified.finish(sending, "a send");
    verified.finish(receiving, "a recv");
    verified.expect_report("the recv", result, rank.previous(), size);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 5, number));
  }
}

void to_self(Rank& rank) {
  VerifiedAgent verified(rank);
  uint64_t number = 0;
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{1009}, 64 * uint64_t{1024} + 1, kMiB}) {
    for (const bool send_first : {true, false}) {
      rank.step(fmt::format("sending {} bytes to itself, the {} first", size, send_first ? "send" : "recv"));
      Guarded output(size);
      Guarded input(size);
      fill_pattern(output.data(), size, message_name(rank.id(), rank.id(), 2, ++number));
      bp_result result = make_result();
      Pending sending;
      if (send_first) sending = verified.send(rank.id(), 2, output.data(), size);
      Pending receiving = verified.recv(rank.id(), 2, input.data(), size, &result);
      if (!send_first) sending = verified.send(rank.id(), 2, output.data(), size);
      verified.finish(receiving, "a recv from the rank itself");
      verified.finish(sending, "a send to the rank itself");
      verified.expect_report("the recv", result, rank.id(), size);
      verified.expect("the message", input.data(), size, message_name(rank.id(), rank.id(), 2, number));
    }
  }
}

// Each length from 0 to 64, and lengths around the sizes of pages and of common eager limits, at changing alignment.
void guard_bytes(Rank& rank) {
  VerifiedAgent verified(rank);
  std::vector<uint64_t> sizes(65);
  std::iota(sizes.begin(), sizes.end(), uint64_t{0});
  sizes.insert(sizes.end(), {1021, 4095, 4096, 4097, 65'535, 65'536, 65'537, 300'001});
  uint64_t number = 0;
  for (const uint64_t size : sizes) {
    const uint64_t skew = ++number * 3;
    rank.step(fmt::format("receiving {} bytes into a guarded buffer, {} bytes off alignment", size, skew % 64));
    const Guarded output(size, skew + 1);
    Guarded input(size, skew);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 3, number));
    verified.exchange(rank.next(), output, rank.previous(), input, 3);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 3, number));
    verified.expect_guards(fmt::format("the recv's buffer of {} bytes", size), input);
    verified.expect_guards(fmt::format("the send's buffer of {} bytes", size), output);
  }
}

void input_unmodified(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : {uint64_t{1}, uint64_t{77}, uint64_t{65'536}, kMiB + 1}) {
    rank.step(fmt::format("sending {} bytes", size));
    const uint64_t name = message_name(rank.id(), rank.next(), 4, size);
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, name);
    verified.exchange(rank.next(), output, rank.previous(), input, 4);
    verified.expect("the send's buffer, after it is done,", output.data(), size, name);
  }
}

// Once a send is done, the caller may reuse its buffer, even if the message has not been received.
void buffer_free_after_send(Rank& rank) {
  VerifiedAgent verified(rank);
  const int32_t other = rank.next();
  for (const uint64_t size : {uint64_t{9}, uint64_t{4096}, uint64_t{200'000}}) {
    rank.step(fmt::format("sending {} bytes and overwriting them as soon as the send is done", size));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), other, 6, size));
    Pending sending = verified.send(other, 6, output.data(), size);
    const bool eager = !sending.in_flight() || sending.wait(0).status != BP_AGAIN;
    if (eager) {
      verified.finish(sending, "a send");
      fill_pattern(output.data(), size, 12345);
    }
    rank.barrier();
    Pending receiving = verified.recv(rank.previous(), 6, input.data(), size);
    if (!eager) {
      verified.finish(sending, "a send");
      fill_pattern(output.data(), size, 12345);
    }
    verified.finish(receiving, "a recv");
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 6, size));
  }
}

void dtype_differs(Rank& rank) {
  VerifiedAgent verified(rank);
  const uint64_t sends = rank.capability(BP_SEND)->dtypes;
  const uint64_t receives = rank.capability(BP_RECV)->dtypes;
  constexpr uint64_t kBytes = 240;  // a multiple of every element's size
  uint64_t number = 0;
  for (uint32_t from = 0; from < BP_DTYPE_COUNT; ++from) {
    const uint32_t to = (from * 5 + 3) % BP_DTYPE_COUNT;
    if ((sends & BP_BIT(from)) == 0 || (receives & BP_BIT(to)) == 0) continue;
    rank.step(fmt::format("sending elements of dtype {} that are received as dtype {}", from, to));
    Guarded output(kBytes);
    Guarded input(kBytes);
    fill_pattern(output.data(), kBytes, message_name(rank.id(), rank.next(), 7, ++number));
    bp_result result = make_result();
    bp_op receive = recv_op(rank.previous(), 7, input.data(), kBytes / bp_dtype_size(to), &result);
    bp_op send = send_op(rank.next(), 7, output.data(), kBytes / bp_dtype_size(from));
    receive.dtype = to;
    send.dtype = from;
    Pending receiving = verified.agent().submit(receive);
    Pending sending = verified.agent().submit(send);
    verified.finish(sending, "a send");
    verified.finish(receiving, "a recv");
    verified.expect_report("the recv, in bytes whatever the dtype,", result, rank.previous(), kBytes);
    verified.expect("the message", input.data(), kBytes, message_name(rank.previous(), rank.id(), 7, number));
    rank.cell(BP_SEND, from, 0, BP_HOST, true);
    rank.cell(BP_RECV, to, 0, BP_HOST, true);
  }
  if (number == 0) rank.skip("sends and recvs of different dtypes are not native");
}

void both_directions_large(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr uint64_t kUp = 8;    // the tag of messages to the next rank
  constexpr uint64_t kDown = 9;  // and to the previous one, which may be the same
  const uint64_t size = 6 * kMiB + 5;
  const Guarded up(size);
  const Guarded down(size);
  Guarded from_previous(size);
  Guarded from_next(size);
  fill_pattern(up.data(), size, message_name(rank.id(), rank.next(), kUp, 0));
  fill_pattern(down.data(), size, message_name(rank.id(), rank.previous(), kDown, 0));
  rank.step("sending 6 MiB to both neighbours while receiving as much from both");
  std::vector<Pending> pending;
  pending.push_back(verified.send(rank.next(), kUp, up.data(), size));
  pending.push_back(verified.recv(rank.previous(), kUp, from_previous.data(), size));
  pending.push_back(verified.send(rank.previous(), kDown, down.data(), size));
  pending.push_back(verified.recv(rank.next(), kDown, from_next.data(), size));
  verified.finish_all(pending, "message");
  verified.expect("the message of the previous rank", from_previous.data(), size,
                  message_name(rank.previous(), rank.id(), kUp, 0));
  verified.expect("the message of the next rank", from_next.data(), size,
                  message_name(rank.next(), rank.id(), kDown, 0));
  verified.expect_guards("a recv's buffer", from_previous);
  verified.expect_guards("a recv's buffer", from_next);
}

void over_2gib(Rank& rank) {
  if (rank.id() > 1) return;
  const uint64_t size = (uint64_t{1} << 31) + 17;
  if (rank.id() == 0) rank.publish("room", available_bytes() > 5 * size ? "yes" : "no");
  if (rank.await_value("room") == "no")
    rank.skip("the machine has not the memory for two messages of 2 GiB and their copies");
  Plan plan;
  plan.world_size = 2;
  VerifiedAgent verified(rank, plan);
  Guarded buffer(size);
  rank.step("moving a message of more than 2 GiB from rank 0 to rank 1");
  bp_result result = make_result();
  if (rank.id() == 0) fill_pattern(buffer.data(), size, 99);
  Pending moving =
      rank.id() == 0 ? verified.send(1, 1, buffer.data(), size) : verified.recv(0, 1, buffer.data(), size, &result);
  const Outcome outcome = moving.finish(rank.hang_limit(120 * kSecond));
  rank.require_ok(outcome, "a message of 2 GiB and 17 bytes");
  if (rank.id() == 0) return;
  verified.expect_report("the recv", result, 0, size);
  verified.expect("the message", buffer.data(), size, 99);
  verified.expect_guards("the recv's buffer", buffer);
}

}  // namespace

std::vector<Case> p2p_contents_cases() {
  return {
      Case("sizes", "messages of 0, 1, odd and 2^k +- 1 bytes arrive whole, and bp_result holds source and size",
           sizes),
      Case("every-length", "messages of every length up to 9,000 bytes, and of drawn ones up to 1 MiB, arrive whole",
           every_length, {}, {.level = Level::kThorough, .deadline = 120 * kSecond}),
      Case("zero-bytes", "an empty message is a message: it is matched in its turn and needs no memory", zero_bytes),
      Case("to-self", "a rank can send to itself, in either order", to_self),
      Case("guard-bytes", "nothing outside the buffers is written to, however they are aligned", guard_bytes),
      Case("input-unmodified", "a send does not change its buffer", input_unmodified),
      Case("buffer-free-after-send",
           "a send is done once its buffer may be reused, whether or not the message was received",
           buffer_free_after_send),
      Case("dtype-differs", "messages are bytes: sender and receiver need not name the same dtype", dtype_differs),
      Case("both-directions-large", "large messages pass each other, between two ranks and round a ring",
           both_directions_large, {.ranks = 2}),
      Case("over-2gib", "a message of more than 2 GiB arrives whole", over_2gib, {.ranks = 2},
           {.level = Level::kFull, .deadline = 150 * kSecond}),
  };
}

}  // namespace backplane::conformance
