// SPDX-License-Identifier: Apache-2.0
//
// Who is who among those who watch over each other, apart from sockets: the ranks of each scope, the clients that hold
// them, and who is to be told when one is lost. Not synchronised.
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
  // Called for each loss and each client that is to be told of it.
  using Notify = std::function<void(ClientId client, const std::string& scope, const Loss& loss)>;

  explicit MembershipTable(Notify tell);

  // Enters a rank (-1: the client only wants to be told), and tells the client of the scope's losses so far. False if
  // another client, or another entry of this one, holds the rank. BP_INVALID or BP_RESOURCE beyond the limits.
  bool enroll(ClientId client, const std::string& scope, int32_t rank, const std::string& identity);
  // The rank departs in peace, if this client holds it; the client is told no more through this entry.
  void withdraw(ClientId client, const std::string& scope, int32_t rank);
  // All of its ranks depart. It is still told.
  void goodbye(ClientId client);
  // All ranks that the client still holds are lost; `reason` ends the sentence. It is still told, also of this.
  void lose(ClientId client, std::string_view reason);
  // The client is not there any more, and nothing is told to it.
  void forget(ClientId client);

  Fates fates(std::string_view scope) const;
  // Does it hold a rank?
  bool holds(ClientId client) const;
  size_t entries() const { return entries_; }

 private:
  struct Member {
    ClientId client = 0;
    std::string identity;
    std::optional<Fate> fate = std::nullopt;
  };
  struct Scope {
    std::map<int32_t, Member> members;
    std::map<ClientId, size_t> told;  // how often each has enrolled
    std::vector<Loss> losses;         // in the order in which they were noticed
  };
  using Scopes = std::map<std::string, Scope, std::less<>>;

  void depart(Scope& scope, ClientId client);
  // Drops a scope that nobody is in and from which nobody was lost.
  void tidy(Scopes::iterator scope);

  const Notify tell_;
  Scopes scopes_;
  std::map<ClientId, std::set<std::string>> scopes_of_;
  size_t entries_ = 0;
};

// "rank 3 (host, pid 17) is lost: its process ended"
std::string loss_text(int32_t rank, const std::string& identity, std::string_view reason);

}  // namespace backplane::core
