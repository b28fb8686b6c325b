// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

// Tags that a backend would confuse if it compared only 8, 16, 32 or 63 of their bits, one bit less than it declares,
// or their sign. Users' tags are below 2^32, the core's have BP_TAG_INTERNAL. All differ in the declared bits.
std::vector<uint64_t> alike_tags(const bp_backend& backend) {
  std::vector<uint64_t> all = {0,          1,          0x100,      0x101,      0x1'0000,   0x1'0001,
                               0x100'0000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF};
  for (int bit = 14; bit < 32; ++bit) all.push_back(uint64_t{1} << bit);
  const size_t users = all.size();
  for (size_t i = 0; i < users; ++i) all.push_back(BP_TAG_INTERNAL | all[i]);
  for (int bit = 32; bit < 63; ++bit) all.push_back(BP_TAG_INTERNAL | (uint64_t{1} << bit));
  std::set<uint64_t> seen;
  std::erase_if(all, [&seen, &backend](uint64_t tag) { return !seen.insert(fit_tag(backend, tag)).second; });
  return all;
}

void tag_match(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const bool early : {true, false}) {
    const std::vector<uint64_t> tags = alike_tags(rank.backend());
    std::vector<uint64_t> outputs(tags.size());
    std::vector<uint64_t> inputs(tags.size());
    std::vector<Pending> sends;
    std::vector<Pending> recvs;
    rank.step(fmt::format("receiving {} tags in another order than they are sent, the {} first", tags.size(),
                          early ? "recvs" : "sends"));
    const auto send = [&] {
      for (size_t i = 0; i < tags.size(); ++i) {
        outputs[i] = message_name(rank.id(), rank.next(), tags[i], 0);
        sends.push_back(verified.send(rank.next(), tags[i], &outputs[i], 8));
      }
    };
    if (!early) send();
    rank.barrier();
    for (size_t i = tags.size(); i-- > 0;) recvs.push_back(verified.recv(rank.previous(), tags[i], &inputs[i], 8));
    rank.barrier();
    if (early) send();
    verified.finish_all(recvs, "recv");
    verified.finish_all(sends, "send");
    for (size_t i = 0; i < tags.size(); ++i) {
      if (inputs[i] == message_name(rank.previous(), rank.id(), tags[i], 0)) continue;
      std::string actual = "a message that no rank sent";
      for (const uint64_t tag : tags) {
        if (inputs[i] == message_name(rank.previous(), rank.id(), tag, 0))
          actual = fmt::format("the message with tag {}", tag);
      }
      rank.fail(fmt::format("a recv of tag {} gets the message with that tag", tags[i]), actual);
    }
    verified.round(77);
  }
}

