// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kInternal = BP_TAG_INTERNAL | 5;
constexpr uint64_t kTags[] = {40, 7, 0, 7, 0x4001, 3, 40, 0x7FFF, 1};
constexpr uint64_t kCount = std::size(kTags);

// Sizes for eager and other protocols in turn.
uint64_t size_of(uint64_t number) { return number % 3 == 2 ? 150'000 + number : 8 + number; }

void expect_tag(Rank& rank, const std::string& what, const bp_result& result, uint64_t tag) {
  const uint64_t right = fit_tag(rank.backend(), tag);
  rank.require(result.tag == right, fmt::format("bp_result.tag of {}: {}", what, right), std::to_string(result.tag));
}

// The messages to the next rank: each has a user's tag and follows a message with one of the core's tags.
class Series {
 public:
  explicit Series(VerifiedAgent& verified) : talk_(verified), rank_(verified.rank()) {
    for (uint64_t i = 0; i < kCount; ++i) {
      outputs_.emplace_back(size_of(i));
      fill_pattern(outputs_[i].data(), size_of(i), message_name(rank_.id(), rank_.next(), kTags[i], i));
    }
  }
  void send() {
    for (uint64_t i = 0; i < kCount; ++i) {
      sends_.push_back(talk_.send(rank_.next(), kInternal, &mark_, 8));
      sends_.push_back(talk_.send(rank_.next(), kTags[i], outputs_[i].data(), size_of(i)));
    }
  }
  // The recvs of the core's messages, and the end of all sends.
  void finish() {
    for (uint64_t i = 0; i < kCount; ++i) {
      uint64_t mark = 0;
      bp_result result = make_result();
      Pending recv = talk_.recv(rank_.previous(), kInternal, &mark, 8, &result);
      talk_.finish(recv, "a recv of a tag of the core's");
      rank_.require(mark == mark_, "a message with the core's tag", "another one");
      expect_tag(rank_, "a recv of a tag of the core's", result, kInternal);
    }
    talk_.finish_all(sends_, "send");
  }
  void expect(const std::string& what, uint64_t i, const Guarded& input, const bp_result& result) {
    expect_tag(rank_, what, result, kTags[i]);
    talk_.expect_report(what, result, rank_.previous(), size_of(i));
    talk_.expect(what, input.data(), size_of(i), message_name(rank_.previous(), rank_.id(), kTags[i], i));
  }

 private:
  VerifiedAgent& talk_;
  Rank& rank_;
  const uint64_t mark_ = 0x1234'5678'9ABC;
  std::vector<Guarded> outputs_;
  std::vector<Pending> sends_;
};

// Receives the messages of the previous rank in their order: each by its own tag, or all by any tag.
void receive_series(VerifiedAgent& verified, bool by_any_tag, bool early, uint64_t flags) {
  Rank& rank = verified.rank();
  rank.step(fmt::format("receiving {}, the {} first{}", by_any_tag ? "any tag" : "by tag", early ? "recvs" : "sends",
                        flags != 0 ? ", BP_OP_SYNC" : ""));
  Series series(verified);
  std::vector<Guarded> inputs;
  std::vector<bp_result> results(kCount, make_result());
  std::vector<Pending> recvs;
  if (!early) series.send();
  rank.barrier();
  for (uint64_t i = 0; i < kCount; ++i) {
    const Guarded& input = inputs.emplace_back(by_any_tag ? 200'000 : size_of(i));
    const uint64_t tag = by_any_tag ? BP_ANY_TAG : kTags[i];
    recvs.push_back(verified.recv(rank.previous(), tag, input.data(), input.size(), &results[i], flags));
  }
  rank.barrier();
  if (early) series.send();
  for (uint64_t i = 0; i < kCount; ++i) {
    const std::string what = fmt::format("recv {} {}", i, by_any_tag ? "of any tag" : "by tag");
    verified.finish(recvs[i], what);
    series.expect(what, i, inputs[i], results[i]);
  }
  series.finish();
}

void result_tag(Rank& rank) {
  VerifiedAgent verified(rank);
  receive_series(verified, false, true, 0);
  receive_series(verified, false, false, 0);
  receive_series(verified, false, false, BP_OP_SYNC);
  uint64_t word = 17;
  bp_result result = make_result();
  Pending send = verified.send(rank.id(), 9, &word, 8);
  Pending recv = verified.recv(rank.id(), 9, &word, 8, &result);
  verified.finish(recv, "a recv from the rank itself");
  verified.finish(send, "a send to the rank itself");
  expect_tag(rank, "a recv from the rank itself", result, 9);
}

void any_tag(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const bool early : {true, false}) receive_series(verified, true, early, 0);
}

// In turn from a named peer and from any source. The messages of each sender arrive in order across tags.
void any_tag_any_source(Rank& rank) {
  VerifiedAgent verified(rank);
  const auto ranks = static_cast<size_t>(rank.size());
  rank.step("receiving any tag from any source");
  std::vector<Guarded> outputs;
  std::vector<Pending> sends;
  for (uint64_t i = 0; i < kCount; ++i) {
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      outputs.emplace_back(size_of(i));
      fill_pattern(outputs.back().data(), size_of(i), message_name(rank.id(), peer, kTags[i], i));
      sends.push_back(verified.send(peer, kTags[i], outputs.back().data(), size_of(i)));
    }
  }
  std::vector<uint64_t> next(ranks);
  for (size_t turn = 0; turn < kCount * ranks; ++turn) {
    Guarded input(200'000);
    bp_result result = make_result();
    Pending recv = verified.recv(BP_ANY_SOURCE, BP_ANY_TAG, input.data(), input.size(), &result);
    const std::string what = fmt::format("recv {} of any tag from any source", turn);
    verified.finish(recv, what);
    rank.require(result.source >= 0 && result.source < rank.size(), "bp_result.source is a rank",
                 std::to_string(result.source));
    const uint64_t i = next[static_cast<size_t>(result.source)]++;
    rank.require(i < kCount, fmt::format("{} messages of rank {}", kCount, result.source), "one more");
    expect_tag(rank, what, result, kTags[i]);
    verified.expect_report(what, result, result.source, size_of(i));
    verified.expect(what, input.data(), size_of(i), message_name(result.source, rank.id(), kTags[i], i));
  }
  verified.finish_all(sends, "send");
}

// Recvs of one tag and of any tag, all posted before the messages: each message goes to the oldest matching recv.
void any_tag_oldest_recv(Rank& rank) {
  VerifiedAgent verified(rank);
  for (uint64_t round = 0; round < 20; ++round) {
    rank.step(fmt::format("posting recvs of a tag and of any tag by turns, round {}", round));
    const bool any_first = round % 2 == 0;
    uint64_t got[3] = {};
    bp_result results[3] = {make_result(), make_result(), make_result()};
    const uint64_t sent[3] = {round * 10 + 1, round * 10 + 2, round * 10 + 3};
    std::vector<Pending> recvs;
    for (const bool any : {any_first, !any_first, true}) {
      const size_t i = recvs.size();
      recvs.push_back(verified.recv(rank.previous(), any ? BP_ANY_TAG : 6, &got[i], 8, &results[i]));
    }
    rank.barrier();
    std::vector<Pending> sends;
    const uint64_t tags[3] = {6, 6, 11};
    for (size_t i = 0; i < 3; ++i) sends.push_back(verified.send(rank.next(), tags[i], &sent[i], 8));
    verified.finish_all(recvs, "recv");
    verified.finish_all(sends, "send");
    for (size_t i = 0; i < 3; ++i) {
      rank.require(got[i] == sent[i], fmt::format("recv {} gets message {}", i, i),
                   fmt::format("message {}", got[i] - round * 10 - 1));
      expect_tag(rank, fmt::format("recv {}", i), results[i], tags[i]);
    }
    rank.barrier();
  }
}

}  // namespace

std::vector<Case> p2p_tags_cases() {
  constexpr uint32_t kTagged = BP_BACKEND_TAGS | BP_BACKEND_ANY_TAG;
  return {
      Case("result-tag", "a recv reports the tag of its message", result_tag, {.flags = BP_BACKEND_TAGS}),
      Case("any-tag",
           "a recv of any tag takes the oldest message with a tag of users, and none with a tag of the core's", any_tag,
           {.flags = kTagged}),
      Case("any-tag-any-source", "recvs of any tag from any source keep the order of each sender across tags",
           any_tag_any_source, {.flags = kTagged | BP_BACKEND_ANY_SOURCE}),
      Case("any-tag-oldest-recv", "a message goes to the oldest recv that matches, of its tag or of any tag",
           any_tag_oldest_recv, {.flags = kTagged}),
  };
}

}  // namespace backplane::conformance
