// SPDX-License-Identifier: Apache-2.0
#include "liveness/membership_table.hpp"

#include <utility>

#include "error.hpp"
#include "options/names.hpp"

namespace backplane::core {
namespace {

constexpr size_t kMaxEntries = size_t{1} << 20;  // of all clients together
constexpr size_t kMaxReasonSize = 400;           // leaves room for the rest of the sentence in kMaxNoticeSize

}  // namespace

MembershipTable::MembershipTable(Notify tell) : tell_(std::move(tell)) {}

bool MembershipTable::enroll(ClientId client, const std::string& scope, int32_t rank, const std::string& identity) {
  if (scope.size() > kMaxScopeSize) fail(BP_INVALID, "a scope of {} bytes; at most {}", scope.size(), kMaxScopeSize);
  if (identity.size() > kMaxIdentitySize) {
    fail(BP_INVALID, "an identity of {} bytes; at most {}", identity.size(), kMaxIdentitySize);
  }
  if (!printable(identity)) fail(BP_INVALID, "an identity that is not printable text");
  if (rank < -1) fail(BP_INVALID, "rank {} cannot be enrolled", rank);
  if (entries_ >= kMaxEntries) fail(BP_RESOURCE, "the store has {} ranks enrolled already", entries_);
  Scope& entered = scopes_[scope];
  scopes_of_[client].insert(scope);
  ++entered.told[client];
  ++entries_;
  bool holds = false;
  if (rank >= 0) {
    const auto [member, fresh] = entered.members.try_emplace(rank, Member{client, identity});
    // A rank that has departed may come back; one that is lost stays so for those who gave it up.
    holds = fresh || member->second.fate == Fate::kDeparted;
    if (holds) member->second = Member{client, identity};
  }
  for (const Loss& loss : entered.losses) tell_(client, scope, loss);
  return holds;
}

void MembershipTable::withdraw(ClientId client, const std::string& name, int32_t rank) {
  const auto scope = scopes_.find(name);
  if (scope == scopes_.end()) return;
  const auto told = scope->second.told.find(client);
  if (told == scope->second.told.end()) return;
  const auto member = scope->second.members.find(rank);
  if (member != scope->second.members.end() && member->second.client == client && !member->second.fate) {
    member->second.fate = Fate::kDeparted;
  }
  --entries_;
  if (--told->second > 0) return;
  scope->second.told.erase(told);
  scopes_of_[client].erase(name);
  depart(scope->second, client);  // it has withdrawn often enough to be gone altogether
  tidy(scope);
}

void MembershipTable::depart(Scope& scope, ClientId client) {
  for (auto& [rank, member] : scope.members) {
    if (member.client == client && !member.fate) member.fate = Fate::kDeparted;
  }
}

void MembershipTable::goodbye(ClientId client) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) depart(scopes_.find(name)->second, client);
}

void MembershipTable::lose(ClientId client, std::string_view reason) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) {
    Scope& scope = scopes_.find(name)->second;
    for (auto& [rank, member] : scope.members) {
      if (member.client != client || member.fate) continue;
      member.fate = Fate::kLost;
      const Loss& loss = scope.losses.emplace_back(
          Loss{rank, false, loss_text(rank, member.identity, reason.substr(0, kMaxReasonSize))});
      for (const auto& [each, times] : scope.told) tell_(each, name, loss);
    }
  }
}

void MembershipTable::forget(ClientId client) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) {
    const auto scope = scopes_.find(name);
    const auto told = scope->second.told.find(client);
    entries_ -= told->second;
    scope->second.told.erase(told);
    tidy(scope);
  }
  scopes_of_.erase(found);
}

void MembershipTable::tidy(Scopes::iterator scope) {
  if (scope->second.told.empty() && scope->second.losses.empty()) scopes_.erase(scope);
}

Fates MembershipTable::fates(std::string_view name) const {
  Fates fates;
  const auto scope = scopes_.find(name);
  if (scope == scopes_.end()) return fates;
  for (const auto& [rank, member] : scope->second.members) {
    if (member.fate) fates.emplace(rank, *member.fate);
  }
  return fates;
}

bool MembershipTable::holds(ClientId client) const {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return false;
  for (const std::string& name : found->second) {
    for (const auto& [rank, member] : scopes_.find(name)->second.members) {
      if (member.client == client && !member.fate) return true;
    }
  }
  return false;
}

std::string loss_text(int32_t rank, const std::string& identity, std::string_view reason) {
  return fmt::format("rank {} ({}) is lost: {}", rank, identity, reason);
}

}  // namespace backplane::core
