// SPDX-License-Identifier: Apache-2.0
#include "p2p_traffic.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace backplane::conformance {
namespace {

constexpr uint64_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

uint64_t mixed(uint64_t value) {  // splitmix64, S. Vigna 2015
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

uint64_t kib_of(const char* file, const char* key) {
  std::FILE* stream = std::fopen(file, "re");
  if (stream == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  const size_t length = std::strlen(key);
  while (std::fgets(line, sizeof line, stream) != nullptr) {
    if (std::strncmp(line, key, length) == 0 && std::sscanf(line + length, "%llu", &kib) == 1) break;
  }
  std::fclose(stream);
  return kib * 1024;
}

}  // namespace

Guarded::Guarded(uint64_t bytes, uint64_t skew) : bytes_(bytes), total_(bytes + 4 * kGuard) {
  memory_.reset(new std::byte[total_]);
  const auto start = reinterpret_cast<uintptr_t>(memory_.get()) + kGuard;
  data_ = memory_.get() + ((start + 63) / 64 * 64 + skew % 64 - (start - kGuard));
  std::fill(memory_.get(), data_, kGuardByte);
  std::fill(data_ + bytes_, memory_.get() + total_, kGuardByte);
}

std::string Guarded::damage() const {
  const std::byte* const end = memory_.get() + total_;
  const auto is_hit = [](std::byte byte) { return byte != kGuardByte; };
  const std::byte* hit =
      std::find_if(static_cast<const std::byte*>(memory_.get()), static_cast<const std::byte*>(data_), is_hit);
  if (hit != data_) {
    return fmt::format("byte {} (before its beginning) was overwritten with {}", hit - data_,
                       std::to_integer<int>(*hit));
  }
  hit = std::find_if(static_cast<const std::byte*>(data_) + bytes_, end, is_hit);
  if (hit == end) return "";
  return fmt::format("byte {} of a buffer of {} was overwritten with {}", hit - data_, bytes_,
                     std::to_integer<int>(*hit));
}

void fill_pattern(void* data, uint64_t bytes, uint64_t name) {
  auto* at = static_cast<char*>(data);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = mixed(name + i);
    std::memcpy(at + i, &word, std::min<uint64_t>(8, bytes - i));
  }
}

int64_t first_wrong_byte(const void* data, uint64_t bytes, uint64_t name) {
  const auto* at = static_cast<const char*>(data);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = mixed(name + i);
    const uint64_t size = std::min<uint64_t>(8, bytes - i);
    if (std::memcmp(at + i, &word, size) == 0) continue;
    char right[8];
    std::memcpy(right, &word, 8);
    for (uint64_t j = 0; j < size; ++j) {
      if (at[i + j] != right[j]) return static_cast<int64_t>(i + j);
    }
  }
  return -1;
}

uint64_t message_name(int32_t source, int32_t destination, uint64_t tag, uint64_t number) {
  return mixed(mixed(mixed(mixed(static_cast<uint64_t>(source)) + static_cast<uint64_t>(destination)) + tag) + number);
}

std::unique_ptr<Agent> open_together(Rank& rank, const Plan& plan) {
  std::unique_ptr<Agent> agent = rank.open(plan);
  if (plan.world_size < 0) rank.barrier();
  return agent;
}

Pending VerifiedAgent::send(int32_t peer, uint64_t tag, const void* data, uint64_t bytes, uint64_t flags) {
  bp_op op = send_op(peer, tag, data, bytes);
  op.timeout_ns = rank_.hang_limit(kWaitLimit);
  op.flags = flags;
  return agent_->submit(op);
}

Pending VerifiedAgent::recv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result, uint64_t flags) {
  bp_op op = recv_op(peer, tag, data, bytes, result);
  op.timeout_ns = rank_.hang_limit(kWaitLimit);
  op.flags = flags;
  return agent_->submit(op);
}

Outcome VerifiedAgent::end(Pending& pending, const std::string& what) {
  const Outcome outcome = pending.wait(rank_.hang_limit(kWaitLimit));
  if (outcome.status == BP_AGAIN) {
    rank_.fail(fmt::format("{} ends within {} ms", what, rank_.hang_limit(kWaitLimit) / kMillisecond),
               "it is still in flight");
  }
  pending.release();
  return outcome;
}

void VerifiedAgent::finish(Pending& pending, const std::string& what) { rank_.require_ok(end(pending, what), what); }

void VerifiedAgent::finish_all(std::vector<Pending>& pending, const std::string& what) {
  for (size_t i = 0; i < pending.size(); ++i) finish(pending[i], fmt::format("{} {}", what, i));
  pending.clear();
}

void VerifiedAgent::exchange(int32_t to, const Guarded& output, int32_t from, Guarded& input, uint64_t tag,
                             bp_result* result) {
  Pending receiving = recv(from, tag, input.data(), input.size(), result);
  Pending sending = send(to, tag, output.data(), output.size());
  finish(sending, fmt::format("a send of {} bytes to rank {}", output.size(), to));
  finish(receiving, fmt::format("a recv of {} bytes from rank {}", input.size(), from));
}

void VerifiedAgent::round(uint64_t tag) {
  std::vector<Pending> pending;
  std::vector<uint8_t> words(static_cast<size_t>(rank_.size()));
  const uint8_t mine = 1;
  for (int32_t peer = 0; peer < rank_.size(); ++peer) {
    if (peer == rank_.id()) continue;
    pending.push_back(recv(peer, tag, &words[static_cast<size_t>(peer)], 1));
    pending.push_back(send(peer, tag, &mine, 1));
  }
  finish_all(pending, "a message of a round among all ranks,");
}

void VerifiedAgent::expect(const std::string& what, const void* data, uint64_t bytes, uint64_t name) {
  const int64_t wrong = first_wrong_byte(data, bytes, name);
  if (wrong < 0) return;
  rank_.fail(fmt::format("{} as it was sent ({} bytes)", what, bytes),
             fmt::format("the first wrong byte is at index {}", wrong));
}

void VerifiedAgent::expect_guards(const std::string& what, const Guarded& buffer) {
  const std::string damage = buffer.damage();
  rank_.require(damage.empty(), fmt::format("nothing is written outside {}", what), damage);
}

void VerifiedAgent::expect_report(const std::string& what, const bp_result& result, int32_t source, uint64_t bytes) {
  rank_.require(result.source == source && result.bytes == bytes,
                fmt::format("bp_result of {}: source {}, {} bytes", what, source, bytes),
                fmt::format("source {}, {} bytes", result.source, result.bytes));
}

uint64_t available_bytes() { return kib_of("/proc/meminfo", "MemAvailable:"); }

}  // namespace backplane::conformance
