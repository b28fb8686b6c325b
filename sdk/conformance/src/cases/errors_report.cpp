// SPDX-License-Identifier: Apache-2.0
//
// The rules of status.h for every error report.
#include <algorithm>
#include <cstring>

#include "async_support.hpp"
#include "backplane/base/utf8.hpp"
#include "errors_support.hpp"

namespace backplane::conformance {
namespace {

std::string visible(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      result += c;
    } else {
      result += fmt::format("\\{}{}{}", byte / 64, byte / 8 % 8, byte % 8);
    }
  }
  return result;
}

}  // namespace

void check_report(Rank& rank, const Outcome& outcome, const std::string& what) {
  const bp_error& error = outcome.error;
  const int32_t status = outcome.status;
  rank.check(status > BP_OK && status <= BP_INTERNAL && status != BP_AGAIN, what + " fails with a status of status.h",
             fmt::format("status {}", status));
  rank.check(error.status == status,
             fmt::format("bp_error.status of {} is what was returned, {}", what, status_name(status)),
             fmt::format("status {}", error.status));
  rank.check(error.struct_size == sizeof error, "bp_error.struct_size is left as the caller set it",
             fmt::format("it is {}", error.struct_size));
  rank.check(error.peer_rank >= -1 && error.peer_rank < rank.size(),
             fmt::format("bp_error.peer_rank of {} is a rank or -1", what), fmt::format("it is {}", error.peer_rank));
  const char* end = std::find(error.text, error.text + BP_ERROR_TEXT_SIZE, '\0');
  const bool terminated = end != error.text + BP_ERROR_TEXT_SIZE;
  if (!rank.check(terminated, "bp_error.text is NUL-terminated", "there is no NUL in its 1024 bytes")) return;
  const std::string text(error.text, end);
  rank.check(text.find_first_not_of(' ') != std::string::npos, fmt::format("a sentence about {}", what),
             "the text is empty");
  const size_t wrong = base::find_invalid_utf8(text);
  rank.check(wrong == std::string::npos, fmt::format("the text about {} is UTF-8", what),
             fmt::format("not at byte {}: {}", wrong, visible(text)));
  const bool one_line =
      std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
  rank.check(one_line, fmt::format("the text about {} is one line", what), visible(text));
}

std::vector<Failed> provoke(Rank& rank, const std::string& space) {
  std::vector<Failed> failed;
  const auto agent = rank.open(in_space(space));
  std::vector<uint8_t> small(8);
  const std::vector<uint8_t> large(100, 1);

  rank.step("receiving a message that is too long");
  Pending recv = agent->irecv(rank.previous(), 1, small.data(), small.size());
  Pending send = agent->isend(rank.next(), 1, large.data(), large.size());
  failed.push_back({"a recv whose message is too long", BP_INVALID, recv.finish(rank.hang_limit(kEndLimit))});
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send whose message is too long for its recv");

  rank.step("letting a recv time out");
  bp_op op = recv_op(rank.previous(), kSilentTag, small.data(), small.size());
  op.flags = BP_OP_SYNC;
  op.timeout_ns = 5 * kMillisecond;
  recv = agent->submit(op);
  if (!recv.in_flight()) failed.push_back({"a recv that timed out", BP_TIMEOUT, recv.submitted()});
  recv.cancel();
  if (recv.in_flight()) static_cast<void>(recv.finish(0));

  rank.step("cancelling a recv");
  op.flags = 0;
  recv = agent->submit(op);
  recv.cancel();
  const Outcome cancelled = recv.wait(kSecond / 5);
  if (cancelled.status != BP_AGAIN) {
    failed.push_back({"a cancelled recv", BP_CANCELLED, cancelled});
    recv.release();
  }
  rank.barrier();

  rank.step("aborting");
  Pending in_flight = agent->submit(recv_op(rank.id(), kSilentTag - 1, small.data(), small.size()));
  agent->abort(BP_RESOURCE, -1, "the cause of it all");
  failed.push_back({"an aborted recv", BP_RESOURCE, in_flight.finish(rank.hang_limit(kEndLimit))});
  if (recv.in_flight()) static_cast<void>(recv.finish(rank.hang_limit(kEndLimit)));
  failed.push_back({"submit after abort", BP_RESOURCE, agent->isend(rank.id(), 1, large.data(), 1).submitted()});
  rank.barrier();
  return failed;
}

}  // namespace backplane::conformance
