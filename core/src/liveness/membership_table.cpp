// SPDX-License-Identifier: Apache-2.0
#include "liveness/membership_table.hpp"

#include <utility>

#include "error.hpp"
#include "options/names.hpp"

namespace backplane::core {
namespace {

constexpr size_t kMaxEntries = size_t{1} << 20;  // of all clients together
constexpr size_t kMaxReportedEnds = 65536;
constexpr size_t kMaxReasonSize = 400;  // leaves room for the rest of the notice

void check_member(const std::string& scope, const std::string& identity) {
  if (scope.size() > kMaxScopeSize) {
    fail(BP_INVALID, "the scope has {} bytes; at most {} are allowed", scope.size(), kMaxScopeSize);
  }
  if (identity.size() > kMaxIdentitySize) {
    fail(BP_INVALID, "the identity has {} bytes; at most {} are allowed", identity.size(), kMaxIdentitySize);
  }
  if (!printable(identity)) fail(BP_INVALID, "the identity is not printable text");
}

}  // namespace

MembershipTable::MembershipTable(Notify notify) : notify_(std::move(notify)) {}

bool MembershipTable::enroll(ClientId client, const std::string& scope, int32_t rank, const std::string& identity) {
  check_member(scope, identity);
  if (rank < -1) fail(BP_INVALID, "rank {} cannot be enrolled", rank);
  if (entries_ >= kMaxEntries) fail(BP_RESOURCE, "the store cannot enroll more than {} ranks", entries_);
  Scope& entered = scopes_[scope];
  scopes_of_[client].insert(scope);
  ++entered.listeners[client];
  ++entries_;
  bool holds = false;
  if (rank >= 0) {
    const auto [member, fresh] = entered.members.try_emplace(rank, Member{client, identity});
    // A rank that has left may enroll again. A lost rank stays lost.
    holds = fresh || member->second.absence == Absence::kLeft;
    if (holds) member->second = Member{client, identity};
  }
  for (const Loss& loss : entered.losses) notify_(client, scope, loss);
  return holds;
}

void MembershipTable::withdraw(ClientId client, const std::string& name, int32_t rank) {
  const auto scope = scopes_.find(name);
  if (scope == scopes_.end()) return;
  const auto listener = scope->second.listeners.find(client);
  if (listener == scope->second.listeners.end()) return;
  const auto member = scope->second.members.find(rank);
  if (member != scope->second.members.end() && member->second.client == client && !member->second.absence) {
    member->second.absence = Absence::kLeft;
  }
  --entries_;
  if (--listener->second > 0) return;
  scope->second.listeners.erase(listener);
  scopes_of_[client].erase(name);
  leave(scope->second, client);  // all entries are withdrawn
  erase_unused(scope);
}

void MembershipTable::leave(Scope& scope, ClientId client) {
  for (auto& [rank, member] : scope.members) {
    if (member.client == client && !member.absence) member.absence = Absence::kLeft;
  }
}

void MembershipTable::leave(ClientId client) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) leave(scopes_.find(name)->second, client);
}

void MembershipTable::lose(ClientId client, std::string_view reason) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) {
    Scope& scope = scopes_.find(name)->second;
    for (auto& [rank, member] : scope.members) {
      if (member.client == client && !member.absence) lose(name, scope, rank, member, reason);
    }
  }
}

void MembershipTable::lose(const std::string& name, Scope& scope, int32_t rank, Member& member,
                           std::string_view reason) {
  member.absence = Absence::kLost;
  const Loss& loss =
      scope.losses.emplace_back(Loss{rank, false, loss_text(rank, member.identity, reason.substr(0, kMaxReasonSize))});
  for (const auto& [each, times] : scope.listeners) notify_(each, name, loss);
}

void MembershipTable::report_end(const std::string& name, int32_t rank, const std::string& identity,
                                 std::string_view reason) {
  check_member(name, identity);
  if (rank < 0) fail(BP_INVALID, "the end of rank {} cannot be reported", rank);
  if (!printable(reason)) fail(BP_INVALID, "the reason is not printable text");
  if (reported_ends_ >= kMaxReportedEnds) fail(BP_RESOURCE, "the store cannot note more than {} ends", reported_ends_);
  Scope& scope = scopes_[name];
  const auto [member, fresh] = scope.members.try_emplace(rank, Member{0, identity});
  if (!fresh) return;
  ++reported_ends_;
  lose(name, scope, rank, member->second, reason);
}

void MembershipTable::forget(ClientId client) {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return;
  for (const std::string& name : found->second) {
    const auto scope = scopes_.find(name);
    const auto listener = scope->second.listeners.find(client);
    entries_ -= listener->second;
    scope->second.listeners.erase(listener);
    erase_unused(scope);
  }
  scopes_of_.erase(found);
}

void MembershipTable::erase_unused(Scopes::iterator scope) {
  if (scope->second.listeners.empty() && scope->second.losses.empty()) scopes_.erase(scope);
}

Absences MembershipTable::absences(std::string_view name) const {
  Absences absences;
  const auto scope = scopes_.find(name);
  if (scope == scopes_.end()) return absences;
  for (const auto& [rank, member] : scope->second.members) {
    if (member.absence) absences.emplace(rank, *member.absence);
  }
  return absences;
}

const MembershipTable::Member* MembershipTable::held_by(ClientId client) const {
  const auto found = scopes_of_.find(client);
  if (found == scopes_of_.end()) return nullptr;
  for (const std::string& name : found->second) {
    for (const auto& [rank, member] : scopes_.find(name)->second.members) {
      if (member.client == client && !member.absence) return &member;
    }
  }
  return nullptr;
}

std::string MembershipTable::identity(ClientId client) const {
  const Member* const member = held_by(client);
  return member == nullptr ? "" : member->identity;
}

std::string loss_text(int32_t rank, const std::string& identity, std::string_view reason) {
  return fmt::format("rank {} ({}) is lost: {}", rank, identity, reason);
}

}  // namespace backplane::core
