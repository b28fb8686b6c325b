// SPDX-License-Identifier: Apache-2.0
//
// Batches of messages on a device, and copies there and back (abi/ext/device.h).
#include <array>

#include "async_support.hpp"
#include "device_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kMessages = 12;  // of a batch

// Tags and sizes differ, except that every third message has the tag of the previous one.
uint64_t tag_of(uint64_t i) { return 20 + i - (i % 3 == 2 ? 1 : 0); }
uint64_t size_of(uint64_t i) { return 100 + i * i * 1000; }

// Each rank sends a batch to the next rank and receives one from the previous rank. Each round mixes the directions
// differently.
void batches(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  std::vector<Piece> out;
  std::vector<Piece> in;
  for (uint64_t i = 0; i < kMessages; ++i) {
    out.push_back(device.piece(rank, size_of(i)));
    in.push_back(device.piece(rank, size_of(i)));
    out.back().fill(100 * static_cast<uint64_t>(rank.id()) + i);
  }
  for (uint64_t round = 0; round < 3; ++round) {
    rank.step(fmt::format("in batch {}", round));
    std::vector<bp_op> ops;
    for (uint64_t i = 0; i < kMessages; ++i) ops.push_back(device.send(rank.next(), tag_of(i), out[i]));
    for (uint64_t i = 0; i < kMessages; ++i) {
      const auto at = static_cast<ptrdiff_t>(round == 0 ? 2 * i : round == 1 ? i : ops.size());
      ops.insert(ops.begin() + at, device.recv(rank.previous(), tag_of(i), in[i]));
    }
    std::vector<Pending> pending;
    for (size_t i = 0; i < ops.size(); ++i) {
      ops[i].seq = round * ops.size() + i + 1;
      if (i + 1 < ops.size()) ops[i].flags = BP_OP_MORE;
      pending.push_back(device.agent->submit(ops[i]));
    }
    for (Pending& each : pending) rank.require_ok(each.finish(rank.hang_limit(kEndLimit)), "a message of a batch");
    for (uint64_t i = 0; i < kMessages; ++i) {
      require_kept(rank, in[i], 100 * static_cast<uint64_t>(rank.previous()) + i,
                   fmt::format("in message {} of a batch", i));
      in[i].fill(0);
    }
    rank.barrier();
  }
}

// The batch ends early, as if its other operations had been refused.
void batch_cut_short(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  const Piece out = device.piece(rank, 100'000);
  const Piece in = device.piece(rank, 100'000);
  out.fill(static_cast<uint64_t>(rank.id()));
  bp_op recv = device.recv(rank.previous(), 5, in);
  bp_op send = device.send(rank.next(), 5, out);
  recv.flags = send.flags = BP_OP_MORE;
  recv.seq = 1;
  send.seq = 2;
  rank.step("in a batch that nothing more comes of");
  Pending received = device.agent->submit(recv);
  Pending sent = device.agent->submit(send);
  rank.require_ok(received.finish(rank.hang_limit(kEndLimit)), "a recv of a batch that nothing more comes of");
  rank.require_ok(sent.finish(rank.hang_limit(kEndLimit)), "a send of a batch that nothing more comes of");
  require_kept(rank, in, static_cast<uint64_t>(rank.previous()), "in the message");
  rank.barrier();
}

// Between the host and the device, and within both.
std::string first_wrong_copy(const OnDevice& device, const Piece& first, const Piece& second, uint64_t key) {
  const auto copy = [&device](void* to, const void* from, uint64_t bytes) {
    Outcome outcome;
    outcome.status = device.api.copy(device.api.ctx, to, from, bytes, &outcome.error);
    return outcome;
  };
  const std::vector<uint8_t> bytes = bytes_of(key, first.size());
  std::vector<uint8_t> host(bytes.size());
  std::vector<uint8_t> back(bytes.size());
  struct Step {
    const char* name;
    void* to;
    const void* from;
  };
  for (const Step& step :
       {Step{"within the host", host.data(), bytes.data()}, Step{"to the device", first.data(), host.data()},
        Step{"within the device", second.data(), first.data()}, Step{"from the device", back.data(), second.data()}}) {
    const Outcome outcome = copy(step.to, step.from, bytes.size());
    if (!outcome.ok()) return fmt::format("a copy {}: {}", step.name, outcome.text());
  }
  if (const Outcome none = copy(first.data(), back.data(), 0); !none.ok())
    return fmt::format("no bytes: {}", none.text());
  return first_wrong(back, key) < 0 ? "" : "other bytes after a copy to the device, there, and back";
}

void copies(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  struct Log {
    std::string wrong;
  };
  std::array<Log, 4> logs;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < 2 * logs.size(); ++i) pieces.push_back(device.piece(rank, 1 + i / 2 * 100'000));
  {
    std::vector<std::unique_ptr<TestThread>> threads;
    for (size_t which = 0; which < logs.size(); ++which) {
      threads.push_back(std::make_unique<TestThread>([&log = logs[which], &device, &pieces, which] {
        for (uint64_t i = 0; i < 20 && log.wrong.empty(); ++i) {
          log.wrong = first_wrong_copy(device, pieces[2 * which], pieces[2 * which + 1], 7 * i + which);
        }
      }));
    }
    for (const auto& thread : threads) {
      rank.require(thread->await(rank.hang_limit(kEndLimit)), "threads that copy at the same time to come to an end",
                   "one that hangs");
    }
  }
  for (const Log& log : logs) rank.require(log.wrong.empty(), "copies by four threads", log.wrong);
  rank.barrier();
  device.agent->abort(BP_CANCELLED, -1, "the case wants it");
  const std::string wrong = first_wrong_copy(device, pieces[6], pieces[7], 1);
  rank.require(wrong.empty(), "copies after an abort", wrong);
}

}  // namespace

std::vector<Case> device_batch_cases() {
  return {
      Case("batch", "messages of a batch arrive like single messages", batches, {.ranks = 2}),
      Case("batch-cut-short", "a message of a batch does not wait for the next one to be submitted", batch_cut_short,
           {.ranks = 2}),
      Case("copies", "copies between and within host and device work in any thread, also after an abort", copies),
  };
}

}  // namespace backplane::conformance
