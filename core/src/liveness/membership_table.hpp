// SPDX-License-Identifier: Apache-2.0
//
// The members of each scope: their ranks, the clients that hold them, and the clients that receive notices of losses.
// Has no sockets. Not synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "liveness/membership.hpp"

namespace backplane::core {

using ClientId = uint64_t;

class MembershipTable {
 public:
  // Called for each loss and each client of its scope.
  using Notify = std::function<void(ClientId client, const std::string& scope, const Loss& loss)>;

  explicit MembershipTable(Notify notify);

  // Enrolls a rank (-1: the client only receives notices) and notifies the client of the scope's earlier losses. False
  // if another client, or another entry of this one, holds the rank. BP_INVALID or BP_RESOURCE beyond the limits.
  bool enroll(ClientId client, const std::string& scope, int32_t rank, const std::string& identity);
  // Withdraws one entry of the client, which receives no more notices. If the client holds the rank, the rank leaves.
  void withdraw(ClientId client, const std::string& scope, int32_t rank);
  // Makes all ranks of the client leave. The client still receives notices.
  void leave(ClientId client);
  // Marks all ranks that the client still holds as lost; `reason` ends the notices. The client still receives notices,
  // including these.
  void lose(ClientId client, std::string_view reason);
  // Marks a rank as lost whose process ended before it enrolled. No effect on a rank that has enrolled. BP_INVALID or
  // BP_RESOURCE beyond the limits.
  void report_end(const std::string& scope, int32_t rank, const std::string& identity, std::string_view reason);
  // Removes the client.
  void forget(ClientId client);

  Absences absences(std::string_view scope) const;
  // Whether the client holds a rank.
  bool holds(ClientId client) const { return held_by(client) != nullptr; }
  // The identity of a rank that the client holds, "" if it holds none.
  std::string identity(ClientId client) const;
  size_t entries() const { return entries_; }

 private:
  struct Member {
    ClientId client = 0;
    std::string identity;
    std::optional<Absence> absence = std::nullopt;
  };
  struct Scope {
    std::map<int32_t, Member> members;
    std::map<ClientId, size_t> listeners;  // with the number of entries of each
    std::vector<Loss> losses;              // in the order of detection
  };
  using Scopes = std::map<std::string, Scope, std::less<>>;

  void lose(const std::string& name, Scope& scope, int32_t rank, Member& member, std::string_view reason);
  static void leave(Scope& scope, ClientId client);
  const Member* held_by(ClientId client) const;
  // Erases a scope without listeners and losses.
  void erase_unused(Scopes::iterator scope);

  const Notify notify_;
  Scopes scopes_;
  std::map<ClientId, std::set<std::string>> scopes_of_;
  size_t entries_ = 0;
  size_t reported_ends_ = 0;
};

// "rank 3 (host, pid 17) is lost: its process ended"
std::string loss_text(int32_t rank, const std::string& identity, std::string_view reason);

}  // namespace backplane::core
