// SPDX-License-Identifier: Apache-2.0
#include "store/membership_handler.hpp"

#include "error.hpp"
#include "store/request_handler.hpp"

namespace backplane::core {

bool is_membership_request(const StoreRequest& request) {
  return (request.operation >= RequestKind::kEnroll && request.operation <= RequestKind::kAbsences) ||
         request.operation == RequestKind::kReportEnd;
}

std::string handle_membership(MembershipTable& members, Clients& clients, ClientId client,
                              const StoreRequest& request) {
  const auto& texts = request.texts;
  const auto rank = static_cast<int32_t>(request.number);
  if (rank != request.number) fail(BP_INVALID, "{} is not a rank", request.number);
  switch (request.operation) {
    case RequestKind::kEnroll: {
      expect_texts(request, 2);
      const bool held = members.enroll(client, texts[0], rank, texts[1]);
      if (held && rank >= 0) clients.enter(client, fmt::format("rank {} ({})", rank, texts[1]));
      return held ? "1" : "0";
    }
    case RequestKind::kWithdraw:
      expect_texts(request, 1);
      members.withdraw(client, texts[0], rank);
      return {};
    case RequestKind::kAbsences:
      expect_texts(request, 1);
      return encode_absences(members.absences(texts[0]));
    case RequestKind::kReportEnd:
      expect_texts(request, 3);
      members.report_end(texts[0], rank, texts[1], texts[2]);
      return {};
    default:
      expect_texts(request, 0);
      members.leave(client);
      return {};
  }
}

}  // namespace backplane::core
