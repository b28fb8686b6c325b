// SPDX-License-Identifier: Apache-2.0
//
// A message far longer than its recv. A receiver that waits for all of it, or takes memory for it, fails.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kAnnounced = UINT64_C(256) << 30;
constexpr uint64_t kSpare = UINT64_C(8) << 30;  // address space that a rank may take in addition
constexpr uint64_t kAnnouncedMemory = 64 * kMiB;
constexpr uint64_t kAnnouncedTag = 5;

// Address space that can be read and has no memory: all pages are the kernel's page of zeros.
class Zeros {
 public:
  explicit Zeros(uint64_t bytes)
      : data_(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)), bytes_(bytes) {}
  ~Zeros() {
    if (*this) munmap(data_, bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  explicit operator bool() const { return data_ != MAP_FAILED; }
  const void* data() const { return data_; }

 private:
  void* data_;
  uint64_t bytes_;
};

// Lets this process take `more` bytes of address space in addition to what it has, until it ends.
bool limit_address_space(uint64_t more) {
  const uint64_t kilobytes = std::strtoull(status_text("VmSize").c_str(), nullptr, 10);
  rlimit limit = {};
  if (kilobytes == 0 || getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kilobytes * 1024 + more);
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

// Rank 0. The send may end, fail, or go on for minutes.
void announce(Rank& rank, Agent& agent, const Zeros& zeros) {
  rank.step("sending 256 GiB to a recv of 16 bytes");
  Pending send = agent.isend(1, kAnnouncedTag, zeros.data(), kAnnounced);
  if (!send.in_flight() && !send.submitted().ok()) {
    rank.publish("announced", "refused");
    rank.publish("usable", "no");
    rank.skip("the backend refuses to send 256 GiB: " + send.submitted().text());
  }
  rank.publish("announced", "");
  rank.await_value("refused");
  Outcome outcome = send.wait(rank.scaled(kSecond));
  rank.publish("usable", outcome.ok() ? "yes" : "no");
  if (outcome.status == BP_AGAIN) {
    rank.step("cancelling a send of 256 GiB");
    send.cancel();
    outcome = send.wait(rank.scaled(kSecond));
  }
  if (outcome.status == BP_AGAIN) {
    rank.step("aborting a send of 256 GiB");
    agent.abort(BP_CANCELLED, -1, "the harness ends a send of 256 GiB");
    outcome = send.wait(rank.scaled(kSecond));
  }
  rank.require(outcome.status != BP_AGAIN, "a send is over within half a second of abort", "it is still in flight");
  if (send.in_flight()) send.release();
}

// Rank 1. The recv has been submitted before the message.
void refuse(Rank& rank, Pending& recv, const bp_result& result, uint64_t memory) {
  if (rank.await_value("announced") == "refused") return;
  rank.step("receiving 256 GiB into 16 bytes");
  const Outcome outcome = recv.finish(rank.hang_limit(kWaitLimit));
  rank.require(outcome.status == BP_INVALID,
               "BP_INVALID from a recv of 16 bytes for a message of 256 GiB, long before all of it can have arrived",
               outcome.text());
  rank.check(result.source == 0 && result.bytes == kAnnounced, fmt::format("source 0 and {} bytes", kAnnounced),
             fmt::format("source {} and {} bytes", result.source, result.bytes));
  const uint64_t after = resident_bytes();
  rank.check(after < memory + kAnnouncedMemory, "no memory is taken for a message that is refused",
             fmt::format("resident memory grew by {} MiB", (after - std::min(memory, after)) >> 20));
  rank.publish("refused", "");
}

void too_long_at_once(Rank& rank) {
  if (rank.run().on_device) rank.skip("no device has memory for 256 GiB");
  if (has_sanitizer()) rank.skip("a sanitizer ends the process when memory is scarce");
  const Zeros zeros(rank.id() == 0 ? kAnnounced : 1);
  if (!zeros) rank.skip(fmt::format("no address space of 256 GiB: {}", std::strerror(errno)));
  VerifiedAgent verified(rank);
  verified.round(1);
  if (!limit_address_space(kSpare)) rank.skip("the address space cannot be limited here");
  const uint64_t memory = resident_bytes();
  uint64_t small[2] = {};
  bp_result result = make_result();
  Pending recv;
  if (rank.id() == 1) recv = verified.agent().irecv(0, kAnnouncedTag, small, sizeof small, &result);
  rank.barrier();
  if (rank.id() == 0) announce(rank, verified.agent(), zeros);
  if (rank.id() == 1) refuse(rank, recv, result, memory);
  if (rank.await_value("usable") == "yes") {
    rank.step("using a group after a message of 256 GiB was refused");
    verified.round(2);
  }
  rank.barrier();
}

}  // namespace

std::vector<Case> p2p_announced_cases() {
  return {Case("too-long-at-once", "a message of 256 GiB is refused when it begins to arrive, and takes no memory",
               too_long_at_once, {.ranks = 2, .processes = true})};
}

}  // namespace backplane::conformance