// Small and large in turn: a transport must keep their order even if it sends them in different ways.
uint64_t varied_size(uint64_t number) { return number % 7 == 3 ? 90'000 + number : (number % 5 == 0 ? 0 : 8 + number); }

void order_kept(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr uint64_t kMessages = 150;
  for (const bool early : {true, false}) {
    rank.step(fmt::format("sending {} messages with one tag, the {} first", kMessages, early ? "recvs" : "sends"));
    std::vector<Guarded> outputs;
    std::vector<Guarded> inputs;
    std::vector<bp_result> results(kMessages, make_result());
    std::vector<Pending> sends;
    std::vector<Pending> recvs;
    for (uint64_t i = 0; i < kMessages; ++i) {
      outputs.emplace_back(varied_size(i));
      inputs.emplace_back(100'000);
      fill_pattern(outputs[i].data(), outputs[i].size(), message_name(rank.id(), rank.next(), 6, i));
    }
    const auto send = [&] {
      for (const Guarded& output : outputs)
        sends.push_back(verified.send(rank.next(), 6, output.data(), output.size()));
    };
    if (!early) send();
    rank.barrier();
    for (uint64_t i = 0; i < kMessages; ++i) {
      recvs.push_back(verified.recv(rank.previous(), 6, inputs[i].data(), inputs[i].size(), &results[i]));
    }
    rank.barrier();
    if (early) send();
    for (uint64_t i = 0; i < kMessages; ++i) {
      const std::string what = fmt::format("message {} of {} with one tag from one peer", i, kMessages);
      verified.finish(recvs[i], "a recv of " + what);
      verified.expect_report(what, results[i], rank.previous(), varied_size(i));
      verified.expect(what, inputs[i].data(), varied_size(i), message_name(rank.previous(), rank.id(), 6, i));
    }
    verified.finish_all(sends, "send");
  }
}

void tags_interleaved(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr uint64_t kTags = 8;
  constexpr uint64_t kEach = 25;
  rank.step("sending messages of 8 tags in turn, which are received in a random order of the tags");
  std::vector<Guarded> outputs;
  std::vector<Pending> sends;
  for (uint64_t i = 0; i < kTags * kEach; ++i) {
    outputs.emplace_back(i % 9 == 4 ? 80'000 : 16);
    fill_pattern(outputs[i].data(), outputs[i].size(), message_name(rank.id(), rank.next(), i % kTags, i / kTags));
  }
  for (uint64_t i = 0; i < kTags * kEach; ++i) {
    sends.push_back(verified.send(rank.next(), i % kTags, outputs[i].data(), outputs[i].size()));
  }
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < kTags * kEach; ++i) order.push_back(i % kTags);
  std::shuffle(order.begin(), order.end(), rank.random());
  uint64_t next[kTags] = {};
  for (const uint64_t tag : order) {
    const uint64_t number = next[tag]++;
    const uint64_t size = (number * kTags + tag) % 9 == 4 ? 80'000 : 16;
    Guarded input(80'000);
    bp_result result = make_result();
    const std::string what = fmt::format("message {} of tag {}", number, tag);
    Pending receiving = verified.recv(rank.previous(), tag, input.data(), input.size(), &result);
    verified.finish(receiving, "a recv of " + what);
    verified.expect_report(what, result, rank.previous(), size);
    verified.expect(what, input.data(), size, message_name(rank.previous(), rank.id(), tag, number));
  }
  verified.finish_all(sends, "send");
}

// A message for recvs from any source: its sender, its number, and a pattern.
struct NumberedMessage {
  int32_t sender;
  uint32_t number;
  uint64_t proof;
};
NumberedMessage numbered(int32_t sender, int32_t receiver, uint32_t number) {
  return {sender, number, message_name(sender, receiver, 10, number)};
}

// Each rank sends `each` letters to every rank, including itself, and receives them from any source in small batches.
void any_source(Rank& rank, uint32_t each, bool large) {
  Plan plan;
  plan.space = large ? "large" : "small";
  VerifiedAgent verified(rank, plan);
  rank.step(fmt::format("receiving {}{} messages of each rank from any source", each, large ? " large" : " small"));
  const auto ranks = static_cast<size_t>(rank.size());
  const uint64_t size = large ? 90'000 : sizeof(NumberedMessage);
  std::vector<Guarded> outputs;
  std::vector<Pending> sends;
  for (uint32_t number = 0; number < each; ++number) {
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      outputs.emplace_back(size);
      *reinterpret_cast<NumberedMessage*>(outputs.back().data()) = numbered(rank.id(), peer, number);
      sends.push_back(verified.send(peer, 10, outputs.back().data(), size));
    }
  }
  std::vector<uint32_t> next(ranks);
  for (size_t i = 0; i < each * ranks; ++i) {
    Guarded input(size);
    bp_result result = make_result();
    Pending receiving = verified.recv(BP_ANY_SOURCE, 10, input.data(), size, &result);
    verified.finish(receiving, fmt::format("recv {} from any source", i));
    const auto got = *reinterpret_cast<const NumberedMessage*>(input.data());
    rank.require(
        got.sender >= 0 && got.sender < rank.size() && got.proof == numbered(got.sender, rank.id(), got.number).proof,
        "a message sent to this rank", "other contents");
    rank.require(result.source == got.sender, fmt::format("bp_result.source {}, who sent the message", got.sender),
                 fmt::format("source {}", result.source));
    rank.require(result.bytes == size, fmt::format("bp_result.bytes {}", size), std::to_string(result.bytes));
    uint32_t& expected = next[static_cast<size_t>(got.sender)];
    rank.require(got.number == expected,
                 fmt::format("message {} of rank {} before its later ones", expected, got.sender),
                 fmt::format("message {}", got.number));
    ++expected;
  }
  verified.finish_all(sends, "send");
}

void any_source_names_sender(Rank& rank) {
  any_source(rank, 1, false);
  any_source(rank, 1, true);
}

void any_source_order(Rank& rank) { any_source(rank, 60, false); }

// Recvs that all match the messages of one peer: some name it, some are from any source. Small and large messages.
void mixed_recvs(Rank& rank, VerifiedAgent& verified, uint64_t round) {
  constexpr size_t kMessages = 12;
  const uint64_t tag = 20 + round;
  std::vector<Guarded> outputs;
  std::vector<Guarded> inputs;
  std::vector<Pending> sends;
  std::vector<Pending> recvs;
  rank.step(fmt::format("receiving {} messages of one peer from a named and from any source at random", kMessages));
  for (size_t i = 0; i < kMessages; ++i) {
    const bool named = rank.random()() % 2 == 0;
    inputs.emplace_back(100'000);
    outputs.emplace_back(varied_size(i + round));
    fill_pattern(outputs[i].data(), outputs[i].size(), message_name(rank.id(), rank.next(), tag, i));
    recvs.push_back(verified.recv(named ? rank.previous() : BP_ANY_SOURCE, tag, inputs[i].data(), inputs[i].size()));
    if (i == kMessages / 2) rank.barrier();
    if (i < kMessages / 2) continue;
    for (size_t next = sends.size(); next <= i; ++next) {
      sends.push_back(verified.send(rank.next(), tag, outputs[next].data(), outputs[next].size()));
    }
  }
  for (size_t i = kMessages; i-- > 0;) verified.finish(recvs[i], fmt::format("recv {} of {}", i, kMessages));
  for (size_t i = 0; i < kMessages; ++i) {
    verified.expect(fmt::format("message {} in recv {}", i, i), inputs[i].data(), outputs[i].size(),
                    message_name(rank.previous(), rank.id(), tag, i));
  }
  verified.finish_all(sends, "send");
}

// A message goes to the oldest matching recv, whether it names a source or not. A recv of another tag does not match.
void any_source_oldest_recv(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr uint64_t kTag = 11;
  constexpr uint64_t kOther = 12;
  for (uint32_t number = 0; number < 20; ++number) {
    rank.step(fmt::format("receiving from a named and from any source by turns, round {}", number));
    const bool any_first = number % 2 == 0;
    NumberedMessage inputs[3] = {};
    Pending other = verified.recv(BP_ANY_SOURCE, kOther, &inputs[2], sizeof(NumberedMessage));
    Pending first =
        verified.recv(any_first ? BP_ANY_SOURCE : rank.previous(), kTag, &inputs[0], sizeof(NumberedMessage));
    Pending second =
        verified.recv(any_first ? rank.previous() : BP_ANY_SOURCE, kTag, &inputs[1], sizeof(NumberedMessage));
    rank.barrier();
    NumberedMessage outputs[3];
    std::vector<Pending> sends;
    for (uint32_t i = 0; i < 3; ++i) {
      outputs[i] = numbered(rank.id(), rank.next(), number * 3 + i);
      sends.push_back(verified.send(rank.next(), i == 2 ? kOther : kTag, &outputs[i], sizeof(NumberedMessage)));
    }
    verified.finish(other, "a recv of another tag from any source");
    verified.finish(second,
                    any_first ? "a recv after one from any source" : "a recv from any source after a named one");
    verified.finish(first, any_first ? "a recv from any source" : "a recv from a named source");
    for (uint32_t i = 0; i < 3; ++i) {
      const NumberedMessage right = numbered(rank.previous(), rank.id(), number * 3 + i);
      rank.require(inputs[i].number == right.number && inputs[i].proof == right.proof,
                   i == 2 ? std::string("the message of the other tag") : fmt::format("recv {} gets message {}", i, i),
                   fmt::format("message {}", inputs[i].number - number * 3));
    }
    verified.finish_all(sends, "send");
    rank.barrier();
  }
  for (uint64_t round = 0; round < 20; ++round) mixed_recvs(rank, verified, round);
}

// All pairs at the same time. A recv that names its source takes no other rank's message.
void everybody_at_once(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : {uint64_t{8}, uint64_t{5'000}, uint64_t{150'000}}) {
    rank.step(fmt::format("sending {} bytes to every rank and receiving as much from each", size));
    std::vector<Guarded> outputs;
    std::vector<Guarded> inputs;
    std::vector<Pending> sends;
    std::vector<Pending> recvs;
    std::vector<bp_result> results(static_cast<size_t>(rank.size()), make_result());
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      inputs.emplace_back(size);
      outputs.emplace_back(size);
      fill_pattern(outputs.back().data(), size, message_name(rank.id(), peer, 13, size));
    }
    for (int32_t i = 0; i < rank.size(); ++i) {
      const int32_t to = (rank.id() + i) % rank.size();
      sends.push_back(verified.send(to, 13, outputs[static_cast<size_t>(to)].data(), size));
    }
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      const auto at = static_cast<size_t>(peer);
      recvs.push_back(verified.recv(peer, 13, inputs[at].data(), size, &results[at]));
    }
    verified.finish_all(recvs, "the recv from rank");
    verified.finish_all(sends, "send");
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      const auto at = static_cast<size_t>(peer);
      verified.expect_report(fmt::format("the recv from rank {}", peer), results[at], peer, size);
      verified.expect(fmt::format("the message of rank {}", peer), inputs[at].data(), size,
                      message_name(peer, rank.id(), 13, size));
    }
  }
}

}  // namespace

std::vector<Case> p2p_matching_cases() {
  return {
      Case("tag-match", "all declared bits of a tag are matched, including those of the core's tags", tag_match,
           {.flags = BP_BACKEND_TAGS}),
      Case("order-kept",
           "messages to one peer with one tag are received in the order of their sends, small and large alike",
           order_kept),
      Case("tags-interleaved", "a recv takes the oldest message of its tag, past older ones of other tags",
           tags_interleaved, {.flags = BP_BACKEND_TAGS}),
      Case("any-source-names-sender", "a recv from any source reports the sender", any_source_names_sender,
           {.flags = BP_BACKEND_ANY_SOURCE}),
      Case("any-source-order", "recvs from any source keep the order of each sender and lose nothing", any_source_order,
           {.flags = BP_BACKEND_ANY_SOURCE}),
      Case("any-source-oldest-recv", "a message goes to the oldest recv that matches, named or from any source",
           any_source_oldest_recv, {.flags = BP_BACKEND_ANY_SOURCE | BP_BACKEND_TAGS}),
      Case("everybody-at-once", "every rank sends to every rank at the same time, itself included", everybody_at_once),
  };
}

}  // namespace backplane::conformance
