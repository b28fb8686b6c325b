// SPDX-License-Identifier: Apache-2.0
//
// Input of a rank's port of the plugin zmq, within libzmq's framing. Any bytes are parsed or rejected, a parsed message
// meets the invariants of parse(), and any text decodes to a reason for leaving.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "coverage.hpp"
#include "wire.hpp"

namespace {

using namespace backplane::zmq;
namespace sdk = backplane::sdk;

constexpr uint64_t kToken = UINT64_C(0x6e656b6f74207962);  // "by token", as in the seeds

Coverage read_goodbye("a goodbye was read");
Coverage read_data("a frame of the messenger was read");
Coverage read_other("a hello or an acknowledgement was read");
Coverage read_cause("a cause was read that does not depend on the sender");
Coverage read_end("a reason was read that makes its sender lost");

void require(bool truth) {
  if (!truth) std::abort();
}

bool is_status(int32_t status) { return status > BP_OK && status <= BP_INTERNAL; }

// A reason that is passed on to another rank stays the same.
void check_reason(const std::string& reason, int32_t rank, int32_t world_size) {
  const sdk::Failure failure = decode_reason(reason, rank, world_size);
  require(is_status(failure.status()));
  require(failure.peer_rank() >= 0 && failure.peer_rank() < world_size);
  const std::string onward = encode_reason(failure);
  require(onward.size() <= kMaxReason);
  const sdk::Failure again = decode_reason(onward, rank, world_size);
  require(again.status() == failure.status() && again.peer_rank() == failure.peer_rank());
  (failure.status() == BP_PEER_LOST && failure.peer_rank() == rank ? read_end : read_cause).mark();
}

void check_frame(const std::byte* frame, size_t size, int32_t world_size) {
  const auto header = parse(frame, size, kToken, world_size);
  if (!header) return;
  require(size >= sizeof(Header) && std::memcmp(frame, &*header, sizeof(Header)) == 0);
  require(header->source >= 0 && header->source < world_size && header->token == kToken);
  require(header->kind >= Kind::kHello && header->kind <= Kind::kGoodbyeAck);
  const size_t behind = size - sizeof(Header);
  if (header->kind == Kind::kGoodbye) {
    require(behind <= kMaxReason);
    check_reason({reinterpret_cast<const char*>(frame) + sizeof(Header), behind}, header->source, world_size);
    read_goodbye.mark();
  } else {
    require(header->kind == Kind::kFrame ? behind >= sdk::Messenger::kHeadSize : behind == 0);
    (header->kind == Kind::kFrame ? read_data : read_other).mark();
  }
}

}  // namespace

// The first byte selects a frame or a reason, the second the world size.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int32_t world_size = 1 + data[1] % 16;
  const uint8_t* const rest = data + 2;
  if (data[0] % 2 == 0) {
    check_frame(reinterpret_cast<const std::byte*>(rest), size - 2, world_size);
  } else {
    check_reason({reinterpret_cast<const char*>(rest), std::min<size_t>(size - 2, kMaxReason)}, data[0] % world_size,
                 world_size);
  }
  return 0;
}
